//! How long decisions took: a histogram that is counted without a lock, and read as percentiles of the last minute.
//!
//! There are four buckets to each doubling, so a percentile is at most a quarter too high and never too low. Whoever reads
//! leaves a copy behind, and the difference to a copy of about a minute ago is what happened since.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tollgate::{Span, Timestamp};

/// Four buckets to each doubling of a number of microseconds, up to more than an hour.
const BUCKETS: usize = 128;

/// Copies are this far apart at least, and this old at most while somebody reads.
const COPY_EVERY: Span = Span::from_secs(5);
const COPY_AGE_MAX: Span = Span::from_mins(1);

type Counts = [u64; BUCKETS];

#[derive(Debug)]
pub(super) struct Latency {
    buckets: [AtomicU64; BUCKETS],
    copies: Mutex<VecDeque<(Timestamp, Counts)>>,
}

/// How long the decisions of some time took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Percentiles {
    /// How many decisions there were.
    pub(crate) decisions: u64,
    /// In how long.
    pub(crate) within: Span,
    /// Half of them took at most this.
    pub(crate) p50: Span,
    /// 99 of 100 took at most this.
    pub(crate) p99: Span,
}

impl Latency {
    pub(super) fn since(now: Timestamp) -> Self {
        Self {
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
            copies: Mutex::new(VecDeque::from([(now, [0; BUCKETS])])),
        }
    }

    pub(super) fn count(&self, took: Span) {
        self.buckets[bucket_of(took.as_micros())].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read(&self, now: Timestamp) -> Percentiles {
        let counts: Counts =
            std::array::from_fn(|place| self.buckets[place].load(Ordering::Relaxed));
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        while 1 < copies.len() && COPY_AGE_MAX < now.since(copies[0].0) {
            copies.pop_front();
        }
        let (since, before) = copies.front().copied().unwrap_or((now, [0; BUCKETS]));
        if copies.back().is_none_or(|(at, _)| COPY_EVERY <= now.since(*at)) {
            copies.push_back((now, counts));
        }
        drop(copies);
        let fresh: Counts =
            std::array::from_fn(|place| counts[place].saturating_sub(before[place]));
        let decisions: u64 = fresh.iter().sum();
        let at = |percent: u64| {
            let rank = (decisions * percent).div_ceil(100);
            let mut seen = 0;
            let place = fresh.iter().position(|count| {
                seen += count;
                rank <= seen
            });
            Span::from_micros(place.map_or(0, top_of))
        };
        Percentiles { decisions, within: now.since(since), p50: at(50), p99: at(99) }
    }
}

/// 0, 1, 2, 3, 4 to 4, 5 to 5, 6, 7, 8 to 9, 10 to 11, …
fn bucket_of(micros: u64) -> usize {
    if micros < 4 {
        return usize::try_from(micros).unwrap_or(0);
    }
    let doubling = micros.ilog2();
    let quarter = (micros >> (doubling - 2)) & 3;
    let place = u64::from(doubling - 1) * 4 + quarter;
    usize::try_from(place).map_or(BUCKETS - 1, |place| place.min(BUCKETS - 1))
}

/// The most microseconds of a bucket.
fn top_of(place: usize) -> u64 {
    if place < 4 {
        return place as u64;
    }
    let (doubling, quarter) = (place / 4 + 1, place as u64 % 4);
    ((4 + quarter + 1) << (doubling - 2)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_ends_where_the_next_begins() {
        for micros in (0..5_000).chain([1 << 20, (1 << 31) + 12_345]) {
            let place = bucket_of(micros);
            let top = top_of(place);
            assert!(micros <= top && top <= micros + micros / 4, "{micros} in {place} up to {top}");
            assert!(place == 0 || top_of(place - 1) < micros, "{micros} in {place}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_of_the_last_minute() {
        let start = Timestamp::from_secs(1_000);
        let latency = Latency::since(start);
        let at = |secs| start + Span::from_secs(secs);
        (0..98).for_each(|_| latency.count(Span::from_micros(3)));
        (0..2).for_each(|_| latency.count(Span::from_millis(10)));
        let read = latency.read(at(10));
        assert_eq!((read.decisions, read.p50), (100, Span::from_micros(3)));
        assert_eq!(read.p99, Span::from_micros(10_239));
        (0..10).for_each(|_| latency.count(Span::from_micros(1)));
        let read = latency.read(at(65));
        assert_eq!((read.decisions, read.p99), (10, Span::from_micros(1)));
        assert_eq!(read.within, Span::from_secs(55));
    }
}
