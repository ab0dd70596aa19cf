//! Serialises and batches the swaps of one item in this process.
//!
//! Only one of two concurrent swaps of an item can succeed. So waiting operations are queued, and the caller that gets the
//! lock applies up to [`BATCH_MAX`] of them in memory and writes the result with one conditional write. The batch belongs to
//! the queue and not to the caller that leads it: if that caller is cancelled, the next one continues, and the tokens in the
//! item show whether the write was applied.
#![allow(clippy::disallowed_types, reason = "held across a write, so that other callers queue up")]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashMap;
use tokio::sync::{MutexGuard, oneshot};
use tollgate::gate::{Operation, Outcome};
use tollgate::internal::edge::random;
use tollgate::{Ask, Costs, Error, Permit, Timestamp};

use crate::write_token::Tokens;

/// The most operations of one subject in one write.
pub const BATCH_MAX: usize = 256;

/// The outcome of each operation of a batch.
pub(crate) type Outcomes = Vec<Result<Outcome, Error>>;

/// An operation without an id, which can be batched.
#[derive(Debug)]
pub(crate) enum Combinable {
    Acquire(Ask<'static>),
    Settle(Permit, Costs),
    Release(Permit),
    Renew(Permit),
}

impl Combinable {
    pub(crate) fn from_operation(operation: &Operation<'_>) -> Option<Self> {
        if operation.id().is_some() {
            return None;
        }
        match operation {
            Operation::Acquire(ask) => Some(Self::Acquire((*ask).clone().into_owned())),
            Operation::Settle(permit, costs) => {
                Some(Self::Settle((*permit).clone(), (*costs).clone()))
            }
            Operation::Release(permit) => Some(Self::Release((*permit).clone())),
            Operation::Renew(permit) => Some(Self::Renew((*permit).clone())),
            _ => None,
        }
    }

    pub(crate) const fn as_operation(&self) -> Operation<'_> {
        match self {
            Self::Acquire(ask) => Operation::Acquire(ask),
            Self::Settle(permit, costs) => Operation::Settle(permit, costs),
            Self::Release(permit) => Operation::Release(permit),
            Self::Renew(permit) => Operation::Renew(permit),
        }
    }
}

/// A queued operation and its reply channel.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) operation: Combinable,
    answer: oneshot::Sender<Result<Outcome, Error>>,
}

/// The writes sent for the same operations, and the outcomes of each if it was applied.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) tokens: Tokens,
    pub(crate) answers: Vec<Outcomes>,
}

impl Default for Sent {
    fn default() -> Self {
        Self { tokens: Tokens::new(random), answers: Vec::new() }
    }
}

impl Sent {
    /// Adds a write that decides at `at`, and returns its token.
    pub(crate) fn push(&mut self, at: Timestamp, answers: Outcomes) -> String {
        let token = self.tokens.next(at);
        self.answers.truncate(self.tokens.names().count() - 1);
        self.answers.push(answers);
        token
    }
}

/// The operations of one write.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) waiting: Vec<Queued>,
    pub(crate) sent: Sent,
}

impl Batch {
    /// Ends the batch: each caller gets its outcome, or the error of all.
    pub(crate) fn answer(&mut self, answers: Result<Outcomes, Error>) {
        let waiting = std::mem::take(self).waiting;
        match answers {
            Ok(answers) => {
                for (waiting, answer) in waiting.into_iter().zip(answers) {
                    drop(waiting.answer.send(answer));
                }
            }
            Err(error) => {
                for waiting in waiting {
                    drop(waiting.answer.send(Err(error.clone())));
                }
            }
        }
    }
}

#[derive(Debug, Default)]
struct SwapQueue {
    queue: Mutex<VecDeque<Queued>>,
    /// Locked by the operation that leads the current batch.
    batch: tokio::sync::Mutex<Batch>,
}

/// The queues of all items that are being swapped.
#[derive(Debug, Default)]
pub(crate) struct SwapQueues(Mutex<HashMap<String, Arc<SwapQueue>, foldhash::fast::RandomState>>);

impl SwapQueues {
    pub(crate) fn join(&self, key: &str) -> QueueHandle<'_> {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = Arc::clone(queues.entry_ref(key).or_default());
        QueueHandle { queues: self, key: key.to_owned(), queue }
    }
}

/// A caller's handle of a queue; the last one to leave removes the queue.
#[derive(Debug)]
pub(crate) struct QueueHandle<'a> {
    queues: &'a SwapQueues,
    key: String,
    queue: Arc<SwapQueue>,
}

impl QueueHandle<'_> {
    /// Queues `operation`. If its caller is cancelled first, it is not run.
    pub(crate) fn join(&self, operation: Combinable) -> oneshot::Receiver<Result<Outcome, Error>> {
        let (answer, receiver) = oneshot::channel();
        let mut queue = self.queue.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push_back(Queued { operation, answer });
        receiver
    }

    /// Waits for the lock.
    pub(crate) async fn lock(&self) -> MutexGuard<'_, Batch> {
        self.queue.batch.lock().await
    }

    /// Fills `batch` from the queue, unless a batch of a cancelled leader must be finished first.
    pub(crate) fn fill(&self, batch: &mut Batch) {
        if !batch.waiting.is_empty() {
            batch.sent.tokens.renew(random);
            return;
        }
        let mut queue = self.queue.queue.lock().unwrap_or_else(PoisonError::into_inner);
        while batch.waiting.len() < BATCH_MAX
            && let Some(waiting) = queue.pop_front()
        {
            if !waiting.answer.is_closed() {
                batch.waiting.push(waiting);
            }
        }
    }
}

impl Drop for QueueHandle<'_> {
    fn drop(&mut self) {
        let mut queues = self.queues.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The map and this handle hold it.
        if Arc::strong_count(&self.queue) == 2 {
            queues.remove(&self.key);
        }
    }
}
