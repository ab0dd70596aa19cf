//! Between those who change entries and the one thread that writes them: batches, and who waits for which.
//!
//! ```text
//! callers: change under the shard's lock ── push(key) ──► gathering ──► sealed … ──► in flight ──► durable
//!          └─ wait until the batch is durable ◄───────────────── wake ──────────────────┘      (writer thread)
//! ```
//! Batches are numbered. A batch holds *keys*, not bytes: the writer encodes each entry when its batch's turn comes,
//! so a key that changes a thousand times while it waits is one row. A change belongs to the batch that is gathering at
//! that moment, and is durable when the batch is. The writer closes a batch *before* it encodes its entries under the
//! shard's lock, so whoever sees under that lock that the entry's batch is still gathering knows that the change
//! will be encoded with it, and need not push again.

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

/// A relaxed writer commits what has gathered after this time: well before callers have to wait for it.
const RELAXED_FLUSH_AFTER: Span = Span::from_millis(RELAXED_LOSS_MAX.as_micros() / 1_000 / 2);

/// The batches of one store, shared by its callers and its writer.
#[derive(Debug)]
pub(crate) struct Pipeline {
    durability: Durability,
    queue: Mutex<Queue>,
    work: Condvar,
    waiters: Mutex<Waiters>,
    /// The batch that is gathering; changed under the queue's lock.
    gathering: AtomicU64,
    /// Every batch up to this one is durable.
    durable: AtomicU64,
    /// When the oldest change that is not durable was made, in microseconds; the largest number if there is none.
    oldest: AtomicU64,
    /// Nothing new is begun, though what was begun is still written.
    closing: AtomicBool,
    /// Why nothing is decided any more.
    stopped: OnceLock<Stop>,
}

/// Why a pipeline has stopped.
#[derive(Debug)]
enum Stop {
    /// It was closed, and everything is on the disk.
    Closed,
    /// Something could not be written or read.
    Failed(Error),
}

impl Pipeline {
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

    /// Why the store has stopped, if something could not be written or read.
    pub(crate) fn failure(&self) -> Option<Error> {
        match self.stopped.get() {
            Some(Stop::Failed(error)) => Some(error.clone()),
            _ => None,
        }
    }

    /// The last batch that is durable.
    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Whether an entry that last changed in `batch` will be encoded later than now. Ask under its shard's lock.
    pub(crate) fn is_gathering(&self, batch: u64) -> bool {
        self.gathering.load(Ordering::Acquire) == batch
    }

    /// Adds a changed key to the batch that is gathering and says which that is. Call it under the shard's lock.
    pub(crate) fn push(&self, now: Timestamp, changed: Changed) -> Result<u64, Error> {
        let mut queue = lock(&self.queue);
        if queue.is_closed() {
            drop(queue);
            return self.check().and(Err(closed()));
        }
        let batch = queue.push(now, changed);
        self.publish(&queue);
        let wake = match self.durability {
            Durability::Strict => true,
            Durability::Relaxed => queue.is_urgent() || queue.is_first(),
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

    /// Waits as long as the durability asks for, for an answer given at `now` that relies on a change in `batch`.
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

    /// The batch that has to be durable first where a relaxed answer would promise more than may be forgotten.
    fn waits_for(&self, batch: u64, now: Timestamp) -> Option<u64> {
        let durable = self.durable();
        let oldest = self.oldest.load(Ordering::Acquire);
        let falls_behind = durable + BACKLOG_BATCHES_MAX < batch
            || oldest.saturating_add(RELAXED_LOSS_MAX.as_micros()) < now.as_micros();
        // No later batch than the answer's own: there may never be one.
        (durable < batch && falls_behind).then_some(durable + 1)
    }

    /// Asks a relaxed writer not to wait for more.
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
            // The writer changes both under this lock before it wakes, so nothing is missed between.
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

    /// Takes no further changes; the writer commits what it has and ends.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        lock(&self.queue).close();
        self.work.notify_one();
    }

    /// The next batch to write, waiting for one; nothing once the pipeline is closed and empty.
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

    /// `batch` is on the disk.
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

    /// Nothing is decided from now on; everyone who waits is told why. The first reason stays.
    pub(crate) fn fail(&self, why: &Error) {
        let text = format!("the embedded store has stopped and admits nothing: {why}");
        let error = Error::new(ErrorKind::Unavailable, text).caused_by(why.clone());
        self.stop(Stop::Failed(error));
    }

    /// Everything is on the disk and the writer has ended.
    pub(crate) fn finish(&self) {
        self.stop(Stop::Closed);
    }

    /// Waits until the writer has ended after [`close`](Self::close), and says what went wrong if anything did.
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

/// What an operation on a closed store is told.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, "the embedded store is closed; open it again")
}
