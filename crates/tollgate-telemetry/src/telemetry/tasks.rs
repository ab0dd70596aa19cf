//! The tasks behind the queues, and how they end.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tollgate::{BoxFuture, Clock, Error, Span, Timestamp};

use crate::meters::SinkTally;
use crate::record::Record;
use crate::sink::{MeterSink, RecordSink};
use crate::snapshot::Snapshot;

/// The most records in one write.
pub const BATCH_MAX: usize = 128;

/// The longest that one write of a sink may take; then it is given up and counted as failed.
pub const WRITE_MAX: Span = Span::from_secs(30);

/// The tasks of all sinks. Dropping it ends them where they are.
#[derive(Debug)]
pub struct Tasks {
    closing: watch::Sender<bool>,
    clock: Arc<dyn Clock>,
    running: Vec<JoinHandle<()>>,
    /// One for each task, which drops what it is sent when it has written what it had.
    flushes: Vec<mpsc::Sender<oneshot::Sender<()>>>,
}

impl Tasks {
    pub(super) fn new(closing: watch::Sender<bool>, clock: Arc<dyn Clock>) -> Self {
        Self { closing, clock, running: Vec::new(), flushes: Vec::new() }
    }

    /// Waits until every sink has written what was counted and queued by now, for at most `within`. Says whether all of them
    /// did. A process that is frozen between its calls, as on AWS Lambda, calls this before it answers.
    pub async fn flush(&self, within: Span) -> bool {
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
        tollgate::within(&*self.clock, within, all).await.is_some()
    }

    /// What a new task is asked to write through.
    fn flushed(&mut self) -> mpsc::Receiver<oneshot::Sender<()>> {
        let (flush, flushed) = mpsc::channel(1);
        self.flushes.push(flush);
        flushed
    }

    /// Lets every sink write what it has, for at most `within`. Says whether all of them finished.
    pub async fn drain(mut self, within: Span) -> bool {
        self.closing.send_replace(true);
        let deadline = self.clock.sleep_until(self.clock.now() + within);
        let all = async {
            for task in &mut self.running {
                // A task that panicked has nothing left to write.
                drop(task.await);
            }
        };
        tokio::select! {
            biased;
            () = all => true,
            () = deadline => false,
        }
    }

    pub(super) fn feed(
        &mut self,
        sink: Arc<dyn RecordSink>,
        mut queue: mpsc::Receiver<Record>,
        tally: Arc<SinkTally>,
    ) {
        let (clock, mut closing) = (Arc::clone(&self.clock), self.closing.subscribe());
        let mut flushed = self.flushed();
        self.running.push(tokio::spawn(async move {
            let mut batch = Vec::new();
            loop {
                let taken = tokio::select! {
                    // A flush is answered only when the queue is empty.
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
                attempt(&*clock, &tally, sink.write(&batch)).await;
                batch.clear();
            }
        }));
    }

    pub(super) fn publish(
        &mut self,
        sink: Arc<dyn MeterSink>,
        interval: Span,
        read: impl Fn(Timestamp) -> Snapshot + Send + 'static,
        tally: Arc<SinkTally>,
    ) {
        let (clock, mut closing) = (Arc::clone(&self.clock), self.closing.subscribe());
        let mut flushed = self.flushed();
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
                attempt(&*clock, &tally, sink.publish(&delta, &total)).await;
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
    // A sender that is gone means the same.
    drop(closing.wait_for(|is_closing| *is_closing).await);
}

/// Waits for `write`, at most [`WRITE_MAX`], and counts it if it failed. The log gets a line when writes begin to fail and one
/// when they succeed again.
async fn attempt(clock: &dyn Clock, tally: &SinkTally, write: BoxFuture<'_, Result<(), Error>>) {
    let result = match tollgate::within(clock, WRITE_MAX, write).await {
        Some(result) => result.map_err(|error| error.to_string()),
        None => Err(format!("no answer within {WRITE_MAX}")),
    };
    let was_failing = tally.is_failing.swap(result.is_err(), Relaxed);
    match result {
        Err(error) => {
            tally.failures.fetch_add(1, Relaxed);
            if !was_failing {
                tracing::warn!(sink = tally.name(), %error, "telemetry is not written");
            }
        }
        Ok(()) if was_failing => {
            tracing::warn!(sink = tally.name(), "telemetry is written again");
        }
        Ok(()) => {}
    }
}
