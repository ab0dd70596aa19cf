//! Group commit: batches of changes between the callers and the writer thread.
//!
//! ```text
//! callers: change under the shard's lock ── push(key) ──► gathering ──► sealed … ──► in flight ──► durable
//!          └─ wait until the batch is durable ◄───────────────── wake ──────────────────┘      (writer thread)
//! ```
//! Batches are numbered. A batch holds *keys*, not bytes: the writer encodes an entry when it writes the batch, so a key that
//! changes a thousand times meanwhile is one row. A change belongs to the batch that is gathering, and is durable when the
//! batch is. The writer seals a batch *before* it encodes its entries under the shard's lock; a caller that sees, under that
//! lock, that the entry's batch is still gathering need not push again.
//!
//! The keys of an ask with several charges enter one batch. An entry that is also in an older batch, which is not encoded yet,
//! is copied for that batch before it changes: otherwise that batch would have the charge of one key without the others.

mod queue;
#[cfg(test)]
mod tests;
mod waiters;

pub use queue::{BACKLOG_BATCHES_MAX, BATCH_ROWS_MAX, RELAXED_LOSS_MAX};
pub(crate) use queue::{Batch, Changed};

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::task::Poll;

use tollgate::{Error, ErrorKind, Span, Timestamp};

use crate::options::Durability;
use crate::sync::lock;
use queue::Queue;
use waiters::Waiters;

/// A relaxed writer commits after this time, well before callers have to wait.
const RELAXED_FLUSH_AFTER: Span = Span::from_millis(RELAXED_LOSS_MAX.as_micros() / 1_000 / 2);

/// The batches of one store, shared by its callers and its writer.
#[derive(Debug)]
pub(crate) struct GroupCommit {
    durability: Durability,
    queue: Mutex<Queue>,
    work: Condvar,
    waiters: Mutex<Waiters>,
    /// The batch that is gathering; changed under the queue's lock.
    gathering: AtomicU64,
    /// Every batch up to this one is durable.
    durable: AtomicU64,
    /// The time of the oldest change that is not durable, in microseconds; `u64::MAX` for none.
    oldest: AtomicU64,
    /// No new changes are accepted; queued ones are still written.
    closing: AtomicBool,
    /// Why the store has stopped.
    stopped: OnceLock<Stop>,
}

/// Why a store has stopped.
#[derive(Debug)]
enum Stop {
    /// It was closed, and everything is durable.
    Closed,
    /// A read or a write failed.
    Failed(Error),
}

impl GroupCommit {
    pub(crate) fn new(durability: Durability) -> Self {
        let queue = Queue::new();
        Self {
            durability,
            gathering: AtomicU64::new(queue.gathering()),
            durable: AtomicU64::new(queue.gathering() - 1),
            oldest: AtomicU64::new(u64::MAX),
            queue: Mutex::new(queue),
            work: Condvar::new(),
            waiters: Mutex::default(),
            closing: AtomicBool::new(false),
            stopped: OnceLock::new(),
        }
    }

