//! Telemetry of a command: counters to the sinks of `[telemetry]`, a log of JSON lines, and escalations to SNS.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use crate::client::{Builder, ClientOptions};
use crate::journal::{Journal, Severity};
use crate::metrics::{Metrics, NAMESPACE};
use crate::monitor::Monitor;
use crate::{Escalate, SnsEscalation};
use tollgate::clock::SystemClock;
use tollgate::{Clock, Timestamp};
use tollgate_telemetry::sinks::aws::AwsOptions;
use tollgate_telemetry::sinks::cloudwatch::CloudWatch;
use tollgate_telemetry::sinks::otlp::OtlpMetrics;
use tollgate_telemetry::{Tasks, Telemetry as Sinks};

use super::invalid;
use tollgate_config::TelemetryConfig;
use tollgate_config::open::SHUTDOWN_MAX;
use tollgate_terminal::Failure;

/// The log file that means standard error.
const STANDARD_ERROR: &str = "-";

/// The monitors of the calls of a command.
#[derive(Default)]
pub(super) struct Telemetry {
    monitors: Vec<Arc<dyn Monitor>>,
    escalate: Option<Arc<dyn Escalate>>,
    journal: Option<Arc<Journal>>,
    tasks: Option<Tasks>,
}

impl Telemetry {
    /// Starts the sinks that `config`, `settings` and `log` name.
    pub(super) async fn start(
        config: &TelemetryConfig,
        settings: &ClientOptions,
        log: Option<&Path>,
    ) -> Result<Self, Failure> {
        let mut telemetry = Self::default();
        if let Some(path) = log {
            let least = settings.log_level.unwrap_or(Severity::Warning);
            let journal = open(path).and_then(|to| Journal::new(least, Arc::new(SystemClock), to));
            let journal = Arc::new(journal.map_err(|error| {
                invalid(format!(
                    "the log {} cannot be written: {error}; name another file with --log",
                    path.display()
                ))
            })?);
            telemetry.monitors.push(Arc::clone(&journal) as _);
            telemetry.journal = Some(journal);
        }
        telemetry.escalate = escalation(config, settings).await?;
        telemetry.publish(config).await?;
        Ok(telemetry)
    }

    async fn publish(&mut self, config: &TelemetryConfig) -> Result<(), Failure> {
        if config.cloudwatch.is_none() && config.otlp.is_none() {
            return Ok(());
        }
        let (metrics, clock) = (Arc::new(Metrics::new()), Arc::new(SystemClock));
        let mut builder = Sinks::builder(Arc::clone(&clock) as Arc<dyn Clock>);
        if let Some(cloudwatch) = &config.cloudwatch {
            let interval = cloudwatch.interval;
            let sink = CloudWatch::open(NAMESPACE, &cloudwatch.place, interval).await?;
            builder = builder.counters(metrics.counters(), sink, interval);
        }
        if let Some(otlp) = &config.otlp {
            let sink = OtlpMetrics::new(&otlp.endpoint, clock.now());
            builder = builder.counters(metrics.counters(), sink, otlp.interval);
        }
        let (_, tasks) = builder.start();
        self.monitors.push(metrics);
        self.tasks = Some(tasks);
        Ok(())
    }

    /// Adds the monitors and the escalation to a client.
    pub(super) fn attach(&self, mut builder: Builder) -> Builder {
        for monitor in &self.monitors {
            builder = builder.monitor(Arc::clone(monitor));
        }
        match &self.escalate {
            Some(escalate) => builder.escalate(Arc::clone(escalate)),
            None => builder,
        }
    }

    /// Flushes the sinks, also after a failure.
    pub(super) async fn shutdown(self, deadline: Timestamp) {
        if let Some(tasks) = self.tasks
            && !tasks.shutdown(deadline).await
        {
            tracing::warn!("metrics were not published within {SHUTDOWN_MAX}");
        }
        if let Some(journal) = self.journal {
            journal.close();
            match journal.dropped() {
                0 => {}
                lines => tracing::warn!(lines, "lines of the log were dropped"),
            }
        }
    }
}

fn open(path: &Path) -> io::Result<Box<dyn Write + Send>> {
    if path == Path::new(STANDARD_ERROR) {
        return Ok(Box::new(io::stderr()));
    }
    Ok(Box::new(OpenOptions::new().create(true).append(true).open(path)?))
}

/// Connects to the topic of the flag or the variable, or to that of `[telemetry.sns]`.
async fn escalation(
    config: &TelemetryConfig,
    settings: &ClientOptions,
) -> Result<Option<Arc<dyn Escalate>>, Failure> {
    let configured = config.sns.as_ref();
    let place = configured.map_or_else(AwsOptions::default, |sns| sns.place.clone());
    let topic = match (&settings.alerts_topic, configured) {
        (Some(topic), _) => topic,
        (None, Some(sns)) => &sns.topic,
        (None, None) => return Ok(None),
    };
    Ok(Some(Arc::new(SnsEscalation::open(topic, &place).await?)))
}
