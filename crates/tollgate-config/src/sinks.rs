//! Starts the configured sinks of telemetry.

use std::io;
use std::sync::Arc;

use tollgate::incident::Recorder;
use tollgate::{Clock, Error, Span, Timestamp};
use tollgate_telemetry::sinks::cloudwatch::CloudWatch;
use tollgate_telemetry::sinks::emf::Emf;
use tollgate_telemetry::sinks::file::{FILE_BYTES_MAX, IncidentFile};
use tollgate_telemetry::sinks::log::Log;
use tollgate_telemetry::sinks::otlp::{OtlpMetrics, OtlpTraces};
use tollgate_telemetry::sinks::sns::Sns;
use tollgate_telemetry::{Tasks, Telemetry};

use crate::TelemetryConfig;

/// The longest that a response waits for sinks to write what they have.
pub const FLUSH_MAX: Span = Span::from_secs(2);

/// Sinks that run.
#[derive(Debug)]
pub struct Running {
    /// The observer that feeds the sinks.
    pub telemetry: Arc<Telemetry>,
    /// The last acquisitions of each subject, for incidents.
    pub recorder: Arc<Recorder>,
    tasks: Tasks,
}

/// Starts every sink that `config` names.
pub async fn start(config: &TelemetryConfig, clock: &Arc<dyn Clock>) -> Result<Running, Error> {
    let recorder = Arc::new(Recorder::new());
    let mut builder = Telemetry::builder(Arc::clone(clock)).recorder(Arc::clone(&recorder));
    builder = builder.records(IncidentFile::new(&config.incident_file, FILE_BYTES_MAX));
    if let Some(least) = config.log {
        builder = builder.records(Log::new(least, io::stderr()));
    }
    if let Some(sns) = &config.sns {
        builder = builder.records(Sns::open(&sns.topic, &sns.place).await?);
    }
    if let Some(cloudwatch) = &config.cloudwatch {
        let interval = cloudwatch.interval;
        let sink = CloudWatch::open(&cloudwatch.namespace, &cloudwatch.place, interval).await?;
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
    /// Waits at most [`FLUSH_MAX`] until the sinks have written what they have. Returns whether all of them did.
    pub async fn flush(&self) -> bool {
        self.tasks.flush(FLUSH_MAX).await
    }

    /// Ends the sinks after they wrote what they have. Returns whether all of them did by `deadline`.
    pub async fn shutdown(self, deadline: Timestamp) -> bool {
        self.tasks.shutdown(deadline).await
    }
}