    /// Fails if the store is closed or has stopped.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        self.check()?;
        if self.closing.load(Ordering::Acquire) { Err(closed()) } else { Ok(()) }
    }

    /// Fails if the store has stopped.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.stopped.get() {
            None => Ok(()),
            Some(Stop::Closed) => Err(closed()),
            Some(Stop::Failed(error)) => Err(error.clone()),
        }
    }

    /// Returns why the store has stopped after a failed read or write.
    pub(crate) fn failure(&self) -> Option<Error> {
        match self.stopped.get() {
            Some(Stop::Failed(error)) => Some(error.clone()),
            _ => None,
        }
    }

    /// Returns the last durable batch.
    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Whether `batch` is not sealed yet, so that an entry in it will be encoded later. Requires the shard's lock.
    pub(crate) fn is_gathering(&self, batch: u64) -> bool {
        self.gathering.load(Ordering::Acquire) == batch
    }

    /// Adds a changed key to the gathering batch, and returns its number. Requires the shard's lock.
    pub(crate) fn push(&self, now: Timestamp, changed: Changed) -> Result<u64, Error> {
        self.push_by(|queue| queue.push(now, changed))
    }

    /// Adds the changed keys of one ask to one batch, each with the batch that it is in, and returns the number of their
    /// batch. Requires the locks of their shards.
    pub(crate) fn push_together(
        &self,
        now: Timestamp,
        changed: &[(u64, Changed)],
    ) -> Result<u64, Error> {
        self.push_by(|queue| queue.push_together(now, changed))
    }

    fn push_by(&self, push: impl FnOnce(&mut Queue) -> u64) -> Result<u64, Error> {
        let mut queue = lock(&self.queue);
        if queue.is_closed() {
            drop(queue);
            return self.check().and(Err(closed()));
        }
        let is_first = queue.is_empty();
        let batch = push(&mut queue);
        self.publish(&queue);
        let wake = match self.durability {
            Durability::Strict => true,
            Durability::Relaxed => queue.is_urgent() || is_first,
        };
        if wake && queue.wake_writer() {
            self.work.notify_one();
        }
        Ok(batch)
    }

    fn publish(&self, queue: &Queue) {
        self.gathering.store(queue.gathering(), Ordering::Release);
        let oldest = queue.oldest().map_or(u64::MAX, Timestamp::as_micros);
        self.oldest.store(oldest, Ordering::Release);
    }

    /// Waits as the durability requires, for a decision at `now` that relies on a change in `batch`.
    pub(crate) async fn durable_enough(&self, batch: u64, now: Timestamp) -> Result<(), Error> {
        match self.durability {
            Durability::Strict => self.durable_through(batch).await,
            Durability::Relaxed => {
                while let Some(oldest) = self.waits_for(batch, now) {
                    self.hurry();
                    self.durable_through(oldest).await?;
                }
                Ok(())
            }
        }
    }

    /// Returns the batch that must be durable first, if a crash could otherwise lose more than a relaxed store may.
    fn waits_for(&self, batch: u64, now: Timestamp) -> Option<u64> {
        let durable = self.durable();
        let oldest = self.oldest.load(Ordering::Acquire);
        let falls_behind = durable + BACKLOG_BATCHES_MAX < batch
            || oldest.saturating_add(RELAXED_LOSS_MAX.as_micros()) < now.as_micros();
        // Not a later batch than the decision's own: there may never be one.
        (durable < batch && falls_behind).then_some(durable + 1)
    }

    /// Makes a relaxed writer commit at once.
    pub(crate) fn hurry(&self) {
        let mut queue = lock(&self.queue);
        queue.hurry();
        if queue.wake_writer() {
            self.work.notify_one();
        }
    }

    /// Waits until `batch` is durable.
    pub(crate) async fn durable_through(&self, batch: u64) -> Result<(), Error> {
        let mut place = None;
        poll_fn(|context| {
            if batch <= self.durable() {
                return Poll::Ready(Ok(()));
            }
            let mut waiters = lock(&self.waiters);
            // The writer changes both under this lock before it wakes, so no wake-up is lost.
            if batch <= self.durable() {
                return Poll::Ready(Ok(()));
            }
            if let Err(error) = self.check() {
                return Poll::Ready(Err(error));
            }
            place = Some(waiters.wait(batch, place, context.waker()));
            Poll::Pending
        })
        .await
    }

    /// Rejects further changes; the writer commits the queued ones and ends.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        lock(&self.queue).close();
        self.work.notify_one();
    }

    /// Waits for the next batch to write; `None` once the queue is closed and empty.
    pub(crate) fn take(&self) -> Option<Batch> {
        let mut queue = lock(&self.queue);
        queue.set_idle();
        queue = self
            .work
            .wait_while(queue, |queue| queue.is_empty() && !queue.is_closed())
            .unwrap_or_else(PoisonError::into_inner);
        if self.durability == Durability::Relaxed {
            queue.set_idle();
            let patience = RELAXED_FLUSH_AFTER.into();
            let waited = self.work.wait_timeout_while(queue, patience, |queue| {
                !queue.is_urgent() && !queue.is_closed()
            });
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let batch = queue.take();
        self.publish(&queue);
        batch
    }

    /// Marks `batch` as durable, and wakes its waiters.
    pub(crate) fn complete(&self, batch: u64) {
        let mut queue = lock(&self.queue);
        queue.complete();
        self.publish(&queue);
        drop(queue);
        let mut waiters = lock(&self.waiters);
        self.durable.store(batch, Ordering::Release);
        let due = waiters.take_through(batch);
        drop(waiters);
        due.wake();
    }

    /// Stops the store, and fails all waiters. The first reason is kept.
    pub(crate) fn fail(&self, why: &Error) {
        let text = format!("the embedded store has stopped and admits nothing: {why}");
        let error = Error::new(ErrorKind::Unavailable, text).caused_by(why.clone());
        self.stop(Stop::Failed(error));
    }

    /// Marks the store as closed.
    pub(crate) fn finish(&self) {
        self.stop(Stop::Closed);
    }

    /// Waits for the end of the writer after [`close`](Self::close).
    pub(crate) async fn finished(&self) -> Result<(), Error> {
        let ended = self.durable_through(u64::MAX).await;
        if matches!(self.stopped.get(), Some(Stop::Closed)) { Ok(()) } else { ended }
    }

    fn stop(&self, why: Stop) {
        lock(&self.queue).close();
        let mut waiters = lock(&self.waiters);
        let _ = self.stopped.set(why);
        let all = waiters.take_through(u64::MAX);
        drop(waiters);
        all.wake();
    }
}

/// The error of an operation on a closed store.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, "the embedded store is closed; open it again")
}
