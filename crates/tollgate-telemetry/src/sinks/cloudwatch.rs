//! Metrics to CloudWatch by PutMetricData.
//!
//! A call carries up to 1,000 metrics, and durations are values with counts, so a broker with a handful of policies makes one
//! call per interval. A failed call is kept and sent first next time, with its own timestamp.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use aws_sdk_cloudwatch::Client;
use aws_sdk_cloudwatch::error::DisplayErrorContext;
use aws_sdk_cloudwatch::types::{Dimension, MetricDatum, StandardUnit};
use tollgate::gate::BoxFuture;
use tollgate::{Error, ErrorKind, Span, Timestamp};

use super::aws::AwsOptions;
use super::datum::{self, Datum};
use crate::sink::MeterSink;
use crate::snapshot::Snapshot;

/// The most metrics of one call.
pub const METRICS_MAX: usize = 1_000;

/// The most bytes of one call, by a conservative estimate; the service accepts a million.
pub const CALL_BYTES_MAX: usize = 800_000;

/// The most calls that are kept during an outage; the oldest are dropped beyond it.
pub const PENDING_MAX: usize = 60;

/// Below this interval metrics have a resolution of one second, for fast alarms.
const HIGH_RESOLUTION_BELOW: Span = Span::from_secs(60);

/// Publishes to a namespace.
#[derive(Debug)]
pub struct CloudWatch {
    client: Client,
    namespace: String,
    /// In seconds.
    resolution: i32,
    pending: Mutex<VecDeque<Vec<MetricDatum>>>,
}

impl CloudWatch {
    /// Publishes to `namespace` with `options`, every `interval`.
    ///
    /// # Errors
    /// If no region is set anywhere.
    pub async fn open(
        namespace: impl Into<String>,
        options: &AwsOptions,
        interval: Span,
    ) -> Result<Self, Error> {
        let client = Client::new(&options.config("cloudwatch").await?);
        let resolution = if interval < HIGH_RESOLUTION_BELOW { 1 } else { 60 };
        let namespace = namespace.into();
        Ok(Self { client, namespace, resolution, pending: Mutex::default() })
    }

    /// Queues `calls`. Returns how many old ones were dropped.
    fn keep(&self, calls: Vec<Vec<MetricDatum>>) -> usize {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.extend(calls);
        let over = pending.len().saturating_sub(PENDING_MAX);
        pending.drain(..over);
        over
    }

    fn first(&self) -> Option<Vec<MetricDatum>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).front().cloned()
    }

    fn sent(&self) {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    }

    async fn send(&self) -> Result<(), Error> {
        while let Some(data) = self.first() {
            let call = self.client.put_metric_data().namespace(&self.namespace);
            call.set_metric_data(Some(data)).send().await.map_err(|error| {
                let text = format!("cloudwatch: {}", DisplayErrorContext(&error));
                Error::new(ErrorKind::Unavailable, text)
            })?;
            self.sent();
        }
        Ok(())
    }
}

impl MeterSink for CloudWatch {
    fn name(&self) -> &'static str {
        "cloudwatch"
    }

    fn publish<'a>(
        &'a self,
        delta: &'a Snapshot,
        _: &'a Snapshot,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let data = datum::from_snapshot(delta);
            let dropped = self.keep(calls(&data, delta.at, self.resolution));
            self.send().await?;
            if dropped == 0 {
                return Ok(());
            }
            let text = format!("cloudwatch: {dropped} calls were dropped after an outage");
            Err(Error::new(ErrorKind::Unavailable, text))
        })
    }
}

/// Splits `data` into calls.
fn calls(data: &[Datum], at: Timestamp, resolution: i32) -> Vec<Vec<MetricDatum>> {
    let mut calls: Vec<Vec<MetricDatum>> = Vec::new();
    let mut bytes = 0;
    for datum in data {
        let size = estimate(datum);
        match calls.last_mut() {
            Some(call) if call.len() < METRICS_MAX && bytes + size <= CALL_BYTES_MAX => {
                call.push(to_sdk(datum, at, resolution));
                bytes += size;
            }
            _ => {
                calls.push(vec![to_sdk(datum, at, resolution)]);
                bytes = size;
            }
        }
    }
    calls
}

/// Estimates the bytes of a datum: its names, 64 per value with its count, 256 for the rest.
fn estimate(datum: &Datum) -> usize {
    let names: usize =
        datum.dimensions.iter().map(|(name, value)| 64 + name.len() + 3 * value.len()).sum();
    256 + datum.name.len() + names + 64 * datum.values.len()
}

fn to_sdk(datum: &Datum, at: Timestamp, resolution: i32) -> MetricDatum {
    let dimensions = datum
        .dimensions
        .iter()
        .map(|(name, value)| Dimension::builder().name(name).value(&**value).build());
    let (values, counts): (Vec<f64>, Vec<f64>) = datum.values.iter().copied().unzip();
    let at = SystemTime::UNIX_EPOCH + Duration::from_micros(at.as_micros());
    MetricDatum::builder()
        .metric_name(datum.name)
        .set_dimensions(Some(dimensions.collect()))
        .timestamp(at.into())
        .set_values(Some(values))
        .set_counts(Some(counts))
        .unit(StandardUnit::from(datum.metric.cloudwatch_unit()))
        .storage_resolution(resolution)
        .build()
}
