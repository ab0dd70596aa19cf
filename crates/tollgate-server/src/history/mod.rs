//! The history of this server's decisions: what each policy admitted and refused in each bucket of time.
//!
//! Deciding does not know of it. A sample reads the counters that [`Stats`](crate::stats::Stats) has anyway, and the difference to the
//! sample before belongs to the bucket in which that was taken: samples are taken when a bucket starts, and at every read.
//!
//! ```text
//! counters ──every 10 s──▶ difference ─┬─▶ 10 s buckets of an hour
//!                                      └─▶ 5 min buckets of a day
//! ```
//! Buckets without a count take no memory. With the most policies, each of them counting in every bucket, it is about 40 MB;
//! 40 such policies take less than 2 MB.

mod ring;
mod watched;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tollgate::Timestamp;
use tollgate_protocol::json::{HistoryResponse, HistoryStep, LimitHistory, PolicyHistory};

use crate::bounds::{COUNTED_POLICIES_MAX, HISTORY_LIMITS_MAX};
use ring::{Range, Ring, has_stepped_back, next_bucket};
pub(crate) use watched::WatchedSubjects;

/// The counts of one policy since the server started, and how many asks wait now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PolicyTotals {
    pub(crate) name: String,
    pub(crate) admitted: u64,
    pub(crate) refused: u64,
    pub(crate) failed: u64,
    pub(crate) shadow_denied: u64,
    pub(crate) degraded: u64,
    /// How many asks wait now: not a count, and not subtracted.
    pub(crate) waiting: u64,
    /// The refusals of each limit.
    pub(crate) limits: Vec<(String, u64)>,
}

/// The history of one server.
#[derive(Debug)]
pub(crate) struct History {
    began: Timestamp,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    sampled_at: Timestamp,
    /// By name, at most [`COUNTED_POLICIES_MAX`].
    policies: BTreeMap<String, PolicySeries>,
    /// How many limits have a series, at most [`HISTORY_LIMITS_MAX`].
    limits: usize,
}

/// The counts of one bucket.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    admitted: u32,
    refused: u32,
    failed: u32,
    shadow_denied: u32,
    degraded: u32,
    waiting: u32,
}

/// Buckets of both lengths.
#[derive(Debug)]
struct Series<T> {
    fine: Ring<T>,
    coarse: Ring<T>,
}

#[derive(Debug, Default)]
struct PolicySeries {
    /// The counters at the last sample.
    last: PolicyTotals,
    counts: Series<Counts>,
    limits: BTreeMap<String, LimitSeries>,
}

#[derive(Debug, Default)]
struct LimitSeries {
    last: u64,
    refused: Series<u32>,
}

impl<T: Default> Default for Series<T> {
    fn default() -> Self {
        Self { fine: Ring::new(HistoryStep::Fine), coarse: Ring::new(HistoryStep::Coarse) }
    }
}

impl<T: Default> Series<T> {
    /// Changes the fine and the coarse bucket of `at`.
    fn change(&mut self, at: Timestamp, mut change: impl FnMut(&mut T)) {
        change(self.fine.value_at(at));
        change(self.coarse.value_at(at));
    }

    fn read(&self, range: Range) -> impl Iterator<Item = (usize, &T)> {
        match range.step {
            HistoryStep::Fine => self.fine.read(range),
            HistoryStep::Coarse => self.coarse.read(range),
        }
    }

    fn clear(&mut self) {
        self.fine.clear();
        self.coarse.clear();
    }
}

impl History {
    /// Creates the history of a server that starts `now`.
    pub(crate) fn since(now: Timestamp) -> Self {
        let state = State { sampled_at: now, policies: BTreeMap::new(), limits: 0 };
        Self { began: now, state: Mutex::new(state) }
    }

    /// Returns when the next sample is due.
    pub(crate) fn next_sample(now: Timestamp) -> Timestamp {
        next_bucket(now)
    }

    /// Adds what was counted since the sample before. A clock that steps back by more than a bucket starts the history anew, because
    /// no bucket has two times. `totals` is called under the lock, so that no sample is older than the one before.
    pub(crate) fn sample(&self, now: Timestamp, totals: impl FnOnce() -> Vec<PolicyTotals>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { sampled_at, policies, limits: limit_count } = &mut *state;
        if has_stepped_back(*sampled_at, now) {
            for series in policies.values_mut() {
                series.counts.clear();
                series.limits.values_mut().for_each(|limit| limit.refused.clear());
            }
            *sampled_at = now;
        }
        for totals in totals() {
            if !policies.contains_key(&totals.name) {
                if COUNTED_POLICIES_MAX <= policies.len() {
                    continue;
                }
                policies.insert(totals.name.clone(), PolicySeries::default());
            }
            let Some(series) = policies.get_mut(&totals.name) else { continue };
            series.sample(*sampled_at, now, totals, limit_count);
        }
        *sampled_at = (*sampled_at).max(now);
    }

