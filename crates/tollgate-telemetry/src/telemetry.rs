//! The observer in front of all sinks.
//!
//! On the path of a decision it counts, and adds events to bounded queues without waiting; events that do not fit are
//! dropped and counted. Each sink has its own task, so that one that hangs does not affect the others.

mod tasks;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::sync::{mpsc, watch};
use tollgate::incident::Recorder;
use tollgate::observe::{Event, Observer};
use tollgate::{Clock, Span, Timestamp};

use crate::counters::Counters;
use crate::meters::{Meters, SinkCounters};
use crate::record::Record;
use crate::sink::{MeterSink, RecordSink};

pub use tasks::{BATCH_MAX, Tasks, WRITE_MAX};

/// The most queued events of one sink; further ones are dropped and counted.
pub const QUEUE_MAX: usize = 4_096;

/// Counts decisions, records history for incidents, and feeds sinks.
pub struct Telemetry {
    meters: Arc<Meters>,
    recorder: Option<Arc<Recorder>>,
    queues: Box<[Queue]>,
    clock: Arc<dyn Clock>,
}

struct Queue {
    sink: Arc<dyn RecordSink>,
    records: mpsc::Sender<Record>,
    counters: Arc<SinkCounters>,
}

/// Builds a [`Telemetry`].
#[derive(Debug)]
pub struct Builder {
    clock: Arc<dyn Clock>,
    recorder: Option<Arc<Recorder>>,
    records: Vec<Arc<dyn RecordSink>>,
    meters: Vec<(Arc<dyn MeterSink>, Span)>,
    counters: Vec<(Arc<Counters>, Arc<dyn MeterSink>, Span)>,
}

impl Builder {
    /// Records the last acquisitions of each subject in `recorder`, for incidents and for logged denials.
    #[must_use]
    pub fn recorder(mut self, recorder: Arc<Recorder>) -> Self {
        self.recorder = Some(recorder);
        self
    }

    /// Sends events to `sink`.
    #[must_use]
    pub fn records(mut self, sink: impl RecordSink) -> Self {
        self.records.push(Arc::new(sink));
        self
    }

    /// Publishes the metrics to `sink` every `interval`, and at shutdown.
    #[must_use]
    pub fn meters(mut self, sink: impl MeterSink, interval: Span) -> Self {
        self.meters.push((Arc::new(sink), interval));
        self
    }

    /// Publishes `counters` of another crate to `sink` every `interval`, and at shutdown.
    #[must_use]
    pub fn counters(
        mut self,
        counters: Arc<Counters>,
        sink: impl MeterSink,
        interval: Span,
    ) -> Self {
        self.counters.push((counters, Arc::new(sink), interval));
        self
    }

    /// Starts the sinks on the current tokio runtime.
    #[must_use]
    pub fn start(self) -> (Arc<Telemetry>, Tasks) {
        let meters = Arc::new(Meters::new());
        let closing = watch::Sender::new(false);
        let mut tasks = Tasks::new(closing, Arc::clone(&self.clock));
        let mut sinks = Vec::new();
        let mut queues = Vec::new();
        for sink in self.records {
            let (records, queue) = mpsc::channel(QUEUE_MAX);
            let counts = Arc::new(SinkCounters::new(sink.name()));
            tasks.feed(Arc::clone(&sink), queue, Arc::clone(&counts));
            sinks.push(Arc::clone(&counts));
            queues.push(Queue { sink, records, counters: counts });
        }
        for (sink, interval) in self.meters {
            let counts = Arc::new(SinkCounters::new(sink.name()));
            let meters = Arc::clone(&meters);
            tasks.publish(sink, interval, move |at| meters.snapshot(at), Arc::clone(&counts));
            sinks.push(counts);
        }
        for (counters, sink, interval) in self.counters {
            let counts = Arc::new(SinkCounters::new(sink.name()));
            tasks.publish(sink, interval, move |at| counters.snapshot(at), Arc::clone(&counts));
            sinks.push(counts);
        }
        meters.add_sinks(sinks.into());
        let Self { clock, recorder, .. } = self;
        (Arc::new(Telemetry { meters, recorder, queues: queues.into(), clock }), tasks)
    }
}

impl Telemetry {
    /// Returns a builder; sinks are timed by `clock`.
    #[must_use]
    pub fn builder(clock: Arc<dyn Clock>) -> Builder {
        Builder {
            clock,
            recorder: None,
            records: Vec::new(),
            meters: Vec::new(),
            counters: Vec::new(),
        }
    }

    /// Returns the metrics.
    #[must_use]
    pub const fn meters(&self) -> &Arc<Meters> {
        &self.meters
    }

    #[cold]
    fn enqueue(&self, event: &Event<'_>) {
        let wanted = |queue: &&Queue| queue.sink.wants(event);
        let mut queues = self.queues.iter().filter(wanted).peekable();
        if queues.peek().is_none() {
            return;
        }
        let at = self.clock.now();
        let Some(record) = Record::from_event(event, at, self.recent(event, at)) else { return };
        for queue in queues {
            if queue.records.try_send(record.clone()).is_err() {
                queue.counters.dropped.fetch_add(1, Relaxed);
            }
        }
    }

    /// Returns the times of the last admitted asks of a subject that is denied now.
    fn recent(&self, event: &Event<'_>, at: Timestamp) -> Vec<Timestamp> {
        match (&self.recorder, event) {
            (Some(recorder), Event::Denied { ask, .. }) => {
                let (_, last) = recorder.about(ask.policy(), ask.subject(), at);
                last.iter().filter(|one| one.admitted).map(|one| one.at).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl Observer for Telemetry {
    #[inline]
    fn observe(&self, event: &Event<'_>) {
        self.meters.observe(event);
        if let Some(recorder) = &self.recorder {
            recorder.observe(event);
        }
        if !self.queues.is_empty() {
            self.enqueue(event);
        }
    }
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sinks: Vec<_> = self.queues.iter().map(|queue| queue.sink.name()).collect();
        f.debug_struct("Telemetry").field("sinks", &sinks).finish_non_exhaustive()
    }
}
