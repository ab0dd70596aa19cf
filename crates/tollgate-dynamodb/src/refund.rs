//! Lower bounds for refunds of continuous buckets, on a store that charges without reading.
//!
//! A refund must not make room twice, so the core credits at most the lowest `used` since the charge, taken just before every
//! later charge (its *lows*). A charge by expression adds to the full-at level `t` and cannot record what it found. A
//! swap can: it stores the lows with the next stamp `n` and the level `t` that it leaves behind, and so does the write that creates
//! an item. From those two numbers a lower bound follows for every charge since.
//!
//! Let a swap leave `(n0, t0)`, and let a later reader find the item with the next stamp `n`, last written at `a`. A charge
//! by expression only raises `t`: the busy branch adds its cost, and the idle branch sets `t` to now plus the cost, where
//! `t <= now` held. Credits lower `t`, but only swaps give them, and each swap stores a new `(n0, t0)`. So each of the charges
//! `n0..n` found `t >= t0` at a time of at most `a`, which is `used >= t0 - a`. One low, `(n - 1, t0 - a)`, says so for all
//! of them, in the terms of the core: a permit from before the last of these charges gets at most `t0 - a` back, the permit of
//! the last one is bound by the present level alone. If the bucket was empty in between, then `t0 <= a`, and the low is 0:
//! earlier permits get nothing, as they must.
//!
//! An instance also keeps an observation of the item after each of its own charges ([`Observation`]). One with a stamp above `n0` is
//! from after the swap, with only charges in between: it cuts the charges `n0..n` into shorter stretches with their own bounds.
//! An instance that charges and settles alone is as exact as the core.
//!
//! A bound below the true low credits less, never more, so the store is never looser than the core. How much it loses depends
//! on what was charged by expression between two swaps. Two facts about the permit itself narrow that:
//! - The permit of the last charge has no charge after it.
//! - Right after its charge `c` at `p`, at least `c` was used. So every later charge found `used >= c - (a - p)`, whatever is
//!   known about the others ([`refine`]). This is never less than a credit of `c` less the time since the charge.
//!
//! Merging two lows into the later stamp and the lower `used` keeps every bound a lower bound.

use tollgate::Error;
use tollgate::core::bounds::LOWS_MAX;
use tollgate::core::{Permit, Timestamp};

use crate::item::corrupt;
use crate::layout::Level;
use crate::packed::{Packer, unpack};

/// The record of a bucket that a swap leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SwapRecord {
    /// The stamp of the next charge.
    pub(crate) next_stamp: u64,
    /// The time of the swap.
    pub(crate) at: Timestamp,
    /// The usage at that time.
    pub(crate) used: u64,
    /// Stamps, with a lower bound of the usage just before the charge with that stamp; both rising.
    pub(crate) lows: Vec<(u64, u64)>,
}

impl SwapRecord {
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut packer = Packer::default();
        for number in [self.next_stamp, self.at.as_micros(), self.used] {
            packer.push(number);
        }
        let mut before = (0, 0);
        for (stamp, used) in &self.lows {
            packer.push(stamp - before.0);
            packer.push(used - before.1);
            before = (*stamp, *used);
        }
        packer.0
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Error> {
        let numbers = unpack(bytes)?;
        let [next_stamp, at, used, lows @ ..] = numbers.as_slice() else {
            return Err(corrupt("the record of a bucket ends too early"));
        };
        let mut low = (0_u64, 0_u64);
        let lows = lows.as_chunks().0.iter().map(|[stamp, used]| {
            low = (low.0.saturating_add(*stamp), low.1.saturating_add(*used));
            low
        });
        let (at, lows) = (Timestamp::from_micros(*at), lows.collect());
        Ok(Self { next_stamp: *next_stamp, at, used: *used, lows })
    }

