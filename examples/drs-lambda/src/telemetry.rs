//! Logs and metrics, written before the response because Lambda freezes the function afterwards.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use tollgate::clock::SystemClock;
use tollgate::{Clock as _, Timestamp};
use tollgate_drs::journal::{Entry, Severity};
use tollgate_drs::metrics::{Metrics, NAMESPACE};
use tollgate_drs::monitor::{Event, Monitor};
use tollgate_telemetry::sinks::emf::Emf;
use tollgate_telemetry::{MeterSink as _, Snapshot};

/// Writes a line of JSON per event at once. The thread of a journal would be frozen with the function.
pub(crate) struct Lines {
    least: Severity,
    writer: Mutex<Box<dyn Write + Send>>,
}

impl Lines {
    pub(crate) fn new(least: Severity, writer: impl Write + Send + 'static) -> Self {
        Self { least, writer: Mutex::new(Box::new(writer)) }
    }
}

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lines")
    }
}

impl Monitor for Lines {
    fn observe(&self, event: &Event<'_>) {
        let entry = Entry::from_event(event, SystemClock.now());
        let Some(entry) = entry.filter(|entry| self.least <= entry.severity) else { return };
        let Ok(line) = serde_json::to_string(&entry) else { return };
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        drop(writeln!(writer, "{line}").and_then(|()| writer.flush()));
    }
}

/// Publishes the metrics since the last request in EMF.
#[derive(Debug)]
pub(crate) struct Published {
    metrics: Arc<Metrics>,
    sink: Emf,
    last: Mutex<Snapshot>,
}

impl Published {
    pub(crate) fn new(writer: impl Write + Send + 'static) -> Self {
        let sink = Emf::new(NAMESPACE, writer);
        Self { metrics: Arc::default(), sink, last: Mutex::default() }
    }

    pub(crate) fn monitor(&self) -> Arc<dyn Monitor> {
        Arc::clone(&self.metrics) as Arc<dyn Monitor>
    }

    pub(crate) async fn publish(&self, now: Timestamp) {
        let total = self.metrics.counters().snapshot(now);
        let last = {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *last, total.clone())
        };
        // A failure must not affect the response.
        drop(self.sink.publish(&total.since(&last), &total).await);
    }
}
