//! The latency of decisions: a lock-free histogram, read as percentiles of the last minute.
//!
//! There are four buckets per doubling, so a percentile is at most a quarter too high and never too low. Each read keeps a
//! copy; the difference to a copy of about a minute ago is the recent latency.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tollgate::{Span, Timestamp};
use tollgate_protocol::json::LatencyStats;

/// Four buckets per doubling of the microseconds, up to more than an hour.
const BUCKETS: usize = 128;

/// The least distance of two copies, and their maximum age.
const COPY_EVERY: Span = Span::from_secs(5);
const COPY_AGE_MAX: Span = Span::from_mins(1);

type Counts = [u64; BUCKETS];

#[derive(Debug)]
pub(super) struct Latency {
    buckets: [AtomicU64; BUCKETS],
    copies: Mutex<VecDeque<(Timestamp, Counts)>>,
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

    pub(super) fn read(&self, now: Timestamp) -> LatencyStats {
        let counts: Counts =
            std::array::from_fn(|index| self.buckets[index].load(Ordering::Relaxed));
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
            std::array::from_fn(|index| counts[index].saturating_sub(before[index]));
        let decisions: u64 = fresh.iter().sum();
        let percentile = |percent: u64| {
            let rank = (decisions * percent).div_ceil(100);
            let mut seen = 0;
            let bucket = fresh.iter().position(|count| {
                seen += count;
                rank <= seen
            });
            bucket.map_or(0, top_of)
        };
        LatencyStats {
            decisions,
            within_ms: now.since(since).as_millis_ceil(),
            p50_us: percentile(50),
            p99_us: percentile(99),
        }
    }
}

/// 0, 1, 2, 3, 4 to 4, 5 to 5, 6, 7, 8 to 9, 10 to 11, …
fn bucket_of(micros: u64) -> usize {
    if micros < 4 {
        return usize::try_from(micros).unwrap_or(0);
    }
    let doubling = micros.ilog2();
    let quarter = (micros >> (doubling - 2)) & 3;
    let bucket = u64::from(doubling - 1) * 4 + quarter;
    usize::try_from(bucket).map_or(BUCKETS - 1, |bucket| bucket.min(BUCKETS - 1))
}

/// Returns the largest value of a bucket, in microseconds.
fn top_of(bucket: usize) -> u64 {
    if bucket < 4 {
        return bucket as u64;
    }
    let (doubling, quarter) = (bucket / 4 + 1, bucket as u64 % 4);
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
        assert_eq!((read.decisions, read.p50_us, read.p99_us), (100, 3, 10_239));
        (0..10).for_each(|_| latency.count(Span::from_micros(1)));
        let read = latency.read(at(65));
        assert_eq!((read.decisions, read.p99_us, read.within_ms), (10, 1, 55_000));
    }
}
