//! Which permits are settled already, so that settling is idempotent.
//!
//! Permits of one entry carry consecutive stamps, so those that are settled are kept as runs: an entry whose permits
//! are all settled sooner or later keeps at most half as many runs as it has permits in flight. A run is dropped when its
//! permits are too old to be settled anyway.
//!
//! Permits that are never settled leave gaps, and gaps keep runs apart. Under that pressure the oldest run is dropped once
//! its permits are old enough to be abandoned; older permits then get nothing back. Where even the oldest are young,
//! [`is_full`](Settled::is_full) makes the next acquire fail, so that no permit is ever given that cannot be settled.

use std::collections::BTreeMap;

use crate::bounds::{ABANDONED_AFTER, PERMIT_TTL, SETTLED_RUNS_MAX};
use crate::time::Timestamp;

/// Consecutive stamps that are settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// When the youngest of them was admitted.
    pub(crate) admitted_at: Timestamp,
}

impl Run {
    fn is_expired(&self, now: Timestamp) -> bool {
        self.admitted_at + PERMIT_TTL <= now
    }

    fn is_abandoned(&self, now: Timestamp) -> bool {
        self.admitted_at + ABANDONED_AFTER <= now
    }
}

/// The runs of settled stamps, apart from each other.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Settled {
    /// By their first stamp.
    runs: BTreeMap<u64, Run>,
    /// Permits up to this stamp get nothing back.
    floor: u64,
}

impl Settled {
    /// The runs as they were stored, or nothing if they overlap or are out of order.
    pub(crate) fn from_runs(runs: Vec<Run>, floor: u64) -> Option<Self> {
        let sound = runs.iter().all(|run| run.first <= run.last)
            && runs.windows(2).all(|pair| pair[0].last < pair[1].first);
        sound.then(|| Self { runs: runs.into_iter().map(|run| (run.first, run)).collect(), floor })
    }

    /// Every stamp before `stamp` is settled, the youngest of them admitted at `now`, by a reset.
    pub(crate) fn all_before(stamp: u64, now: Timestamp) -> Self {
        let run = Run { first: 0, last: stamp.saturating_sub(1), admitted_at: now };
        Self { runs: BTreeMap::from([(0, run)]), floor: 0 }
    }

    /// The stamps that are settled in either. Beyond [`SETTLED_RUNS_MAX`] runs the oldest are dropped, and permits up to them
    /// get nothing back.
    pub(crate) fn union(&self, other: &Self) -> Self {
        let mut runs: Vec<Run> = self.runs().chain(other.runs()).copied().collect();
        runs.sort_unstable_by_key(|run| run.first);
        let mut joined: Vec<Run> = Vec::with_capacity(runs.len());
        for run in runs {
            match joined.last_mut() {
                Some(last) if run.first <= last.last.saturating_add(1) => {
                    last.last = last.last.max(run.last);
                    last.admitted_at = last.admitted_at.max(run.admitted_at);
                }
                _ => joined.push(run),
            }
        }
        let excess = joined.len().saturating_sub(SETTLED_RUNS_MAX);
        let dropped = joined.drain(..excess).next_back().map_or(0, |run| run.last);
        let floor = self.floor.max(other.floor).max(dropped);
        Self { runs: joined.into_iter().map(|run| (run.first, run)).collect(), floor }
    }

    /// The runs in rising order.
    pub(crate) fn runs(&self) -> impl ExactSizeIterator<Item = &Run> {
        self.runs.values()
    }

    pub(crate) const fn floor(&self) -> u64 {
        self.floor
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.floor == 0
    }

    pub(crate) fn contains(&self, stamp: u64) -> bool {
        self.runs.range(..=stamp).next_back().is_some_and(|(_, run)| stamp <= run.last)
    }

    pub(crate) const fn is_too_old(&self, stamp: u64) -> bool {
        stamp <= self.floor
    }

