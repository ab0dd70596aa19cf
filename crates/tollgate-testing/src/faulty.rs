//! A gate whose store fails on command: gone, slow, throttling, full, or carrying out what it is asked and losing the
//! reply.
//!
//! It wraps a gate that works, so what was really charged can be read from that one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate::{
    Ask, BoxFuture, Costs, Decision, Error, ErrorKind, Gate, Permit, Policy, Standing, Timestamp,
};

/// What is wrong with the store during one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing.
    None,
    /// It cannot be reached; nothing is carried out.
    Down,
    /// It carries out the call, and the reply is lost.
    LosesReply,
    /// It never answers; nothing is carried out.
    Hangs,
    /// It carries out the call and never answers.
    HangsAfter,
    /// It refuses for its own load.
    Throttles,
    /// It has no room.
    Full,
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
    /// `gate`, which works until told otherwise.
    pub fn new(gate: G) -> Self {
        let next = Mutex::default();
        let [calls, inside, inside_most] = Default::default();
        Self { gate, next, calls, inside, inside_most }
    }

    /// The gate inside, which never fails.
    pub const fn inner(&self) -> &G {
        &self.gate
    }

    /// From now on every call has `trouble`.
    pub fn always(&self, trouble: Trouble) {
        self.next().1 = Some(trouble);
    }

    /// The next calls have these troubles, one each, before what is always so.
    pub fn next_calls(&self, troubles: impl IntoIterator<Item = Trouble>) {
        self.next().0.extend(troubles);
    }

    /// How many calls were made.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    /// The most calls that were under way at the same time.
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
            }
        })
    }
}

/// A call that is under way; it may be dropped half way.
struct Inside<'a>(&'a AtomicUsize);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<G: Gate> Gate for Faulty<G> {
    fn acquire<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Decision, Error>> {
        self.call(self.gate.acquire(ask))
    }

    fn settle<'a>(
        &'a self,
        permit: &'a Permit,
        actual: &'a Costs,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        self.call(self.gate.settle(permit, actual))
    }

    fn release<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<bool, Error>> {
        self.call(self.gate.release(permit))
    }

    fn renew<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<Permit, Error>> {
        self.call(self.gate.renew(permit))
    }

    fn charge<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Permit, Error>> {
        self.call(self.gate.charge(ask))
    }

    fn close_until<'a>(
        &'a self,
        ask: &'a Ask<'a>,
        limit: &'a str,
        until: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        self.call(self.gate.close_until(ask, limit, until))
    }

    fn standing<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Standing>, Error>> {
        self.call(self.gate.standing(policy, subject))
    }

    fn reset<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        self.call(self.gate.reset(policy, subject))
    }
}
