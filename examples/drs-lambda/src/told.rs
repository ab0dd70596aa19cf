//! Logs and metrics of a function that is frozen between two requests: everything is written before the answer.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use tollgate::{Clock as _, SystemClock, Timestamp};
use tollgate_aws::journal::{Entry, Severity};
use tollgate_aws::metrics::{Metrics, NAMESPACE};
use tollgate_aws::monitor::{Event, Monitor};
use tollgate_telemetry::sinks::emf::Emf;
use tollgate_telemetry::{MeterSink as _, Snapshot};

/// Writes a line of JSON for each event at once. A journal has a thread, which would be frozen with the function.
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
        let entry = Entry::of(event, SystemClock.now());
        let Some(entry) = entry.filter(|entry| self.least <= entry.severity) else { return };
        let Ok(line) = serde_json::to_string(&entry) else { return };
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        // A log that cannot be written has nowhere to say so.
        drop(writeln!(writer, "{line}").and_then(|()| writer.flush()));
    }
}

/// Counts, and writes what was counted since the last time as lines of metrics.
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
        // The answer matters more than the count of it.
        drop(self.sink.publish(&total.since(&last), &total).await);
    }
}
