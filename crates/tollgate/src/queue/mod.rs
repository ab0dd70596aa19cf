//! Waiting for room, first come first served.
//!
//! [`Queue`] wraps a gate and adds [`Queue::acquire_within`]: wait until the ask is admitted or a deadline passes.
//! Nobody polls. The first of a line sleeps until exactly the time that its denial promised, or until something is
//! given back through this gate, and asks again. An ask that does not wait never overtakes one that does: unless there
//! is room for all of them it is denied, and its wait includes those in front.

mod line;

pub use line::WAITERS_MAX;

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};

use tollgate_core::{
    Amounts, Ask, Backoff, Costs, Decision, Denial, PER_MILLE, Permit, Policy, Rule, Span,
    Timestamp, Wait,
};

use crate::clock::Clock;
use crate::edge;
use crate::error::Error;
use crate::gate::{BoxFuture, Gate};
use crate::sync::{AtomicUsize, Mutex, lock};

use line::{LineKey, Lines};

/// A gate at which asks can wait their turn. First come, first served, per (policy, subject) and process.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use tollgate::{Ask, Atomic, Clock, Limit, ManualClock, Memory, Policy, Queue, Span, TokenBucket};
///
/// let clock = Arc::new(ManualClock::new());
/// let gate = Arc::new(Queue::new(Atomic::new(Memory::with(clock.clone(), 100)), clock.clone()));
/// let policy = Policy::new("api", [Limit::new("rate", "requests", TokenBucket::per_second(1))])?;
///
/// let deadline = clock.now() + Span::from_secs(5);
/// assert!(gate.acquire_within(&Ask::new(&policy, "alice"), deadline).await?.is_admitted());
/// let waiting = tokio::spawn({
///     let (gate, policy) = (gate.clone(), policy.clone());
///     async move { gate.acquire_within(&Ask::new(&policy, "alice"), deadline).await }
/// });
/// tokio::task::yield_now().await;
/// clock.advance(Span::from_secs(1)); // the promised time
/// assert!(waiting.await??.is_admitted());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Queue<G> {
    gate: G,
    clock: Arc<dyn Clock>,
    jitter: Span,
    lines: Mutex<Lines>,
    /// How many wait in all lines, so that a gate at which nobody waits costs one load.
    waiting: AtomicUsize,
}

impl<G: Gate> Queue<G> {
    /// Lets asks wait at `gate`, by the time of `clock`.
    pub fn new(gate: G, clock: Arc<dyn Clock>) -> Self {
        Self {
            gate,
            clock,
            jitter: Span::ZERO,
            lines: Mutex::new(Lines::default()),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Adds up to `jitter` to each wait, so that processes that share a store do not all ask at once.
    #[must_use]
    pub const fn jitter(mut self, jitter: Span) -> Self {
        self.jitter = jitter;
        self
    }

    /// The gate inside.
    pub const fn inner(&self) -> &G {
        &self.gate
    }

    /// How many asks wait now.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Waits until `ask` is admitted, at most until `deadline`; a denial then says how much longer it would have
    /// been. What cannot go through in time is denied at once, unless it waits for a slot, which may be released any
    /// moment. Dropping the future leaves the line; if the gate was about to admit it, what it charged stays charged and
    /// slots expire, as with any answer that nobody waits for.
    ///
    /// # Errors
    /// Whatever the gate could not decide; [`Contended`](crate::ErrorKind::Contended) if [`WAITERS_MAX`] wait already.
    pub async fn acquire_within(
        &self,
        ask: &Ask<'_>,
        deadline: Timestamp,
    ) -> Result<Decision, Error> {
        let place = self.join(ask)?;
        let mut denial = match self.first_answer(&place, ask).await? {
            Decision::Denied(denial) => denial,
            admitted => return Ok(admitted),
        };
        loop {
            if denial.wait == Wait::Never || self.is_hopeless(ask, &denial, deadline) {
                return Ok(Decision::Denied(denial));
            }
            let promised = if place.is_first() { self.wake_at(&denial) } else { deadline };
            let alarm = promised.min(deadline);
            let woken = place.called_or(self.clock.sleep_until(alarm)).await;
            // A clock that was set back must not keep anybody beyond the deadline it went to sleep with.
            let slept = woken == Woken::ByAlarm && alarm == deadline;
            let late = slept || deadline <= self.clock.now();
            if late && !place.is_first() {
                return self.gate.acquire(&ask.clone().behind(place.in_front())).await;
            }
            denial = match self.gate.acquire(ask).await? {
                Decision::Denied(denial) if late => return Ok(Decision::Denied(denial)),
                Decision::Denied(denial) => denial,
                admitted => return Ok(admitted),
            };
        }
    }

    /// The first of a line asks for itself; the others learn how long those in front will take.
    async fn first_answer(&self, place: &Place<'_, G>, ask: &Ask<'_>) -> Result<Decision, Error> {
        let in_front = place.in_front();
        if in_front.is_empty() {
            return self.gate.acquire(ask).await;
        }
        self.gate.acquire(&ask.clone().behind(in_front)).await
    }

    fn join(&self, ask: &Ask<'_>) -> Result<Place<'_, G>, Error> {
        ask.check()?;
        let key = LineKey::of(ask);
        let ticket = lock(&self.lines).join(&key, *ask.amounts())?;
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Ok(Place { queue: self, key, ticket })
    }

    /// Time alone will not admit the ask before the deadline, and nobody can release what it waits for.
    fn is_hopeless(&self, ask: &Ask<'_>, denial: &Denial, deadline: Timestamp) -> bool {
        let binding = ask.policy().limits().find(|limit| limit.name() == &*denial.limit);
        let slots = binding.is_some_and(|limit| matches!(limit.rule(), Rule::Concurrency(_)));
        !slots && denial.retry_after().is_some_and(|wait| deadline < self.clock.now() + wait)
    }

    /// The promised time, by this process's clock.
    fn wake_at(&self, denial: &Denial) -> Timestamp {
        let wait = denial.retry_after().unwrap_or_default();
        let jitter = Backoff {
            base: self.jitter,
            max: self.jitter,
            jitter_low: 0,
            jitter_high: PER_MILLE,
            clamp: true,
        };
        let extra =
            if self.jitter.is_zero() { Span::ZERO } else { jitter.delay(0, edge::random()) };
        self.clock.now() + wait.plus(extra)
    }

    /// What those who wait for the same ask for, first to last.
    pub(crate) fn in_front_of(&self, ask: &Ask<'_>) -> Vec<Amounts> {
        if self.waiting() == 0 {
            return Vec::new();
        }
        lock(&self.lines).in_front(&LineKey::of(ask), 0)
    }

    /// Calls the next in line when what follows is over, or is given up.
    fn after<'a>(&'a self, policy: &'a Policy, subject: &'a str) -> CallNext<'a, G> {
        CallNext { queue: self, policy: policy.name(), subject }
    }

    /// Something was given back: the first in line may ask again.
    fn call_next(&self, policy: &str, subject: &str) {
        if self.waiting() == 0 {
            return;
        }
        let next = lock(&self.lines).call(&LineKey::new(policy, subject));
        next.into_iter().for_each(Waker::wake);
    }
}

/// What ended a waiter's sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    ByCall,
    ByAlarm,
}

