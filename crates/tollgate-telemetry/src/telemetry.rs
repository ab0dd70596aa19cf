//! The one observer in front of all sinks.
//!
//! On the path of a decision it counts, and hands events to bounded queues without waiting: what does not fit is dropped
//! and counted. Each sink has a task of its own, so that one that hangs holds up nothing but itself.

mod tasks;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::sync::{mpsc, watch};
use tollgate::incident::Recorder;
use tollgate::{Clock, Event, Observer, Span, Timestamp};

use crate::counters::Counters;
use crate::meters::{Meters, SinkTally};
use crate::record::Record;
use crate::sink::{MeterSink, RecordSink};

pub use tasks::{BATCH_MAX, Tasks, WRITE_MAX};

/// The most events that wait for one sink; further ones are dropped and counted.
pub const QUEUE_MAX: usize = 4_096;

/// Counts decisions, remembers what led to incidents, and feeds sinks.
pub struct Telemetry {
    meters: Arc<Meters>,
    recorder: Option<Arc<Recorder>>,
    queues: Box<[Queue]>,
    clock: Arc<dyn Clock>,
}

struct Queue {
    sink: Arc<dyn RecordSink>,
    records: mpsc::Sender<Record>,
    tally: Arc<SinkTally>,
}

/// Which sinks there are.
#[derive(Debug)]
pub struct Builder {
    clock: Arc<dyn Clock>,
    recorder: Option<Arc<Recorder>>,
    records: Vec<Arc<dyn RecordSink>>,
    meters: Vec<(Arc<dyn MeterSink>, Span)>,
    counters: Vec<(Arc<Counters>, Arc<dyn MeterSink>, Span)>,
}

impl Builder {
    /// Remembers the last acquisitions of each subject in `recorder`, for incidents and for the log of refusals.
    #[must_use]
    pub fn recorder(mut self, recorder: Arc<Recorder>) -> Self {
        self.recorder = Some(recorder);
        self
    }

    /// Gives events to `sink`.
    #[must_use]
    pub fn records(mut self, sink: impl RecordSink) -> Self {
        self.records.push(Arc::new(sink));
        self
    }

    /// Gives the counts to `sink` every `interval`, and once more at the end.
    #[must_use]
    pub fn meters(mut self, sink: impl MeterSink, interval: Span) -> Self {
        self.meters.push((Arc::new(sink), interval));
        self
    }

    /// Gives what somebody else counts to `sink` every `interval`, and once more at the end, apart from our own counts.
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
        let mut tallies = Vec::new();
        let mut queues = Vec::new();
        for sink in self.records {
            let (records, queue) = mpsc::channel(QUEUE_MAX);
            let tally = Arc::new(SinkTally::new(sink.name()));
            tasks.feed(Arc::clone(&sink), queue, Arc::clone(&tally));
            tallies.push(Arc::clone(&tally));
            queues.push(Queue { sink, records, tally });
        }
        for (sink, interval) in self.meters {
            let tally = Arc::new(SinkTally::new(sink.name()));
            let meters = Arc::clone(&meters);
            tasks.publish(sink, interval, move |at| meters.snapshot(at), Arc::clone(&tally));
            tallies.push(tally);
        }
        for (counters, sink, interval) in self.counters {
            let tally = Arc::new(SinkTally::new(sink.name()));
            tasks.publish(sink, interval, move |at| counters.snapshot(at), Arc::clone(&tally));
            tallies.push(tally);
        }
        meters.watch(tallies.into());
        let Self { clock, recorder, .. } = self;
        (Arc::new(Telemetry { meters, recorder, queues: queues.into(), clock }), tasks)
    }
}

impl Telemetry {
    /// Starts a list of sinks that are timed by `clock`.
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

    /// What was counted, for a reader of its own.
    #[must_use]
    pub const fn meters(&self) -> &Arc<Meters> {
        &self.meters
    }

    #[cold]
    fn hand_out(&self, event: &Event<'_>) {
        let wanted = |queue: &&Queue| queue.sink.wants(event);
        let mut queues = self.queues.iter().filter(wanted).peekable();
        if queues.peek().is_none() {
            return;
        }
        let at = self.clock.now();
        let Some(record) = Record::of(event, at, self.recent(event, at)) else { return };
        for queue in queues {
            if queue.records.try_send(record.clone()).is_err() {
                queue.tally.dropped.fetch_add(1, Relaxed);
            }
        }
    }

    /// When the last asks of a subject that is refused now went through.
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
            self.hand_out(event);
        }
    }
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sinks: Vec<_> = self.queues.iter().map(|queue| queue.sink.name()).collect();
        f.debug_struct("Telemetry").field("sinks", &sinks).finish_non_exhaustive()
    }
}
