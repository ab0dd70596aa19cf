//! Which permits are settled already, so that settling twice changes nothing.
//!
//! Permits of one entry carry consecutive stamps, so those that are settled are kept as runs: an entry whose permits
//! are all settled sooner or later keeps about as many runs as it has permits in flight. A run is dropped when its
//! permits are too old to be settled anyway.

use crate::bounds::{PERMIT_TTL, SETTLED_RUNS_MAX};
use crate::time::Timestamp;

/// Consecutive stamps that are settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// When the youngest of them was admitted.
    pub(crate) admitted_at: Timestamp,
}

/// The runs of settled stamps, rising and apart.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Settled {
    runs: Vec<Run>,
    /// Every stamp up to this one counts as too old.
    floor: u64,
}

impl Settled {
    /// The runs as they were stored, or nothing if they overlap or are out of order.
    pub(crate) fn from_runs(runs: Vec<Run>, floor: u64) -> Option<Self> {
        let sound = runs.len() <= SETTLED_RUNS_MAX
            && runs.iter().all(|run| run.first <= run.last)
            && runs.windows(2).all(|pair| pair[0].last < pair[1].first);
        sound.then_some(Self { runs, floor })
    }

    /// Every stamp before `stamp` is settled, the youngest of them admitted at `now`.
    pub(crate) fn all_before(stamp: u64, now: Timestamp) -> Self {
        let run = Run { first: 0, last: stamp.saturating_sub(1), admitted_at: now };
        Self { runs: vec![run], floor: 0 }
    }

    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    pub(crate) const fn floor(&self) -> u64 {
        self.floor
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.floor == 0
    }

    pub(crate) fn contains(&self, stamp: u64) -> bool {
        let index = self.runs.partition_point(|run| run.last < stamp);
        self.runs.get(index).is_some_and(|run| run.first <= stamp)
    }

    pub(crate) const fn is_too_old(&self, stamp: u64) -> bool {
        stamp <= self.floor
    }

    pub(crate) fn insert(&mut self, stamp: u64, admitted_at: Timestamp) {
        let index = self.runs.partition_point(|run| run.last < stamp);
        self.runs.insert(index, Run { first: stamp, last: stamp, admitted_at });
        self.join(index);
        if let Some(before) = index.checked_sub(1) {
            self.join(before);
        }
        if SETTLED_RUNS_MAX < self.runs.len() {
            self.floor = self.floor.max(self.runs.remove(0).last);
        }
    }

    /// Joins the run at `index` with the next one if nothing lies between them.
    fn join(&mut self, index: usize) {
        let Some(next) = self.runs.get(index + 1).copied() else { return };
        let run = &mut self.runs[index];
        if run.last + 1 == next.first {
            run.last = next.last;
            run.admitted_at = run.admitted_at.max(next.admitted_at);
            self.runs.remove(index + 1);
        }
    }

    pub(crate) fn forget_expired(&mut self, now: Timestamp) {
        self.runs.retain(|run| now < run.admitted_at + PERMIT_TTL);
        if self.runs.is_empty() {
            // Whatever stands below the floor is older than the runs that just expired.
            self.floor = 0;
        }
    }

    pub(crate) fn is_idle(&self, now: Timestamp) -> bool {
        self.runs.iter().all(|run| run.admitted_at + PERMIT_TTL <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_join_and_stay_few_when_every_permit_is_settled() {
        let mut settled = Settled::default();
        for stamp in [1, 3, 5, 4, 2, 6, 8] {
            settled.insert(stamp, Timestamp::from_secs(stamp));
        }
        let runs: Vec<_> = settled.runs().iter().map(|run| (run.first, run.last)).collect();
        assert_eq!(runs, [(1, 6), (8, 8)]);
        assert!(settled.contains(4) && !settled.contains(7));
    }

    #[test]
    fn beyond_the_bound_the_oldest_count_as_too_old() {
        let mut settled = Settled::default();
        for stamp in 0..=SETTLED_RUNS_MAX as u64 {
            settled.insert(2 * stamp + 1, Timestamp::EPOCH);
        }
        assert_eq!(settled.runs().len(), SETTLED_RUNS_MAX);
        assert!(settled.is_too_old(1) && !settled.is_too_old(2));
    }
}