    /// Whether a reset settled the charge `stamp`. No charge has the stamp 0.
    pub(crate) fn was_reset(&self, stamp: u64) -> bool {
        self.runs.get(&0).is_some_and(|run| stamp <= run.last)
    }

    /// Whether no further permit should be given at `now`, because so many others wait to be settled.
    pub(crate) fn is_full(&self, now: Timestamp) -> bool {
        SETTLED_RUNS_MAX <= self.runs.len()
            && self.runs.first_key_value().is_some_and(|(_, oldest)| !oldest.is_abandoned(now))
    }

    pub(crate) fn insert(&mut self, stamp: u64, admitted_at: Timestamp, now: Timestamp) {
        let mut run = Run { first: stamp, last: stamp, admitted_at };
        if let Some(next) = stamp.checked_add(1).and_then(|next| self.runs.remove(&next)) {
            run.last = next.last;
            run.admitted_at = run.admitted_at.max(next.admitted_at);
        }
        match self.runs.range_mut(..stamp).next_back() {
            Some((_, before)) if before.last + 1 == stamp => {
                before.last = run.last;
                before.admitted_at = before.admitted_at.max(run.admitted_at);
            }
            _ => {
                self.runs.insert(stamp, run);
            }
        }
        if SETTLED_RUNS_MAX < self.runs.len()
            && let Some(oldest) = self.runs.first_entry()
            && oldest.get().is_abandoned(now)
            // A permit that was settled just now must be recognised if it comes again.
            && !(oldest.get().first..=oldest.get().last).contains(&stamp)
        {
            self.floor = self.floor.max(oldest.remove().last);
        }
    }

    pub(crate) fn forget_expired(&mut self, now: Timestamp) {
        // A later stamp was never admitted earlier, so the oldest run expires first.
        while let Some(oldest) = self.runs.first_entry()
            && oldest.get().is_expired(now)
        {
            oldest.remove();
        }
        if self.runs.is_empty() {
            // Permits up to the floor are older than the runs that just expired.
            self.floor = 0;
        }
    }

    pub(crate) fn is_idle(&self, now: Timestamp) -> bool {
        self.runs.last_key_value().is_none_or(|(_, youngest)| youngest.is_expired(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000);

    #[test]
    fn runs_join_and_stay_few_when_every_permit_is_settled() {
        let mut settled = Settled::default();
        for stamp in [1, 3, 5, 4, 2, 6, 8] {
            settled.insert(stamp, Timestamp::from_secs(stamp), NOW);
        }
        let runs: Vec<_> = settled.runs().map(|run| (run.first, run.last)).collect();
        assert_eq!(runs, [(1, 6), (8, 8)]);
        assert!(settled.contains(4) && !settled.contains(7));
    }

    #[test]
    fn the_union_joins_runs_that_touch_or_overlap() {
        let run = |first, last| Run { first, last, admitted_at: Timestamp::from_secs(last) };
        let settled = |runs: &[Run], floor| Settled::from_runs(runs.to_vec(), floor).unwrap();
        let one = settled(&[run(1, 4), run(8, 9), run(20, 20)], 0);
        let other = settled(&[run(3, 6), run(10, 12), run(14, 14)], 2);
        let union = one.union(&other);
        assert_eq!(union, settled(&[run(1, 6), run(8, 12), run(14, 14), run(20, 20)], 2));
        assert_eq!(union, other.union(&one));
    }

    #[test]
    fn gaps_of_abandoned_permits_are_closed_and_young_ones_are_kept() {
        for (now, abandoned) in [(NOW, false), (NOW + ABANDONED_AFTER, true)] {
            let mut settled = Settled::default();
            for stamp in 0..=SETTLED_RUNS_MAX as u64 {
                settled.insert(2 * stamp + 1, NOW, now);
            }
            assert_eq!(settled.runs().len(), SETTLED_RUNS_MAX + usize::from(!abandoned));
            assert_eq!((settled.is_too_old(1), settled.is_full(now)), (abandoned, !abandoned));
        }
    }
}