/// Calls the next in line when it is dropped: something may have been given back even where the caller went away
/// before it heard of it.
struct CallNext<'a, G: Gate> {
    queue: &'a Queue<G>,
    policy: &'a str,
    subject: &'a str,
}

impl<G: Gate> Drop for CallNext<'_, G> {
    fn drop(&mut self) {
        self.queue.call_next(self.policy, self.subject);
    }
}

/// A place in a line, left when it is dropped.
#[derive(Debug)]
struct Place<'a, G: Gate> {
    queue: &'a Queue<G>,
    key: LineKey,
    ticket: u64,
}

impl<G: Gate> Place<'_, G> {
    fn in_front(&self) -> Vec<Amounts> {
        lock(&self.queue.lines).in_front(&self.key, self.ticket)
    }

    fn is_first(&self) -> bool {
        self.in_front().is_empty()
    }

    /// Resolves when this place is first and was called, or when `alarm` does.
    async fn called_or(&self, alarm: impl Future<Output = ()>) -> Woken {
        let mut alarm = std::pin::pin!(alarm);
        poll_fn(|context| {
            if lock(&self.queue.lines).is_called(&self.key, self.ticket, context.waker()) {
                return Poll::Ready(Woken::ByCall);
            }
            alarm.as_mut().poll(context).map(|()| Woken::ByAlarm)
        })
        .await
    }
}

impl<G: Gate> Drop for Place<'_, G> {
    fn drop(&mut self) {
        self.queue.waiting.fetch_sub(1, Ordering::Relaxed);
        let next = lock(&self.queue.lines).leave(&self.key, self.ticket);
        next.into_iter().for_each(Waker::wake);
    }
}

impl<G: Gate> Gate for Queue<G> {
    fn acquire<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Decision, Error>> {
        if self.waiting() == 0 {
            return self.gate.acquire(ask);
        }
        Box::pin(async move {
            let in_front = self.in_front_of(ask);
            if in_front.is_empty() {
                return self.gate.acquire(ask).await;
            }
            self.gate.acquire(&ask.clone().behind(in_front)).await
        })
    }

    fn acquire_at_once(&self, ask: &Ask<'_>) -> Option<Result<Decision, Error>> {
        // Whoever waits comes first, which takes a look at the line.
        if self.waiting() == 0 { self.gate.acquire_at_once(ask) } else { None }
    }

    fn settle<'a>(
        &'a self,
        permit: &'a Permit,
        actual: &'a Costs,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let _call = self.after(permit.policy(), permit.subject());
            self.gate.settle(permit, actual).await
        })
    }

    fn release<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let _call = self.after(permit.policy(), permit.subject());
            self.gate.release(permit).await
        })
    }

    fn reset<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let _call = self.after(policy, subject);
            self.gate.reset(policy, subject).await
        })
    }

    crate::pass_on!(gate: renew, charge, close_until, standing);
}
