//! The usage of watched subjects: how much of each limit a subject used in each bucket of the last hour.
//!
//! A subject has no counters, so its standing is read from the store. That costs a call for each sample, so only subjects that were
//! looked at are watched: at most [`WATCHED_SUBJECTS_MAX`], each until [`WATCH_MAX`] after the last look. A further one takes the place of
//! the one that was looked at longest ago.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate::{Standing, Timestamp};
use tollgate_protocol::json::{HistoryStep, LimitUsage, SubjectHistoryResponse};

use super::ring::{Range, Ring, has_stepped_back};
use crate::bounds::{WATCH_MAX, WATCHED_SUBJECTS_MAX};

/// A policy and a subject.
pub(crate) type WatchedSubject = (String, String);

/// The watched subjects of one server.
#[derive(Debug, Default)]
pub(crate) struct WatchedSubjects(Mutex<Vec<Watched>>);

#[derive(Debug)]
struct Watched {
    who: WatchedSubject,
    since: Timestamp,
    looked_at: Timestamp,
    sampled_at: Timestamp,
    limits: Vec<Usage>,
}

#[derive(Debug)]
struct Usage {
    name: Arc<str>,
    unit: Arc<str>,
    limit: u64,
    used: Ring<u64>,
}

impl WatchedSubjects {
    /// Watches `who` from now on.
    pub(crate) fn look_at(&self, who: &WatchedSubject, now: Timestamp) {
        let mut watched = self.lock();
        if let Some(known) = watched.iter_mut().find(|it| it.who == *who) {
            known.looked_at = now;
            return;
        }
        if WATCHED_SUBJECTS_MAX <= watched.len() {
            let oldest = watched.iter().enumerate().min_by_key(|(_, it)| it.looked_at);
            if let Some((index, _)) = oldest {
                watched.swap_remove(index);
            }
        }
        let who = who.clone();
        watched.push(Watched {
            who,
            since: now,
            looked_at: now,
            sampled_at: now,
            limits: Vec::new(),
        });
    }

    /// Forgets the subjects that were not looked at for [`WATCH_MAX`], and returns the others.
    pub(crate) fn due(&self, now: Timestamp) -> Vec<WatchedSubject> {
        let mut watched = self.lock();
        watched.retain(|it| now.since(it.looked_at) < WATCH_MAX);
        watched.iter().map(|it| it.who.clone()).collect()
    }

    /// Records the standings of `who`, if it is watched.
    pub(crate) fn record(&self, who: &WatchedSubject, now: Timestamp, standings: &[Standing]) {
        let mut watched = self.lock();
        let Some(known) = watched.iter_mut().find(|it| it.who == *who) else { return };
        let is_same =
            known.limits.iter().map(|it| &it.name).eq(standings.iter().map(|it| &it.name));
        if !is_same || has_stepped_back(known.sampled_at, now) {
            known.limits = standings.iter().map(Usage::new).collect();
        }
        for (usage, standing) in known.limits.iter_mut().zip(standings) {
            usage.limit = standing.limit;
            let used = usage.used.value_at(now);
            *used = (*used).max(standing.used);
        }
        known.sampled_at = now;
    }

    /// Returns the history of `who`; `None` if it is not watched.
    pub(crate) fn read(
        &self,
        broker: &str,
        who: &WatchedSubject,
        now: Timestamp,
    ) -> Option<SubjectHistoryResponse> {
        let watched = self.lock();
        let known = watched.iter().find(|it| it.who == *who)?;
        let range = Range::new(HistoryStep::Fine, Timestamp::EPOCH, known.since, now);
        let (policy, subject) = who.clone();
        Some(SubjectHistoryResponse {
            broker: broker.to_owned(),
            policy,
            subject,
            since: known.since,
            now,
            step_secs: HistoryStep::Fine.span().as_secs_ceil(),
            start: range.start(),
            buckets: range.len(),
            limits: known.limits.iter().map(|limit| limit.read(range)).collect(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Watched>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Usage {
    fn new(standing: &Standing) -> Self {
        let (name, unit) = (Arc::clone(&standing.name), Arc::clone(&standing.unit));
        Self { name, unit, limit: standing.limit, used: Ring::new(HistoryStep::Fine) }
    }

    fn read(&self, range: Range) -> LimitUsage {
        let mut used = vec![None; range.len()];
        for (index, value) in self.used.read(range) {
            used[index] = Some(*value);
        }
        let (name, unit) = (self.name.to_string(), self.unit.to_string());
        LimitUsage { name, unit, limit: self.limit, used }
    }
}
