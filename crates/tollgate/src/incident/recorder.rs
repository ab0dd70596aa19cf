//! The last acquisitions of each subject, and which of its permits are open.
//!
//! Bounded in every direction: subjects, acquisitions per subject, open permits per subject. Subjects are kept in two
//! generations; when the young one is full it becomes the old one, and the old one is forgotten. So recent
//! subjects are kept, without a list in order of use.
//!
//! Every decision is recorded, so nothing is formatted until it is read, and a subject is identified by a keyed hash of 64 bits
//! alone.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::mem;

use foldhash::fast::RandomState;
use tollgate_core::bounds::PERMIT_TTL;
use tollgate_core::{Amounts, Ask, Permit, Policy, Timestamp};

use super::Acquisition;
use super::short_list::ShortList;
use crate::internal::Sharded;
use crate::observe::{Event, Observer};
use crate::sync::MutexGuard;

/// The most acquisitions that are kept of one subject.
pub const ACQUISITIONS_MAX: usize = 32;

/// The most open permits that are counted of one subject.
pub const OPEN_MAX: usize = 1_024;

/// The most subjects that are kept.
pub const SUBJECTS_MAX: usize = 4_096;

/// The number of shards, and so of concurrent writers.
const SHARDS: usize = 16;

/// An observer that remembers what led to an incident.
#[derive(Debug)]
pub struct Recorder {
    shards: Sharded<Generations>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self { shards: Sharded::new(SHARDS, Generations::default) }
    }
}

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<u64, Track, RandomState>,
    old: HashMap<u64, Track, RandomState>,
}

#[derive(Debug, Default)]
struct Track {
    last: ShortList<RawAcquisition>,
    /// The admission time and the stamp of each open permit, oldest first.
    open: ShortList<(Timestamp, u64)>,
}

/// A recorded acquisition, not yet formatted.
#[derive(Debug)]
struct RawAcquisition {
    policy: Policy,
    amounts: Amounts,
    at: Timestamp,
    admitted: bool,
    degraded: bool,
}

impl Recorder {
    /// Creates an empty recorder.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns how many permits of `subject` are open at `now`, and its last acquisitions, oldest first.
    #[must_use]
    pub fn about(
        &self,
        policy: &Policy,
        subject: &str,
        now: Timestamp,
    ) -> (usize, Vec<Acquisition>) {
        let (key, all) = self.lock(policy, subject);
        let Some(track) = all.young.get(&key).or_else(|| all.old.get(&key)) else {
            return (0, Vec::new());
        };
        // Older permits can no longer be settled, so their end is never reported.
        let open = track.open.iter().filter(|(at, _)| now.since(*at) < PERMIT_TTL);
        (open.count(), track.last.iter().map(RawAcquisition::written).collect())
    }

    /// Returns the key of a subject and its shard, locked.
    fn lock(&self, policy: &Policy, subject: &str) -> (u64, MutexGuard<'_, Generations>) {
        let key = self.shards.hash(policy, subject);
        (key, self.shards.lock(key))
    }

    fn track<T>(&self, policy: &Policy, subject: &str, work: impl FnOnce(&mut Track) -> T) -> T {
        let (key, mut shard) = self.lock(policy, subject);
        let Generations { young, old } = &mut *shard;
        if let Some(track) = young.get_mut(&key) {
            return work(track);
        }
        if SUBJECTS_MAX / SHARDS / 2 <= young.len() {
            mem::swap(young, old);
            young.clear();
        }
        work(young.entry(key).or_insert(old.remove(&key).unwrap_or_default()))
    }

    fn add(&self, seen: RawAcquisition, ask: &Ask<'_>, permit: Option<&Permit>) {
        self.track(ask.policy(), ask.subject(), |track| {
            track.last.push(seen, ACQUISITIONS_MAX);
            if let Some(permit) = permit {
                track.open.push(key_of(permit), OPEN_MAX);
            }
        });
    }

    fn ended(&self, permit: &Permit) {
        for permit in permit.charges() {
            self.track(permit.policy(), permit.subject(), |track| {
                // Most permits that end began lately.
                track.open.remove_last(|open| *open == key_of(permit));
            });
        }
    }
}

fn key_of(permit: &Permit) -> (Timestamp, u64) {
    (permit.grant().at, permit.grant().stamp)
}

impl Observer for Recorder {
    fn observe(&self, event: &Event<'_>) {
        match event {
            Event::Admitted { ask, permit, .. } => {
                for (index, permit) in permit.charges().enumerate() {
                    let Some(ask) = ask.part(index) else { continue };
                    let seen = RawAcquisition::new(&ask, permit.grant().at, true, permit.degraded);
                    self.add(seen, &ask, Some(permit));
                }
            }
            Event::Denied { ask, denial, .. } => {
                for ask in (0..ask.charges().len()).filter_map(|index| ask.part(index)) {
                    let seen = RawAcquisition::new(&ask, denial.decided_at, false, denial.degraded);
                    self.add(seen, &ask, None);
                }
            }
            Event::Settled { permit, .. } | Event::Released { permit, .. } => self.ended(permit),
            _ => {}
        }
    }
}

impl RawAcquisition {
    fn new(ask: &Ask<'_>, at: Timestamp, admitted: bool, degraded: bool) -> Self {
        Self { policy: ask.policy().clone(), amounts: *ask.amounts(), at, admitted, degraded }
    }

    fn written(&self) -> Acquisition {
        let mut costs = String::new();
        for (unit, amount) in self.policy.costs(&self.amounts).iter() {
            let space = if costs.is_empty() { "" } else { " " };
            let _infallible = write!(costs, "{space}{unit}={amount}");
        }
        Acquisition { at: self.at, admitted: self.admitted, degraded: self.degraded, costs }
    }
}
