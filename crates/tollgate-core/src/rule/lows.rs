//! How low a continuous bucket's `used` has been since each of its charges.
//!
//! Giving back must not make room twice. Time has given back of a charge only what would have overflowed without it, so
//! the credit is at most the lowest `used` since the charge, taken just before every later charge and now. That lowest
//! value is the same for every charge between two lows, so a short rising list says it for all of them.
//!
//! The first low is 0: permits from before it get nothing back. A bucket that was empty starts anew, so a list never
//! outlives the charges it is about. An empty list is no record: nothing can be given back.

use smallvec::{SmallVec, smallvec};

use super::ChargeTag;
use crate::bounds::LOWS_MAX;

/// The usage just before the charge with this stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Low {
    pub(crate) stamp: u64,
    pub(crate) used: u64,
}

/// Lows in rising order of both numbers: of those that a later one undercuts, none is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lows(SmallVec<[Low; 4]>);

impl Lows {
    /// A record that starts with the charge `stamp`: earlier permits get nothing back.
    pub(crate) fn starting_at(stamp: u64) -> Self {
        Self(smallvec![Low { stamp, used: 0 }])
    }

    /// The lows as they were stored, or nothing if they are not in rising order.
    pub(crate) fn from_entries(lows: Vec<Low>) -> Option<Self> {
        let rising = |pair: &[Low]| pair[0].stamp < pair[1].stamp && pair[0].used < pair[1].used;
        (!lows.is_empty() && lows.len() <= LOWS_MAX && lows.windows(2).all(rising))
            .then(|| Self(lows.into()))
    }

    pub(crate) fn as_slice(&self) -> &[Low] {
        &self.0
    }

    /// Whether there is no record.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Ends the record, and keeps its room for the next.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// The stamp of the only low, where there is one alone that says 0.
    pub(crate) fn only_start(&self) -> Option<u64> {
        match self.0.as_slice() {
            [Low { stamp, used: 0 }] => Some(*stamp),
            _ => None,
        }
    }

    /// Records the usage just before the charge of `tag`. An empty bucket starts a new record.
    pub(crate) fn record(&mut self, tag: ChargeTag, used: u64) {
        let ChargeTag { stamp, refundable } = tag;
        if used == 0 {
            self.0.clear();
        }
        if self.0.is_empty() {
            if refundable {
                self.0.push(Low { stamp, used: 0 });
            }
            return;
        }
        while self.0.last().is_some_and(|last| used <= last.used) {
            self.0.pop();
        }
        if self.0.last().is_some_and(|last| last.stamp == stamp) {
            return;
        }
        self.0.push(Low { stamp, used });
        if LOWS_MAX < self.0.len() {
            self.merge_closest();
        }
    }

    /// Merges the two neighbours with the smallest difference, the earliest of several, into the later stamp and the
    /// lower low: permits between the two get less back than they could, and none gets more.
    fn merge_closest(&mut self) {
        let differences = self.0.windows(2).map(|pair| pair[1].used - pair[0].used);
        if let Some((index, _)) = differences.enumerate().min_by_key(|(_, difference)| *difference)
        {
            self.0[index + 1].used = self.0[index].used;
            self.0.remove(index);
        }
    }

    /// The lowest `used` just before any charge after `stamp`; nothing if there was none.
    pub(crate) fn lowest_after(&self, stamp: u64) -> Option<u64> {
        self.0.get(self.after(stamp)).map(|low| low.used)
    }

    /// Lowers what was recorded after `stamp` by `credit`, so that the next give-back is judged on the corrected history.
    pub(crate) fn lower_after(&mut self, stamp: u64, credit: u64) {
        let after = self.after(stamp);
        for low in &mut self.0[after..] {
            low.used = low.used.saturating_sub(credit);
        }
        if let Some(lowest) = self.0.get(after).map(|low| low.used) {
            let kept = self.0[..after].partition_point(|low| low.used < lowest);
            self.0.drain(kept..after);
        }
    }

    fn after(&self, stamp: u64) -> usize {
        self.0.partition_point(|low| low.stamp <= stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(lows: &Lows) -> Vec<(u64, u64)> {
        lows.as_slice().iter().map(|low| (low.stamp, low.used)).collect()
    }

    fn record(lows: &mut Lows, stamp: u64, used: u64) {
        lows.record(ChargeTag { stamp, refundable: true }, used);
    }

    #[test]
    fn a_low_takes_the_place_of_those_it_undercuts() {
        let mut lows = Lows::starting_at(1);
        for (stamp, used) in [(2, 10), (3, 30), (4, 20), (5, 20)] {
            record(&mut lows, stamp, used);
        }
        assert_eq!(pairs(&lows), [(1, 0), (2, 10), (5, 20)]);
        assert_eq!(lows.lowest_after(0), Some(0));
        assert_eq!(lows.lowest_after(1), Some(10));
        assert_eq!(lows.lowest_after(4), Some(20));
        assert_eq!(lows.lowest_after(5), None);
    }

    #[test]
    fn a_credit_lowers_what_came_later_and_drops_what_it_undercuts() {
        let mut lows = Lows::starting_at(1);
        for (stamp, used) in [(2, 10), (3, 20), (4, 30)] {
            record(&mut lows, stamp, used);
        }
        lows.lower_after(2, 12);
        assert_eq!(pairs(&lows), [(1, 0), (3, 8), (4, 18)]);
        lows.lower_after(1, 8);
        assert_eq!(pairs(&lows), [(3, 0), (4, 10)]);
    }

    #[test]
    fn a_full_record_merges_its_closest_neighbours_to_the_strict_side() {
        let mut lows = Lows::starting_at(0);
        for stamp in 1..LOWS_MAX as u64 {
            record(&mut lows, stamp, if stamp < 7 { 10 * stamp } else { 10 * stamp - 9 });
        }
        record(&mut lows, 1_000, 100_000);
        assert_eq!(lows.as_slice().len(), LOWS_MAX);
        // 60 and 61 were the closest: the permit between them is judged by 60.
        assert_eq!((lows.lowest_after(5), lows.lowest_after(6)), (Some(60), Some(60)));
        assert_eq!(lows.lowest_after(7), Some(71));
    }
}
