//! The waiting lines: plain state, without time and without IO.
//!
//! Each (policy, subject) has its own line. Only the first of a line asks the gate, and passes its turn on when it leaves, so
//! a dropped waiter delays no other.

use std::collections::{HashMap, VecDeque};
use std::task::Waker;

use tollgate_core::{Amounts, Ask};

use crate::error::{Error, ErrorKind};

/// The most asks that wait in one line.
pub const WAITERS_MAX: usize = tollgate_core::bounds::BEHIND_MAX;

/// The line of one policy and subject.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LineKey {
    policy: Box<str>,
    subject: Box<str>,
}

impl LineKey {
    pub(super) fn of(ask: &Ask<'_>) -> Self {
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
    /// Something happened that makes it worth asking, and the waiter has not asked since.
    called: bool,
    waker: Option<Waker>,
}

/// All lines. Methods return the waker to call after the lock is released.
#[derive(Debug, Default)]
pub(super) struct Lines {
    lines: HashMap<LineKey, VecDeque<Waiter>>,
    next_ticket: u64,
}

impl Lines {
    /// Joins the end of the line. Who finds it empty need not be called to ask.
    pub(super) fn join(&mut self, key: &LineKey, amounts: Amounts) -> Result<u64, Error> {
        let line = self.lines.entry(key.clone()).or_default();
        if WAITERS_MAX <= line.len() {
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
        line.push_back(Waiter { ticket, amounts, called: false, waker: None });
        Ok(ticket)
    }

    /// Leaves the line; if the first left, the next is called.
    #[must_use = "the next in line sleeps until its waker is woken"]
    pub(super) fn leave(&mut self, key: &LineKey, ticket: u64) -> Option<Waker> {
        let line = self.lines.get_mut(key)?;
        let place = line.iter().position(|waiter| waiter.ticket == ticket)?;
        line.remove(place);
        if line.is_empty() {
            self.lines.remove(key);
            return None;
        }
        if place == 0 { self.call(key) } else { None }
    }

    /// Calls the first of the line: there may be room now.
    #[must_use = "the first in line sleeps until its waker is woken"]
    pub(super) fn call(&mut self, key: &LineKey) -> Option<Waker> {
        let first = self.lines.get_mut(key)?.front_mut()?;
        first.called = true;
        first.waker.take()
    }

    /// Whether the waiter is first and was called; if not, `waker` is kept for when it is.
    pub(super) fn is_called(&mut self, key: &LineKey, ticket: u64, waker: &Waker) -> bool {
        let Some(line) = self.lines.get_mut(key) else { return false };
        let Some(place) = line.iter().position(|waiter| waiter.ticket == ticket) else {
            return false;
        };
        let waiter = &mut line[place];
        if place == 0 && waiter.called {
            waiter.called = false;
            return true;
        }
        waiter.waker = Some(waker.clone());
        false
    }

    /// What those in front of `ticket` ask for, first to last; all of the line if the ticket is not in it.
    pub(super) fn in_front(&self, key: &LineKey, ticket: u64) -> Vec<Amounts> {
        let line = self.lines.get(key).into_iter().flatten();
        line.take_while(|waiter| waiter.ticket != ticket).map(|waiter| waiter.amounts).collect()
    }
}
