//! The last acquisitions of each subject, and which of its permits are open.
//!
//! Bounded in every direction: subjects, acquisitions per subject, open permits per subject. Subjects are kept in two
//! generations; when the young one is full it becomes the old one, and the old one is forgotten. So whoever asked
//! lately is kept, without a list in order of use.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::mem;

use tollgate_core::bounds::PERMIT_TTL;
use tollgate_core::{Permit, Policy, Timestamp};

use super::Acquisition;
use crate::observe::{Event, Observer};
use crate::sync::{Mutex, lock};

/// The most acquisitions that are kept of one subject.
pub const ACQUISITIONS_MAX: usize = 32;

/// The most open permits that are counted of one subject.
pub const OPEN_MAX: usize = 1_024;

/// The most subjects that are kept.
pub const SUBJECTS_MAX: usize = 4_096;

/// An observer that remembers what led to an incident.
#[derive(Debug, Default)]
pub struct Recorder(Mutex<Generations>);

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<Key, Track>,
    old: HashMap<Key, Track>,
}

type Key = (Box<str>, Box<str>);

#[derive(Debug, Default)]
struct Track {
    last: VecDeque<Acquisition>,
    /// When it was admitted and its stamp: what a permit is told apart by.
    open: BTreeSet<(Timestamp, u64)>,
}

impl Recorder {
    /// A recorder that has seen nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many permits of `subject` are open at `now`, and its last acquisitions, oldest first.
    #[must_use]
    pub fn about(
        &self,
        policy: &Policy,
        subject: &str,
        now: Timestamp,
    ) -> (usize, Vec<Acquisition>) {
        self.track(policy, subject, |track| {
            // What is older can no longer be settled, so nobody will say that it ended.
            track.open.retain(|(at, _)| now.since(*at) < PERMIT_TTL);
            (track.open.len(), track.last.iter().cloned().collect())
        })
    }

    fn track<T>(&self, policy: &Policy, subject: &str, work: impl FnOnce(&mut Track) -> T) -> T {
        let key: Key = (policy.name().into(), subject.into());
        let mut all = lock(&self.0);
        if !all.young.contains_key(&key) {
            if SUBJECTS_MAX / 2 <= all.young.len() {
                all.old = mem::take(&mut all.young);
            }
            let track = all.old.remove(&key).unwrap_or_default();
            all.young.insert(key.clone(), track);
        }
        work(all.young.entry(key).or_default())
    }

    fn ended(&self, permit: &Permit) {
        self.track(permit.policy(), permit.subject(), |track| {
            track.open.remove(&key_of(permit));
        });
    }
}

fn key_of(permit: &Permit) -> (Timestamp, u64) {
    (permit.grant().at, permit.grant().stamp)
}

impl Observer for Recorder {
    fn observe(&self, event: &Event<'_>) {
        match event {
            Event::Admitted { ask, permit, .. } => {
                let acquisition = Acquisition::of(ask, permit.grant().at, true, permit.degraded);
                self.track(ask.policy(), ask.subject(), |track| {
                    track.add(acquisition);
                    track.open.insert(key_of(permit));
                    if OPEN_MAX < track.open.len() {
                        track.open.pop_first();
                    }
                });
            }
            Event::Denied { ask, denial, .. } => {
                let acquisition = Acquisition::of(ask, denial.decided_at, false, denial.degraded);
                self.track(ask.policy(), ask.subject(), |track| track.add(acquisition));
            }
            Event::Settled { permit, .. } | Event::Released { permit, .. } => self.ended(permit),
            _ => {}
        }
    }
}

impl Track {
    fn add(&mut self, acquisition: Acquisition) {
        if self.last.len() == ACQUISITIONS_MAX {
            self.last.pop_front();
        }
        self.last.push_back(acquisition);
    }
}