    /// Returns the lows of the bucket at `place` in `now`, after a swap that left this; `observations` are of the same item.
    pub(crate) fn lows_at(
        left: Option<&Self>,
        level: &Level,
        place: usize,
        observations: &[Observation],
        now: &Observation,
    ) -> Vec<(u64, u64)> {
        if now.full_at(place) <= level.at(now.at) {
            return Vec::new();
        }
        let Some(left) = left.filter(|left| left.next_stamp <= now.next_stamp) else {
            return vec![(now.next_stamp.saturating_sub(1), 0)];
        };
        let mut lows = left.lows.clone();
        if left.next_stamp == now.next_stamp {
            return lows;
        }
        let mut last = left.next_stamp;
        let mut full_at = level.at(left.at) + u128::from(left.used);
        if lows.is_empty() {
            // What was charged before the swap gets nothing back.
            lows.push((last, 0));
        }
        let between = observations.iter().filter(|sight| sight.next_stamp < now.next_stamp);
        for sight in between.chain([now]) {
            if last < sight.next_stamp {
                let lowest = full_at.saturating_sub(level.at(sight.at));
                record(&mut lows, sight.next_stamp - 1, u64::try_from(lowest).unwrap_or(u64::MAX));
                (last, full_at) = (sight.next_stamp, sight.full_at(place));
            }
        }
        lows
    }
}

/// The buckets of an item as it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Observation {
    pub(crate) next_stamp: u64,
    /// When the item was written.
    pub(crate) at: Timestamp,
    /// When each bucket is full again, by place.
    pub(crate) full_at: Vec<(usize, u128)>,
}

impl Observation {
    fn full_at(&self, place: usize) -> u128 {
        self.full_at.iter().find(|(other, _)| *other == place).map_or(0, |(_, full_at)| *full_at)
    }

    /// Adds `sight` to the `observations` of an item, in order of stamps. Of too many every second one goes, which only makes the
    /// stretches between them longer.
    pub(crate) fn add_to(self, observations: &mut Vec<Self>) {
        if self.full_at.is_empty()
            || observations.last().is_some_and(|last| self.next_stamp <= last.next_stamp)
        {
            return;
        }
        if LOWS_MAX <= observations.len() {
            let mut index = 0;
            observations.retain(|_| {
                index += 1;
                index % 2 == 0
            });
        }
        observations.push(self);
    }
}

/// Records that at least `used` was used just before each charge since the last low, up to the charge `stamp`.
fn record(lows: &mut Vec<(u64, u64)>, stamp: u64, used: u64) {
    while lows.last().is_some_and(|last| used <= last.1) {
        lows.pop();
    }
    if lows.last().is_none_or(|last| last.0 < stamp) {
        lows.push((stamp, used));
        merge(lows, LOWS_MAX);
    }
}

/// Merges the closest neighbours of a list of more than `most`, to the strict side.
fn merge(lows: &mut Vec<(u64, u64)>, most: usize) {
    while most < lows.len() {
        let differences = lows.windows(2).map(|pair| pair[1].1 - pair[0].1).enumerate();
        if let Some((index, _)) = differences.min_by_key(|(_, difference)| *difference) {
            lows[index + 1].1 = lows[index].1;
            lows.remove(index);
        }
    }
}

/// The lows of a bucket whose lows are not recorded. Cost beyond an estimate has no stamp of its own there, so nothing is known
/// of the time after the last charge either.
pub(crate) fn unrecorded_lows(used: u64, next_stamp: u64) -> Vec<(u64, u64)> {
    if used == 0 { Vec::new() } else { vec![(next_stamp, 0)] }
}

/// Raises the `lows` after the charge of `permit` to what that charge of `cost` tokens alone proves, given that the last charge
/// of the bucket came at `at`.
pub(crate) fn refine(
    lows: &mut Vec<(u64, u64)>,
    level: &Level,
    permit: &Permit,
    cost: u64,
    at: Timestamp,
) {
    // Room for what is added: to merge afterwards could take the raised bound away again.
    merge(lows, LOWS_MAX - 2);
    let grant = permit.grant();
    let gone = level.at(at).saturating_sub(level.at(grant.at));
    let proven = u64::try_from(level.cost(cost).saturating_sub(gone)).unwrap_or(u64::MAX);
    let after = lows.partition_point(|low| low.0 <= grant.stamp);
    let above = lows.partition_point(|low| low.1 < proven);
    if above <= after {
        return;
    }
    let raised = (lows[above - 1].0, proven);
    // Charges up to the permit's own keep the bound they had.
    let kept = (grant.stamp, lows[after].1);
    let is_raised = lows.get(above).is_none_or(|next| proven < next.1);
    let is_kept = after == 0 || lows[after - 1].0 < grant.stamp;
    let new = is_kept.then_some(kept).into_iter().chain(is_raised.then_some(raised));
    lows.splice(after..above, new.collect::<Vec<_>>());
}