    /// Returns the buckets from `since` on, of one policy or of all, as of the last sample, which was taken at `now`.
    pub(crate) fn read(
        &self,
        broker: &str,
        policy: Option<&str>,
        since: Timestamp,
        step: HistoryStep,
        now: Timestamp,
    ) -> HistoryResponse {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let range = Range::new(step, since, self.began, now);
        let wanted = state.policies.iter().filter(|(name, _)| policy.is_none_or(|it| it == *name));
        HistoryResponse {
            broker: broker.to_owned(),
            since: self.began,
            now,
            step_secs: step.span().as_secs_ceil(),
            start: range.start(),
            buckets: range.len(),
            policies: wanted.map(|(name, series)| series.read(name, range)).collect(),
        }
    }
}

impl PolicySeries {
    /// Adds what was counted between `before` and `now`.
    fn sample(
        &mut self,
        before: Timestamp,
        now: Timestamp,
        totals: PolicyTotals,
        limit_count: &mut usize,
    ) {
        let last = &self.last;
        let fresh = Counts {
            admitted: difference(totals.admitted, last.admitted),
            refused: difference(totals.refused, last.refused),
            failed: difference(totals.failed, last.failed),
            shadow_denied: difference(totals.shadow_denied, last.shadow_denied),
            degraded: difference(totals.degraded, last.degraded),
            waiting: 0,
        };
        if fresh.admitted != 0 || fresh.refused != 0 || fresh.failed != 0 {
            self.counts.change(before, |counts| counts.add(fresh));
        }
        if totals.waiting != 0 {
            let waiting = u32::try_from(totals.waiting).unwrap_or(u32::MAX);
            self.counts.change(now, |counts| counts.waiting = counts.waiting.max(waiting));
        }
        for (name, refused) in &totals.limits {
            if !self.limits.contains_key(name) {
                if HISTORY_LIMITS_MAX <= *limit_count {
                    continue;
                }
                *limit_count += 1;
                self.limits.insert(name.clone(), LimitSeries::default());
            }
            let Some(limit) = self.limits.get_mut(name) else { continue };
            let fresh = difference(*refused, limit.last);
            if fresh != 0 {
                limit.refused.change(before, |count| *count = count.saturating_add(fresh));
            }
            limit.last = *refused;
        }
        self.last = totals;
    }

    fn read(&self, name: &str, range: Range) -> PolicyHistory {
        let series = |of: fn(&Counts) -> u32| {
            dense(range, self.counts.read(range).map(|(index, counts)| (index, of(counts))))
        };
        let limits = self.limits.iter().map(|(name, limit)| LimitHistory {
            name: name.clone(),
            refused: dense(range, limit.refused.read(range).map(|(index, count)| (index, *count))),
        });
        PolicyHistory {
            name: name.to_owned(),
            admitted: series(|counts| counts.admitted),
            refused: series(|counts| counts.refused),
            failed: series(|counts| counts.failed),
            shadow_denied: series(|counts| counts.shadow_denied),
            degraded: series(|counts| counts.degraded),
            waiting: series(|counts| counts.waiting),
            limits: limits.filter(|limit| !limit.refused.is_empty()).collect(),
        }
    }
}

impl Counts {
    const fn add(&mut self, fresh: Self) {
        self.admitted = self.admitted.saturating_add(fresh.admitted);
        self.refused = self.refused.saturating_add(fresh.refused);
        self.failed = self.failed.saturating_add(fresh.failed);
        self.shadow_denied = self.shadow_denied.saturating_add(fresh.shadow_denied);
        self.degraded = self.degraded.saturating_add(fresh.degraded);
    }
}

fn difference(total: u64, last: u64) -> u32 {
    u32::try_from(total.saturating_sub(last)).unwrap_or(u32::MAX)
}

/// Returns a value for every bucket of `range`, or nothing if all of them are zero.
fn dense(range: Range, values: impl Iterator<Item = (usize, u32)>) -> Vec<u64> {
    let mut series = Vec::new();
    for (index, value) in values {
        if value != 0 {
            series.resize(range.len(), 0);
            series[index] = value.into();
        }
    }
    series
}

#[cfg(test)]
mod tests;
