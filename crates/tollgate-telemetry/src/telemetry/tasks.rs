//! The tasks of the sinks, and their shutdown.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tollgate::gate::BoxFuture;
use tollgate::{Clock, Error, Span, Timestamp};

use crate::meters::SinkCounters;
use crate::record::Record;
use crate::sink::{MeterSink, RecordSink};
use crate::snapshot::Snapshot;

/// The most records in one write.
pub const BATCH_MAX: usize = 128;

/// The timeout of a write; it is counted as failed then.
pub const WRITE_MAX: Span = Span::from_secs(30);

/// The tasks of all sinks. Dropping it aborts them.
#[derive(Debug)]
pub struct Tasks {
    closing: watch::Sender<bool>,
    clock: Arc<dyn Clock>,
    running: Vec<JoinHandle<()>>,
    /// One per task, which drops the received sender once its queue is written.
    flushes: Vec<mpsc::Sender<oneshot::Sender<()>>>,
}

impl Tasks {
    pub(super) fn new(closing: watch::Sender<bool>, clock: Arc<dyn Clock>) -> Self {
        Self { closing, clock, running: Vec::new(), flushes: Vec::new() }
    }

    /// Waits until every sink has written its queue and the current metrics. Returns false on `timeout`. A process that is
    /// frozen between calls, as on AWS Lambda, calls this before it responds.
    pub async fn flush(&self, timeout: Span) -> bool {
        let all = async {
            let mut asked = Vec::new();
            for task in &self.flushes {
                let (done, written) = oneshot::channel();
                // A task that ended has nothing left to write.
                if task.send(done).await.is_ok() {
                    asked.push(written);
                }
            }
            for written in asked {
                drop(written.await);
            }
        };
        tollgate::internal::timeout(&*self.clock, timeout, all).await.is_some()
    }

    /// Returns the receiver of flush requests for a new task.
    fn flush_requests(&mut self) -> mpsc::Receiver<oneshot::Sender<()>> {
        let (flush, flushed) = mpsc::channel(1);
        self.flushes.push(flush);
        flushed
    }

    /// Ends the tasks after every sink has written its queue. Returns false if some did not by `deadline`.
    pub async fn shutdown(mut self, deadline: Timestamp) -> bool {
        self.closing.send_replace(true);
        let all = async {
            for task in &mut self.running {
                // A task that panicked has nothing left to write.
                drop(task.await);
            }
        };
        tollgate::internal::timeout_at(&*self.clock, deadline, all).await.is_some()
    }

    pub(super) fn feed(
        &mut self,
        sink: Arc<dyn RecordSink>,
        mut queue: mpsc::Receiver<Record>,
        counters: Arc<SinkCounters>,
    ) {
        let (clock, mut closing) = (Arc::clone(&self.clock), self.closing.subscribe());
        let mut flushed = self.flush_requests();
        self.running.push(tokio::spawn(async move {
            let mut batch = Vec::new();
            loop {
                let taken = tokio::select! {
                    // A flush completes only when the queue is empty.
                    biased;
                    () = closed(&mut closing), if !queue.is_closed() => {
                        queue.close();
                        continue;
                    }
                    taken = queue.recv_many(&mut batch, BATCH_MAX) => taken,
                    Some(done) = flushed.recv() => {
                        drop(done);
                        continue;
                    }
                };
                if taken == 0 {
                    return;
                }
                attempt(&*clock, &counters, sink.write(&batch)).await;
                batch.clear();
            }
        }));
    }

    pub(super) fn publish(
        &mut self,
        sink: Arc<dyn MeterSink>,
        interval: Span,
        read: impl Fn(Timestamp) -> Snapshot + Send + 'static,
        counters: Arc<SinkCounters>,
    ) {
        let (clock, mut closing) = (Arc::clone(&self.clock), self.closing.subscribe());
        let mut flushed = self.flush_requests();
        self.running.push(tokio::spawn(async move {
            let mut published = Snapshot::default();
            loop {
                let mut asked = None;
                let is_last = tokio::select! {
                    () = clock.sleep_until(clock.now() + interval) => false,
                    () = closed(&mut closing) => true,
                    Some(done) = flushed.recv() => {
                        asked = Some(done);
                        false
                    }
                };
                let total = read(clock.now());
                let delta = total.since(&published);
                attempt(&*clock, &counters, sink.publish(&delta, &total)).await;
                published = total;
                drop(asked);
                if is_last {
                    return;
                }
            }
        }));
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.running.iter().for_each(JoinHandle::abort);
    }
}

async fn closed(closing: &mut watch::Receiver<bool>) {
    // A dropped sender means the same.
    drop(closing.wait_for(|is_closing| *is_closing).await);
}

/// Runs `write` with a timeout and counts failures. Logs when writes begin to fail, and when they succeed again.
async fn attempt(
    clock: &dyn Clock,
    counters: &SinkCounters,
    write: BoxFuture<'_, Result<(), Error>>,
) {
    let result = match tollgate::internal::timeout(clock, WRITE_MAX, write).await {
        Some(result) => result.map_err(|error| error.to_string()),
        None => Err(format!("no response within {WRITE_MAX}")),
    };
    let was_failing = counters.is_failing.swap(result.is_err(), Relaxed);
    match result {
        Err(error) => {
            counters.failures.fetch_add(1, Relaxed);
            if !was_failing {
                tracing::warn!(sink = counters.name(), %error, "telemetry is not written");
            }
        }
        Ok(()) if was_failing => {
            tracing::warn!(sink = counters.name(), "telemetry is written again");
        }
        Ok(()) => {}
    }
}
