//! Snapshots of all metrics.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate::Timestamp;

use crate::catalogue::{Kind, Metric};

/// The upper bounds of the buckets of a duration, in microseconds; another bucket is above.
pub const DURATION_BOUNDS_US: [u64; 16] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000,
];

/// The upper bounds of the buckets of the duration of a job, in seconds; another bucket is above.
pub const JOB_BOUNDS_SECS: [u64; 16] =
    [1, 2, 5, 10, 20, 30, 60, 90, 120, 300, 600, 1_800, 3_600, 14_400, 43_200, 86_400];

/// The upper bounds of the buckets of the duration of a call to a provider, in milliseconds; another bucket is above.
pub const CALL_BOUNDS_MS: [u64; 16] = [
    1, 5, 10, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 20_000, 30_000, 60_000, 120_000,
    300_000,
];

/// The number of buckets of a duration.
pub(crate) const DURATION_BUCKETS: usize = DURATION_BOUNDS_US.len() + 1;

/// Attempts from this one on are counted together.
pub const ATTEMPTS_MAX: usize = 8;

/// All series at one time.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// When it was taken.
    pub at: Timestamp,
    /// The series, in the order of [`METRICS`](crate::METRICS).
    pub series: Vec<Series>,
}

/// One metric for one set of labels.
#[derive(Clone, Debug)]
pub struct Series {
    /// The metric.
    pub metric: &'static Metric,
    /// The values of the metric's labels, in their order.
    pub labels: Vec<Arc<str>>,
    /// The value.
    pub value: Value,
}

/// The value of a series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A counter or a gauge.
    Number(u64),
    /// A histogram.
    Buckets {
        /// The count of each bucket, not cumulative.
        counts: Vec<u64>,
        /// The sum, in microseconds or attempts.
        sum: u64,
    },
}

impl Value {
    fn minus(&self, earlier: &Self) -> Self {
        match (self, earlier) {
            (Self::Number(now), Self::Number(then)) => Self::Number(now.saturating_sub(*then)),
            (Self::Buckets { counts, sum }, Self::Buckets { counts: then, sum: sum_then }) => {
                let counts = counts.iter().zip(then).map(|(now, then)| now.saturating_sub(*then));
                Self::Buckets { counts: counts.collect(), sum: sum.saturating_sub(*sum_then) }
            }
            _ => self.clone(),
        }
    }

    /// Adds `other`.
    pub fn add(&mut self, other: &Self) {
        match (self, other) {
            (Self::Number(number), Self::Number(more)) => *number += more,
            (Self::Buckets { counts, sum }, Self::Buckets { counts: more, sum: sum_more }) => {
                counts.iter_mut().zip(more).for_each(|(count, more)| *count += more);
                *sum += sum_more;
            }
            _ => {}
        }
    }

    /// Returns whether nothing was counted.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        match self {
            Self::Number(number) => *number == 0,
            Self::Buckets { counts, .. } => counts.iter().all(|count| *count == 0),
        }
    }
}

impl Snapshot {
    /// Returns the difference to `earlier`; gauges keep their value.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let key = |series: &Series| (series.metric.name, series.labels.clone());
        let then: HashMap<_, _> =
            earlier.series.iter().map(|series| (key(series), &series.value)).collect();
        let series = self.series.iter().map(|series| {
            let value = match then.get(&key(series)) {
                Some(then) if series.metric.kind != Kind::Gauge => series.value.minus(then),
                _ => series.value.clone(),
            };
            Series { value, ..series.clone() }
        });
        Self { at: self.at, series: series.collect() }
    }

    /// Returns the value of the metric `name` with `labels`.
    #[must_use]
    pub fn get(&self, name: &str, labels: &[&str]) -> Option<&Value> {
        let same = |series: &&Series| {
            series.metric.name == name
                && series.labels.iter().map(|label| &**label).eq(labels.iter().copied())
        };
        self.series.iter().find(same).map(|series| &series.value)
    }
}
