//! The page for Prometheus, in OpenMetrics text.

use std::fmt::Error as FormatError;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use tollgate::Timestamp;

use super::buckets::{bounds, scale};
use crate::catalogue::{Kind, METRICS};
use crate::meters::Meters;
use crate::snapshot::{Series, Value};

/// The media type of the page.
pub const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns the page of `meters`.
#[must_use]
pub fn page(meters: &Arc<Meters>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Page(Arc::clone(meters))));
    let mut text = String::new();
    match encode(&mut text, &registry) {
        Ok(()) => text,
        // Writing to a string cannot fail; a partial page would be taken for a complete one.
        Err(FormatError) => String::new(),
    }
}

#[derive(Debug)]
struct Page(Arc<Meters>);

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), FormatError> {
        // The page has no timestamps.
        let snapshot = self.0.snapshot(Timestamp::EPOCH);
        for metric in METRICS {
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Duration | Kind::JobDuration | Kind::CallDuration | Kind::Attempts => {
                    MetricType::Histogram
                }
            };
            let mut family = encoder.encode_descriptor(metric.name, metric.help, None, kind)?;
            for series in snapshot.series.iter().filter(|it| it.metric.name == metric.name) {
                encode_series(&mut family, series)?;
            }
        }
        Ok(())
    }
}

fn encode_series(family: &mut MetricEncoder<'_>, series: &Series) -> Result<(), FormatError> {
    let labels: Vec<(&str, &str)> =
        series.metric.labels.iter().copied().zip(series.labels.iter().map(|it| &**it)).collect();
    if labels.is_empty() {
        return encode_value(family, series);
    }
    encode_value(&mut family.encode_family(&labels)?, series)
}

fn encode_value(encoder: &mut MetricEncoder<'_>, series: &Series) -> Result<(), FormatError> {
    match (&series.value, series.metric.kind) {
        (Value::Number(number), Kind::Counter) => {
            encoder.encode_counter::<NoLabelSet, _, u64>(number, None)
        }
        (Value::Number(number), _) => encoder.encode_gauge(number),
        (Value::Buckets { counts, sum }, kind) => {
            let bounds = bounds(kind, counts.len()).into_iter().chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(counts.iter().copied()).collect();
            let (sum, count) = (*sum as f64 / scale(kind), counts.iter().sum());
            encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
        }
    }
}
