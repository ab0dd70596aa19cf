//! Metrics as CloudWatch data: a name, dimensions, and values with their counts.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::buckets::scale;
use crate::catalogue::{Kind, Metric, dimension};
use crate::snapshot::{
    CALL_BOUNDS_MS, DURATION_BOUNDS_US, JOB_BOUNDS_SECS, Series, Snapshot, Value,
};

/// The most values of one datum.
pub(super) const VALUES_MAX: usize = 150;

/// One metric of one period.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Datum {
    pub(super) metric: &'static Metric,
    pub(super) name: &'static str,
    /// Empty for the roll-up.
    pub(super) dimensions: Vec<(String, Arc<str>)>,
    /// At most [`VALUES_MAX`], each with its count.
    pub(super) values: Vec<(f64, f64)>,
}

/// Converts `delta`, with dimensions and as a roll-up without. Unchanged counters are omitted.
pub(super) fn from_snapshot(delta: &Snapshot) -> Vec<Datum> {
    let mut all = Vec::new();
    for same in delta.series.chunk_by(|one, next| one.metric.name == next.metric.name) {
        let metric = same[0].metric;
        let Some((name, dimensions)) = metric.cloudwatch else { continue };
        let series: Vec<&Series> = same
            .iter()
            .filter(|series| metric.kind == Kind::Gauge || !series.value.is_zero())
            .collect();
        let mut groups: BTreeMap<Vec<Arc<str>>, Vec<&Series>> = BTreeMap::new();
        for one in &series {
            let is_dimension = |(label, _): &(&&str, _)| dimensions.contains(*label);
            let values = metric.labels.iter().zip(&one.labels).filter(is_dimension);
            groups
                .entry(values.map(|(_, value)| Arc::clone(value)).collect())
                .or_default()
                .push(one);
        }
        // Without dimensions the only group is the roll-up itself.
        if !dimensions.is_empty() && !series.is_empty() {
            groups.insert(Vec::new(), series);
        }
        for (values, series) in groups {
            let names = dimensions.iter().map(|label| dimension(label));
            // CloudWatch refuses empty labels.
            let dimensions: Vec<_> =
                names.zip(values).filter(|(_, value)| !value.is_empty()).collect();
            for values in combine(metric, &series).chunks(VALUES_MAX) {
                let (dimensions, values) = (dimensions.clone(), values.to_vec());
                all.push(Datum { metric, name, dimensions, values });
            }
        }
    }
    all
}

/// Combines `series`: the sum of counters, each of the gauges, one value per bucket.
fn combine(metric: &Metric, series: &[&Series]) -> Vec<(f64, f64)> {
    let numbers = series.iter().filter_map(|series| match series.value {
        Value::Number(number) => Some(number),
        Value::Buckets { .. } => None,
    });
    match metric.kind {
        Kind::Counter => vec![(numbers.sum::<u64>() as f64, 1.0)],
        Kind::Gauge => numbers.map(|number| (number as f64, 1.0)).collect(),
        Kind::Duration | Kind::JobDuration | Kind::CallDuration | Kind::Attempts => {
            let mut all: Option<Value> = None;
            for one in series {
                match &mut all {
                    None => all = Some(one.value.clone()),
                    Some(all) => all.add(&one.value),
                }
            }
            let Some(Value::Buckets { counts, sum }) = all else { return Vec::new() };
            // One job per interval is the rule, and then the sum is its exact duration.
            if metric.kind == Kind::JobDuration && counts.iter().sum::<u64>() == 1 {
                return vec![(sum as f64 / scale(metric.kind), 1.0)];
            }
            let values = counts.iter().enumerate().filter(|(_, count)| **count != 0);
            values
                .map(|(bucket, count)| (bucket_value(metric.kind, bucket), *count as f64))
                .collect()
        }
    }
}

/// Returns the value of a bucket: its upper bound, so that nothing looks faster than it was; twice the last bound for the
/// bucket above it.
fn bucket_value(kind: Kind, bucket: usize) -> f64 {
    let above = |bounds: &[u64]| {
        let last = bounds.last().copied().unwrap_or_default();
        bounds.get(bucket).copied().unwrap_or(2 * last) as f64
    };
    match kind {
        Kind::Attempts => (bucket + 1) as f64,
        Kind::JobDuration => above(&JOB_BOUNDS_SECS),
        Kind::CallDuration => above(&CALL_BOUNDS_MS),
        _ => above(&DURATION_BOUNDS_US) / 1_000.0,
    }
}
