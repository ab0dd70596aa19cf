//! Counters of other crates for the same sinks.
//!
//! Decisions are counted without a lock ([`Meters`](crate::Meters)). Calls to remote services are few, so a map behind a
//! lock is enough for them. Each crate has its own catalogue.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tollgate::Timestamp;

use crate::catalogue::Metric;
use crate::meters::OTHER;
use crate::snapshot::{Series, Snapshot, Value};

/// The most series of one set; further ones are counted as [`OTHER`].
pub const SERIES_MAX: usize = 4_096;

/// By the index of the metric in its catalogue, and the values of its labels.
type Counts = BTreeMap<(usize, Vec<Arc<str>>), u64>;

/// A set of counters from one catalogue.
#[derive(Debug)]
pub struct Counters {
    metrics: &'static [Metric],
    counts: Mutex<Counts>,
}

impl Counters {
    /// Creates counters of `metrics`.
    #[must_use]
    pub const fn new(metrics: &'static [Metric]) -> Self {
        Self { metrics, counts: Mutex::new(BTreeMap::new()) }
    }

    /// Increments the metric at `index` of the catalogue. A label that does not apply is empty.
    pub fn add(&self, index: usize, labels: &[&str]) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (index, labels.iter().map(|label| Arc::from(*label)).collect());
        if SERIES_MAX <= counts.len() && !counts.contains_key(&key) {
            let others = (index, labels.iter().map(|_| Arc::from(OTHER)).collect());
            *counts.entry(others).or_default() += 1;
            return;
        }
        *counts.entry(key).or_default() += 1;
    }

    /// Returns all series.
    #[must_use]
    pub fn snapshot(&self, at: Timestamp) -> Snapshot {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let series = counts.iter().filter_map(|((index, labels), count)| {
            let metric = self.metrics.get(*index)?;
            Some(Series { metric, labels: labels.clone(), value: Value::Number(*count) })
        });
        Snapshot { at, series: series.collect() }
    }
}
