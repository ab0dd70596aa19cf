//! Metrics of calls, which tollgate-telemetry publishes in the background.

use std::sync::Arc;

use tollgate_telemetry::{Counters, Kind, Metric};

use crate::monitor::{Event, Monitor};

/// The namespace of the metrics.
pub const NAMESPACE: &str = "DRS/RateLimits";

const ERRORS: usize = 0;
const RETRIES: usize = 1;
const EXHAUSTED: usize = 2;
const CALLS: usize = 3;

const BY_ERROR: &[&str] = &["error_type", "region", "operation"];
const BY_ATTEMPT: &[&str] = &["region", "operation", "attempt", "success"];
const BY_OPERATION: &[&str] = &["region", "operation"];
const BY_OUTCOME: &[&str] = &["region", "operation", "success", "error_code"];

const fn metric(
    name: &'static str,
    cloudwatch: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric { name, help, kind: Kind::Counter, labels, cloudwatch: Some((cloudwatch, labels)) }
}

/// Every metric. CloudWatch gets each of them without dimensions too, because alarms match dimensions exactly.
pub static METRICS: [Metric; 4] = [
    metric(
        "drs_rate_limit_errors",
        "RateLimitErrors",
        BY_ERROR,
        "Attempts that the service refused for a rate or a quota",
    ),
    metric(
        "drs_retry_attempts",
        "RetryAttempts",
        BY_ATTEMPT,
        "Attempts after the first, by number and outcome",
    ),
    metric(
        "drs_retry_exhausted",
        "RetryExhausted",
        BY_OPERATION,
        "Calls that failed in all their attempts",
    ),
    metric("drs_api_calls", "APICallCount", BY_OUTCOME, "Calls, however many attempts they took"),
];

/// Counts calls, retries and errors.
///
/// ```no_run
/// # async fn publish() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use tollgate::clock::SystemClock;
/// use tollgate::{Clock, Span};
/// use tollgate_drs::metrics::{Metrics, NAMESPACE};
/// use tollgate_drs::DrsClient;
/// use tollgate_telemetry::Telemetry;
/// use tollgate_telemetry::sinks::{aws::AwsOptions, cloudwatch::CloudWatch};
///
/// let (metrics, minute) = (Arc::new(Metrics::new()), Span::from_mins(1));
/// let sink = CloudWatch::open(NAMESPACE, &AwsOptions::default(), minute).await?;
/// let telemetry = Telemetry::builder(Arc::new(SystemClock)).counters(metrics.counters(), sink, minute);
/// let (_, tasks) = telemetry.start();
/// let drs = DrsClient::builder("eu-central-1").monitor(metrics).open().await?;
/// # drop(drs);
/// tasks.shutdown(SystemClock.now() + Span::from_secs(5)).await; // at the end, so that nothing is lost
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Metrics(Arc<Counters>);

impl Metrics {
    /// Returns metrics of 0.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Counters::new(&METRICS)))
    }

    /// Returns the counters, for [`Builder::counters`](tollgate_telemetry::Builder::counters).
    #[must_use]
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.0)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Monitor for Metrics {
    fn observe(&self, event: &Event<'_>) {
        let word = |is_success: bool| if is_success { "True" } else { "False" };
        match event {
            Event::Attempted { context, attempt, failure, .. } => {
                let (region, operation) = (&*context.region, context.operation);
                if let Some(failure) = failure.filter(|failure| failure.is_rate_limit()) {
                    self.0.add(ERRORS, &[&failure.code, region, operation]);
                }
                if 0 < *attempt {
                    self.0.add(
                        RETRIES,
                        &[region, operation, &attempt.to_string(), word(failure.is_none())],
                    );
                }
            }
            Event::Exhausted(exhausted) => {
                self.0.add(EXHAUSTED, &[&exhausted.context.region, exhausted.context.operation]);
            }
            Event::Called { context, error } => {
                let code = error.map_or("", |error| error.code());
                self.0
                    .add(CALLS, &[&context.region, context.operation, word(error.is_none()), code]);
            }
            Event::Retrying { .. }
            | Event::LookedUp { .. }
            | Event::FailedOpen { .. }
            | Event::Throttled { .. } => {}
        }
    }
}
