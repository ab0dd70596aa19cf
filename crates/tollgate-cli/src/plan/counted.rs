//! The store of a process of a measured plan: every call is counted and timed, whatever its strategy makes of it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate::{
    Ask, BoxFuture, Clock, Costs, Decision, Error, Gate, Permit, Policy, Standing, Timestamp,
};

/// A gate whose calls are counted and timed.
#[derive(Debug)]
pub(super) struct Counted {
    gate: Arc<dyn Gate>,
    clock: Arc<dyn Clock>,
    pub(super) writes: AtomicU64,
    pub(super) reads: AtomicU64,
    trips: Mutex<Vec<u64>>,
}

impl Counted {
    pub(super) fn new(gate: Arc<dyn Gate>, clock: Arc<dyn Clock>) -> Self {
        Self { gate, clock, writes: 0.into(), reads: 0.into(), trips: Mutex::default() }
    }

    /// How long each call took, in microseconds.
    pub(super) fn trips(&self) -> MutexGuard<'_, Vec<u64>> {
        self.trips.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn timed<'a, T: 'a>(
        &'a self,
        count: &'a AtomicU64,
        answer: BoxFuture<'a, Result<T, Error>>,
    ) -> BoxFuture<'a, Result<T, Error>> {
        count.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            let since = self.clock.monotonic().as_micros();
            let answer = answer.await;
            self.trips().push(self.clock.monotonic().as_micros().saturating_sub(since));
            answer
        })
    }
}

impl Gate for Counted {
    fn acquire<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Decision, Error>> {
        self.timed(&self.writes, self.gate.acquire(ask))
    }

    fn settle<'a>(
        &'a self,
        permit: &'a Permit,
        actual: &'a Costs,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        self.timed(&self.writes, self.gate.settle(permit, actual))
    }

    fn release<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<bool, Error>> {
        self.timed(&self.writes, self.gate.release(permit))
    }

    fn renew<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<Permit, Error>> {
        self.timed(&self.writes, self.gate.renew(permit))
    }

    fn charge<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Permit, Error>> {
        self.timed(&self.writes, self.gate.charge(ask))
    }

    fn close_until<'a>(
        &'a self,
        ask: &'a Ask<'a>,
        limit: &'a str,
        until: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        self.timed(&self.writes, self.gate.close_until(ask, limit, until))
    }

    fn standing<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Standing>, Error>> {
        self.timed(&self.reads, self.gate.standing(policy, subject))
    }

    fn reset<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        self.timed(&self.writes, self.gate.reset(policy, subject))
    }
}
