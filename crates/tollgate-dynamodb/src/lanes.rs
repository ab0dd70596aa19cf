//! Swaps of one item by one process: they take turns, and those that wait are written together.
//!
//! Only one of two concurrent swaps of an item can succeed. So the operations that wait for a turn are queued, and whichever
//! caller gets the turn applies up to [`BATCH_MAX`] of them in memory and writes the result with one conditional write. Each
//! gets its own answer. The batch belongs to the lane and not to the caller that leads it: if that caller is cancelled, the
//! next one goes on with what was sent, and the marks in the item tell whether it was applied.
#![allow(
    clippy::disallowed_types,
    reason = "the lock is held during a write, so that others queue up behind it"
)]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashMap;
use tokio::sync::{MutexGuard, oneshot};
use tollgate::edge::random;
use tollgate::{Ask, Costs, Error, Operation, Outcome, Permit, Timestamp};

use crate::token::Tokens;

/// The most operations of one subject that are written together.
pub const BATCH_MAX: usize = 256;

/// An answer for each operation of a batch.
pub(crate) type Answers = Vec<Result<Outcome, Error>>;

/// An operation without an id, which can be written together with others.
#[derive(Debug)]
pub(crate) enum Combined {
    Acquire(Ask<'static>),
    Settle(Permit, Costs),
    Release(Permit),
    Renew(Permit),
}

impl Combined {
    pub(crate) fn of(operation: &Operation<'_>) -> Option<Self> {
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

/// A queued operation, and where its answer goes.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) operation: Combined,
    answer: oneshot::Sender<Result<Outcome, Error>>,
}

/// The writes that were sent for the same operations, and what each of them answers if it was applied.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) tokens: Tokens,
    pub(crate) answers: Vec<Answers>,
}

impl Default for Sent {
    fn default() -> Self {
        Self { tokens: Tokens::new(random), answers: Vec::new() }
    }
}

impl Sent {
    /// Adds a write that decides at `at` and returns its mark.
    pub(crate) fn push(&mut self, at: Timestamp, answers: Answers) -> String {
        let token = self.tokens.next(at);
        self.answers.truncate(self.tokens.names().count() - 1);
        self.answers.push(answers);
        token
    }
}

/// The operations that are being written.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) waiting: Vec<Waiting>,
    pub(crate) sent: Sent,
}

impl Batch {
    /// Ends the batch: each caller gets its answer, or the error of all.
    pub(crate) fn answer(&mut self, answers: Result<Answers, Error>) {
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
struct Lane {
    queue: Mutex<VecDeque<Waiting>>,
    /// Whoever locks it has the turn.
    batch: tokio::sync::Mutex<Batch>,
}

/// The lanes of all items that are being swapped.
#[derive(Debug, Default)]
pub(crate) struct Lanes(Mutex<HashMap<String, Arc<Lane>, foldhash::fast::RandomState>>);

impl Lanes {
    pub(crate) fn of(&self, key: &str) -> Place<'_> {
        let mut lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lane = Arc::clone(lanes.entry_ref(key).or_default());
        Place { lanes: self, key: key.to_owned(), lane }
    }
}

/// A caller's place in a lane; the last one to leave removes the lane.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    lanes: &'a Lanes,
    key: String,
    lane: Arc<Lane>,
}

impl Place<'_> {
    /// Queues `operation`. If its caller is cancelled before a batch takes it, it is not run.
    pub(crate) fn join(&self, operation: Combined) -> oneshot::Receiver<Result<Outcome, Error>> {
        let (answer, receiver) = oneshot::channel();
        let mut queue = self.lane.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push_back(Waiting { operation, answer });
        receiver
    }

    /// Waits for the turn.
    pub(crate) async fn turn(&self) -> MutexGuard<'_, Batch> {
        self.lane.batch.lock().await
    }

    /// Fills `batch` from the queue, unless its leader was cancelled and it has to be finished first.
    pub(crate) fn fill(&self, batch: &mut Batch) {
        if !batch.waiting.is_empty() {
            batch.sent.tokens.renew(random);
            return;
        }
        let mut queue = self.lane.queue.lock().unwrap_or_else(PoisonError::into_inner);
        while batch.waiting.len() < BATCH_MAX
            && let Some(waiting) = queue.pop_front()
        {
            if !waiting.answer.is_closed() {
                batch.waiting.push(waiting);
            }
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut lanes = self.lanes.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The map and this place hold it.
        if Arc::strong_count(&self.lane) == 2 {
            lanes.remove(&self.key);
        }
    }
}
