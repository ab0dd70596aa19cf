//! What `[telemetry]` publishes of the calls of a command: the four counters, to CloudWatch and to a collector.
//!
//! Lines of logs and of metrics would run into the answer and the progress, so a command writes none.

use std::sync::Arc;

use tollgate::{Clock, Error, SystemClock};
use tollgate_aws::metrics::{Metrics, NAMESPACE};
use tollgate_telemetry::sinks::cloudwatch::CloudWatch;
use tollgate_telemetry::sinks::otlp::OtlpMetrics;
use tollgate_telemetry::{Tasks, Telemetry};

use crate::config::TelemetryConfig;
use crate::telemetry::DRAIN_MAX;

/// Counters, and who publishes them.
pub(super) struct Told {
    pub(super) metrics: Arc<Metrics>,
    tasks: Tasks,
}

impl Told {
    /// Starts what `config` names; nothing, if it names nothing.
    pub(super) async fn start(config: &TelemetryConfig) -> Result<Option<Self>, Error> {
        if config.cloudwatch.is_none() && config.otlp.is_none() {
            return Ok(None);
        }
        let (metrics, clock) = (Arc::new(Metrics::new()), Arc::new(SystemClock));
        let mut builder = Telemetry::builder(Arc::clone(&clock) as Arc<dyn Clock>);
        if let Some(cloudwatch) = &config.cloudwatch {
            let interval = cloudwatch.interval;
            let sink = CloudWatch::connect(NAMESPACE, &cloudwatch.place, interval).await?;
            builder = builder.counters(metrics.counters(), sink, interval);
        }
        if let Some(otlp) = &config.otlp {
            let sink = OtlpMetrics::new(&otlp.endpoint, clock.now());
            builder = builder.counters(metrics.counters(), sink, otlp.interval);
        }
        let (_, tasks) = builder.start();
        Ok(Some(Self { metrics, tasks }))
    }

    /// Publishes what is left, also of a command that failed.
    pub(super) async fn drain(self) {
        if !self.tasks.drain(DRAIN_MAX).await {
            tracing::warn!("a telemetry sink did not finish in time");
        }
    }
}
