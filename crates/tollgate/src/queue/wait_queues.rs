//! The wait queues: plain state, without time and without IO.
//!
//! Each (policy, subject) has its own queue. Only the first of a queue asks the gate, and it wakes the next when it leaves, so
//! a dropped waiter delays no other.

use std::collections::{HashMap, VecDeque};
use std::task::Waker;

use tollgate_core::{Amounts, Ask};

use crate::error::{Error, ErrorKind};

/// The most asks that wait in one queue.
pub const WAITERS_MAX: usize = tollgate_core::bounds::BEHIND_MAX;

/// Identifies the queue of one policy and subject.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct QueueKey {
    policy: Box<str>,
    subject: Box<str>,
}

impl QueueKey {
    pub(super) fn for_ask(ask: &Ask<'_>) -> Self {
        Self::new(ask.policy().name(), ask.subject())
    }

    pub(super) fn new(policy: &str, subject: &str) -> Self {
        Self { policy: policy.into(), subject: subject.into() }
    }
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    amounts: Amounts,
    /// Set when there may be room; cleared when the waiter asks.
    called: bool,
    waker: Option<Waker>,
}

/// The queues of all policies and subjects. Methods return the waker to wake after the lock is released.
#[derive(Debug, Default)]
pub(super) struct WaitQueues {
    queues: HashMap<QueueKey, VecDeque<Waiter>>,
    next_ticket: u64,
}

impl WaitQueues {
    /// Joins the end of the queue. Who finds it empty need not be called to ask.
    pub(super) fn join(&mut self, key: &QueueKey, amounts: Amounts) -> Result<u64, Error> {
        let queue = self.queues.entry(key.clone()).or_default();
        if WAITERS_MAX <= queue.len() {
            return Err(Error::new(
                ErrorKind::Contended,
                format!(
                    "{WAITERS_MAX} asks wait for {:?} of {:?} already",
                    key.subject, key.policy
                ),
            ));
        }
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        queue.push_back(Waiter { ticket, amounts, called: false, waker: None });
        Ok(ticket)
    }

    /// Leaves the queue. If the first left, the next is called.
    #[must_use = "the next waiter sleeps until its waker is woken"]
    pub(super) fn leave(&mut self, key: &QueueKey, ticket: u64) -> Option<Waker> {
        let queue = self.queues.get_mut(key)?;
        let index = queue.iter().position(|waiter| waiter.ticket == ticket)?;
        queue.remove(index);
        if queue.is_empty() {
            self.queues.remove(key);
            return None;
        }
        if index == 0 { self.call(key) } else { None }
    }

    /// Calls the first of the queue: there may be room now.
    #[must_use = "the first waiter sleeps until its waker is woken"]
    pub(super) fn call(&mut self, key: &QueueKey) -> Option<Waker> {
        let first = self.queues.get_mut(key)?.front_mut()?;
        first.called = true;
        first.waker.take()
    }

    /// Returns whether the waiter is first and was called. Otherwise stores `waker` for that moment.
    pub(super) fn is_called(&mut self, key: &QueueKey, ticket: u64, waker: &Waker) -> bool {
        let Some(queue) = self.queues.get_mut(key) else { return false };
        let Some(index) = queue.iter().position(|waiter| waiter.ticket == ticket) else {
            return false;
        };
        let waiter = &mut queue[index];
        if index == 0 && waiter.called {
            waiter.called = false;
            return true;
        }
        waiter.waker = Some(waker.clone());
        false
    }

    /// Returns the amounts of the asks in front of `ticket`, first to last; of the whole queue if the ticket is not in it.
    pub(super) fn in_front(&self, key: &QueueKey, ticket: u64) -> Vec<Amounts> {
        let queue = self.queues.get(key).into_iter().flatten();
        queue.take_while(|waiter| waiter.ticket != ticket).map(|waiter| waiter.amounts).collect()
    }
}
