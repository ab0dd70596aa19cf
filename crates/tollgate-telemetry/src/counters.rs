//! Counters of other crates, on their way to the same sinks.
//!
//! What a gate decides is counted without a lock ([`Meters`](crate::Meters)). Calls to a service far away are few, so a
//! map behind a lock will do for them, and each crate has a catalogue of its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tollgate::Timestamp;

use crate::catalogue::Metric;
use crate::meters::OTHER;
use crate::snapshot::{Series, Snapshot, Value};

/// The most series of one set; what goes beyond is counted under [`OTHER`].
pub const SERIES_MAX: usize = 4_096;

/// By the place of the metric in its catalogue and the values of its labels.
type Counts = BTreeMap<(usize, Vec<Arc<str>>), u64>;

/// A set of counters from one catalogue.
#[derive(Debug)]
pub struct Counters {
    metrics: &'static [Metric],
    counts: Mutex<Counts>,
}

impl Counters {
    /// Counters of `metrics`, which have counted nothing.
    #[must_use]
    pub const fn new(metrics: &'static [Metric]) -> Self {
        Self { metrics, counts: Mutex::new(BTreeMap::new()) }
    }

    /// Counts one more of the metric at `place` of the catalogue. A label that does not apply is empty.
    pub fn add(&self, place: usize, labels: &[&str]) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (place, labels.iter().map(|label| Arc::from(*label)).collect());
        if SERIES_MAX <= counts.len() && !counts.contains_key(&key) {
            let others = (place, labels.iter().map(|_| Arc::from(OTHER)).collect());
            *counts.entry(others).or_default() += 1;
            return;
        }
        *counts.entry(key).or_default() += 1;
    }

    /// Every series as of now.
    #[must_use]
    pub fn snapshot(&self, at: Timestamp) -> Snapshot {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let series = counts.iter().filter_map(|((place, labels), count)| {
            let metric = self.metrics.get(*place)?;
            Some(Series { metric, labels: labels.clone(), value: Value::Number(*count) })
        });
        Snapshot { at, series: series.collect() }
    }
}
