//! Starting the configured sinks.

use std::io;
use std::sync::Arc;

use tollgate::incident::Recorder;
use tollgate::{Clock, Error, Span};
use tollgate_telemetry::sinks::cloudwatch::CloudWatch;
use tollgate_telemetry::sinks::emf::Emf;
use tollgate_telemetry::sinks::file::{FILE_BYTES_MAX, IncidentFile};
use tollgate_telemetry::sinks::log::Log;
use tollgate_telemetry::sinks::otlp::{OtlpMetrics, OtlpTraces};
use tollgate_telemetry::sinks::sns::Sns;
use tollgate_telemetry::{Tasks, Telemetry};

use crate::config::TelemetryConfig;

/// The longest that sinks may take at the end to write what they have.
pub(crate) const DRAIN_MAX: Span = Span::from_secs(5);

/// The longest that an answer waits for sinks to write what they have.
pub(crate) const FLUSH_MAX: Span = Span::from_secs(2);

/// Sinks that run.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) recorder: Arc<Recorder>,
    tasks: Tasks,
}

/// Starts everything that `config` names.
pub(crate) async fn start(
    config: &TelemetryConfig,
    clock: &Arc<dyn Clock>,
) -> Result<Running, Error> {
    let recorder = Arc::new(Recorder::new());
    let mut builder = Telemetry::builder(Arc::clone(clock)).recorder(Arc::clone(&recorder));
    builder = builder.records(IncidentFile::new(&config.incident_file, FILE_BYTES_MAX));
    if let Some(least) = config.log {
        builder = builder.records(Log::new(least, io::stderr()));
    }
    if let Some(sns) = &config.sns {
        builder = builder.records(Sns::connect(&sns.topic, &sns.place).await?);
    }
    if let Some(cloudwatch) = &config.cloudwatch {
        let interval = cloudwatch.interval;
        let sink = CloudWatch::connect(&cloudwatch.namespace, &cloudwatch.place, interval).await?;
        builder = builder.meters(sink, interval);
    }
    if let Some(emf) = &config.emf {
        builder = builder.meters(Emf::new(&emf.namespace, io::stdout()), emf.interval);
    }
    if let Some(otlp) = &config.otlp {
        let metrics = OtlpMetrics::new(&otlp.endpoint, clock.now());
        builder = builder.meters(metrics, otlp.interval);
        if otlp.traces {
            builder = builder.records(OtlpTraces::new(&otlp.endpoint));
        }
    }
    let (telemetry, tasks) = builder.start();
    Ok(Running { telemetry, recorder, tasks })
}

impl Running {
    /// Waits until the sinks have written what they have, for 2 s at most. Says whether all of them could.
    pub(crate) async fn flush(&self) -> bool {
        self.tasks.flush(FLUSH_MAX).await
    }

    /// Lets the sinks write what they have. Says whether all of them could.
    pub(crate) async fn drain(self) -> bool {
        self.tasks.drain(DRAIN_MAX).await
    }
}
