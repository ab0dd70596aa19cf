//! Values by bucket of time, in a bounded number of buckets.

use std::collections::VecDeque;

use tollgate::{Span, Timestamp};
use tollgate_protocol::json::HistoryStep;

use crate::bounds::{HISTORY_COARSE_BUCKETS_MAX, HISTORY_FINE_BUCKETS_MAX};

/// The number of a bucket since the Unix epoch.
pub(super) type Bucket = u32;

/// Returns the bucket of `at`.
pub(super) fn bucket_of(at: Timestamp, step: HistoryStep) -> Bucket {
    Bucket::try_from(at.as_micros() / step.span().as_micros()).unwrap_or(Bucket::MAX)
}

/// Returns when `bucket` starts.
pub(super) fn start_of(bucket: Bucket, step: HistoryStep) -> Timestamp {
    Timestamp::from_micros(u64::from(bucket) * step.span().as_micros())
}

/// Returns the oldest bucket that is kept beside `newest`.
fn oldest_kept(newest: Bucket, step: HistoryStep) -> Bucket {
    let buckets_max = match step {
        HistoryStep::Fine => HISTORY_FINE_BUCKETS_MAX,
        HistoryStep::Coarse => HISTORY_COARSE_BUCKETS_MAX,
    };
    (newest + 1).saturating_sub(Bucket::try_from(buckets_max).unwrap_or(Bucket::MAX))
}

/// A range of buckets, up to that of the present.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) step: HistoryStep,
    pub(super) first: Bucket,
    pub(super) last: Bucket,
}

impl Range {
    /// Returns the buckets from `since` to `now` that are kept by a history that `began`.
    pub(super) fn new(
        step: HistoryStep,
        since: Timestamp,
        began: Timestamp,
        now: Timestamp,
    ) -> Self {
        let last = bucket_of(now, step);
        let kept = oldest_kept(last, step);
        let first = bucket_of(since.max(began), step).max(kept).min(last);
        Self { step, first, last }
    }

    pub(super) fn start(self) -> Timestamp {
        start_of(self.first, self.step)
    }

    pub(super) fn len(self) -> usize {
        usize::try_from(self.last - self.first + 1).unwrap_or(usize::MAX)
    }
}

/// Returns when the fine bucket after that of `now` starts.
pub(super) fn next_bucket(now: Timestamp) -> Timestamp {
    start_of(bucket_of(now, HistoryStep::Fine) + 1, HistoryStep::Fine)
}

/// Returns whether the clock stepped back from `last` to `now` by more than a bucket.
pub(super) fn has_stepped_back(last: Timestamp, now: Timestamp) -> bool {
    let step: Span = HistoryStep::Fine.span();
    step < last.since(now)
}

/// The values of the buckets that have one, oldest first.
#[derive(Debug)]
pub(super) struct Ring<T> {
    step: HistoryStep,
    values: VecDeque<(Bucket, T)>,
}

impl<T: Default> Ring<T> {
    pub(super) const fn new(step: HistoryStep) -> Self {
        Self { step, values: VecDeque::new() }
    }

    /// Returns the value of the bucket of `at`, or of the newest one if that is later.
    pub(super) fn value_at(&mut self, at: Timestamp) -> &mut T {
        let bucket = bucket_of(at, self.step);
        if self.values.back().is_none_or(|(newest, _)| *newest < bucket) {
            let kept = oldest_kept(bucket, self.step);
            while self.values.front().is_some_and(|(oldest, _)| *oldest < kept) {
                self.values.pop_front();
            }
            self.values.push_back((bucket, T::default()));
        }
        &mut self.values.back_mut().expect("a bucket was pushed if there was none").1
    }

    /// Returns the buckets of `range` that have a value, by their index in it.
    pub(super) fn read(&self, range: Range) -> impl Iterator<Item = (usize, &T)> {
        let values = self
            .values
            .iter()
            .filter(move |(bucket, _)| (range.first..=range.last).contains(bucket));
        values.map(move |(bucket, value)| {
            (usize::try_from(bucket - range.first).unwrap_or(usize::MAX), value)
        })
    }

    pub(super) fn clear(&mut self) {
        self.values.clear();
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }
}
