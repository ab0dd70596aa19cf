//! Fault injection around a working gate, from which a test reads the actual charges.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::{Error, ErrorKind, Gate};

/// A fault of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing.
    None,
    /// Unreachable; not carried out.
    Down,
    /// Carried out; the reply is lost.
    LosesReply,
    /// No reply; not carried out.
    Hangs,
    /// Carried out; no reply.
    HangsAfter,
    /// Throttled by the store.
    Throttles,
    /// Out of storage.
    Full,
    /// A lock times out; not carried out.
    Locked,
}

/// A gate that fails on command.
#[derive(Debug)]
pub struct Faulty<G> {
    gate: G,
    next: Mutex<(VecDeque<Trouble>, Option<Trouble>)>,
    calls: AtomicUsize,
    inside: AtomicUsize,
    inside_most: AtomicUsize,
}

impl<G: Gate> Faulty<G> {
    /// Wraps `gate` without faults.
    pub fn new(gate: G) -> Self {
        let next = Mutex::default();
        let [calls, inside, inside_most] = Default::default();
        Self { gate, next, calls, inside, inside_most }
    }

    /// The gate inside, which never fails.
    pub const fn inner(&self) -> &G {
        &self.gate
    }

    /// Injects `trouble` into every call.
    pub fn always(&self, trouble: Trouble) {
        self.next().1 = Some(trouble);
    }

    /// Injects one fault into each of the next calls, before the permanent one.
    pub fn next_calls(&self, troubles: impl IntoIterator<Item = Trouble>) {
        self.next().0.extend(troubles);
    }

    /// The number of calls.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    /// The most concurrent calls.
    pub fn most_at_once(&self) -> usize {
        self.inside_most.load(Ordering::SeqCst)
    }

    fn next(&self) -> MutexGuard<'_, (VecDeque<Trouble>, Option<Trouble>)> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call<'a, T: Send + 'a>(
        &'a self,
        work: BoxFuture<'a, Result<T, Error>>,
    ) -> BoxFuture<'a, Result<T, Error>> {
        let trouble = {
            let mut next = self.next();
            next.0.pop_front().or(next.1).unwrap_or(Trouble::None)
        };
        self.calls.fetch_add(1, Ordering::SeqCst);
        let inside = 1 + self.inside.fetch_add(1, Ordering::SeqCst);
        self.inside_most.fetch_max(inside, Ordering::SeqCst);
        let counted = Inside(&self.inside);
        Box::pin(async move {
            let _counted = counted;
            // Others get a turn while a call is on its way.
            tokio::task::yield_now().await;
            let fails = |kind, text: &str| Err(Error::new(kind, text));
            match trouble {
                Trouble::None => work.await,
                Trouble::Down => fails(ErrorKind::Unavailable, "the store is down"),
                Trouble::LosesReply => {
                    drop(work.await);
                    fails(ErrorKind::Unavailable, "the reply was lost")
                }
                Trouble::Hangs => std::future::pending().await,
                Trouble::HangsAfter => {
                    drop(work.await);
                    std::future::pending().await
                }
                Trouble::Throttles => fails(ErrorKind::Throttled, "the store is too busy"),
                Trouble::Full => fails(ErrorKind::Full, "the store has no room"),
                Trouble::Locked => {
                    Err(Error::new(ErrorKind::Contended, "a lock is held").unattributed())
                }
            }
        })
    }
}

/// Counts a call until it is dropped.
struct Inside<'a>(&'a AtomicUsize);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<G: Gate> Gate for Faulty<G> {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        self.call(self.gate.run(operation))
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}
