//! Waiting for room, first come first served.
//!
//! [`Queue`] wraps a gate and adds [`Queue::acquire_within`]: wait until the ask is admitted or a deadline passes.
//! The first of a queue sleeps until exactly the time that its denial promised, or until something is given back through
//! this gate, and asks again. An ask that does not wait never overtakes one that does: unless there is room for all of
//! them it is denied, and its wait includes those in front.
//!
//! The wait for slots of a concurrency limit is an estimate, since it depends on their holders. The queue observes how
//! long permits hold slots, and estimates the waits of its denials from that. A slot that is released through this gate
//! goes to the first waiter at once. One that is released through another process shows only when the store is
//! asked, so the first waiter polls, every 50 ms to 1 s.

pub(crate) mod holding;
mod wait_queues;

pub use wait_queues::WAITERS_MAX;

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};

use tollgate_core::{
    Amounts, Ask, Backoff, Decision, Denial, Operation, Outcome, PER_MILLE, Permit, Policy, Rule,
    Span, Timestamp, Wait,
};

use crate::clock::Clock;
use crate::error::Error;
use crate::gate::{BoxFuture, Gate, decide};
use crate::internal::edge;
use crate::sync::{AtomicUsize, Mutex, lock};

use holding::{HoldingTimes, SLOT_POLL_MAX, SLOT_POLL_MIN, is_held_until_release};
use wait_queues::{QueueKey, WaitQueues};

/// The longest wait after a denial that was decided without the store. That may be back any moment, and know better.
const DEGRADED_POLL: Span = Span::from_secs(1);

/// A gate at which asks can wait their turn. First come, first served, per (policy, subject) and process.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use tollgate::clock::ManualClock;
/// use tollgate::{Ask, Clock, Limit, Memory, Policy, Queue, Span, TokenBucket};
///
/// let clock = Arc::new(ManualClock::new());
/// let gate = Arc::new(Queue::new(Memory::with(clock.clone(), 100), clock.clone()));
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
    queues: Mutex<WaitQueues>,
    holding: Mutex<HoldingTimes>,
    /// The waiters of all queues. A gate without waiters costs one load.
    waiting: AtomicUsize,
}

impl<G: Gate> Queue<G> {
    /// Lets asks wait at `gate`, by the time of `clock`.
    pub fn new(gate: G, clock: Arc<dyn Clock>) -> Self {
        Self {
            gate,
            clock,
            jitter: Span::ZERO,
            queues: Mutex::new(WaitQueues::default()),
            holding: Mutex::new(HoldingTimes::default()),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Adds up to `jitter` to each wait, so that processes that share a store do not all ask at once.
    #[must_use]
    pub fn jitter(mut self, jitter: impl Into<Span>) -> Self {
        self.jitter = jitter.into();
        self
    }

    /// Returns the gate inside.
    pub const fn inner(&self) -> &G {
        &self.gate
    }

    /// How many asks wait now.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Waits until `ask` is admitted, at most until `deadline`; a denial then says how much longer it would have
    /// been. What cannot go through in time is denied at once, unless it waits for a slot, which may be released any
    /// moment. Dropping the future leaves the queue; if the gate was about to admit it, the charge remains and
    /// slots expire, as with any dropped call.
    ///
    /// # Errors
    /// Whatever the gate could not decide; [`Contended`](crate::ErrorKind::Contended) if [`WAITERS_MAX`] wait already.
    pub async fn acquire_within(
        &self,
        ask: &Ask<'_>,
        deadline: Timestamp,
    ) -> Result<Decision, Error> {
        let enqueued = self.join(ask)?;
        let left = deadline.since(self.clock.now());
        let due = self.clock.monotonic().plus(left);
        let mut denial = match self.ask(ask, enqueued.in_front()).await? {
            Decision::Denied(denial) => denial,
            admitted => return Ok(admitted),
        };
        loop {
            if denial.wait == Wait::Never || self.is_hopeless(ask, &denial, deadline) {
                return Ok(Decision::Denied(denial));
            }
            let promised = if enqueued.is_first() { self.wake_at(&denial) } else { deadline };
            // A wall clock that was set back must not delay a waiter beyond the deadline.
            let left = due.as_micros().saturating_sub(self.clock.monotonic().as_micros());
            let alarm = promised.min(deadline).min(self.clock.now() + Span::from_micros(left));
            enqueued.called_or(self.clock.sleep_until(alarm)).await;
            let late = due <= self.clock.monotonic() || deadline <= self.clock.now();
            let in_front = enqueued.in_front();
            if !in_front.is_empty() {
                if late {
                    return self.ask(ask, in_front).await;
                }
                continue;
            }
            denial = match self.ask(ask, Vec::new()).await? {
                Decision::Denied(denial) if late => return Ok(Decision::Denied(denial)),
                Decision::Denied(denial) => denial,
                admitted => return Ok(admitted),
            };
        }
    }

    /// Asks the gate behind `in_front`, and estimates the wait of a denial.
    async fn ask(&self, ask: &Ask<'_>, in_front: Vec<Amounts>) -> Result<Decision, Error> {
        let mut decision = if in_front.is_empty() {
            decide(&self.gate, ask).await?
        } else {
            decide(&self.gate, &ask.clone().behind(in_front)).await?
        };
        self.estimate(ask, &mut decision);
        Ok(decision)
    }

    /// Replaces the waits for slots by estimates from the holding times that were observed.
    fn estimate(&self, ask: &Ask<'_>, decision: &mut Decision) {
        let denial = match decision {
            Decision::Denied(denial) => denial,
            Decision::Admitted(permit) => {
                let at = permit.grant().at;
                let tells_time = permit.expires_at().is_some() && !permit.degraded;
                let Some(denial) = permit.shadow_denied.as_deref_mut() else {
                    if tells_time {
                        lock(&self.holding).admitted_at(at, self.clock.monotonic());
                    }
                    return;
                };
                denial
            }
        };
        if denial.slots.is_some() {
            let mut holding = lock(&self.holding);
            if !denial.degraded {
                holding.denied_at(denial.decided_at, self.clock.monotonic());
            }
            denial.estimate(|limit| holding.mean(ask.policy(), ask.subject(), limit));
        }
    }

    /// Observes how long `permit` held its slots, if giving it back `changed` anything.
    fn given_back(&self, permit: &Permit, changed: bool) {
        if changed && permit.expires_at().is_some() {
            lock(&self.holding).released(permit, self.clock.monotonic());
        }
    }

    fn join(&self, ask: &Ask<'_>) -> Result<Enqueued<'_, G>, Error> {
        let key = QueueKey::for_ask(ask);
        let ticket = lock(&self.queues).join(&key, *ask.amounts())?;
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Ok(Enqueued { queue: self, key, ticket })
    }

    /// Returns whether neither time nor a release of slots will admit the ask before `deadline`.
    fn is_hopeless(&self, ask: &Ask<'_>, denial: &Denial, deadline: Timestamp) -> bool {
        let wait = if denial.is_estimated() {
            Some(denial.not_before().since(denial.decided_at))
        } else {
            // A broker of an older version does not mark a wait for slots.
            let binding = ask.policy().limits().find(|limit| limit.name() == &*denial.limit);
            let slots = binding.is_some_and(|limit| matches!(limit.rule(), Rule::Concurrency(_)));
            denial.retry_after().filter(|_| !slots)
        };
        wait.is_some_and(|wait| deadline < self.clock.now() + wait)
    }

    /// Returns the promised time by this process's clock, or the time to poll for a slot that another process released.
    fn wake_at(&self, denial: &Denial) -> Timestamp {
        let mut wait = denial.retry_after().unwrap_or_default();
        if let Some(expires_at) = denial.expires_at {
            let least = denial.not_before().since(denial.decided_at);
            let most = expires_at.since(denial.decided_at);
            wait = wait.clamp(SLOT_POLL_MIN, SLOT_POLL_MAX).max(least).min(most);
        }
        if denial.degraded {
            wait = wait.min(DEGRADED_POLL);
        }
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

    /// Returns the amounts of the asks that wait for the same policy and subject, first to last.
    pub(crate) fn in_front_of(&self, ask: &Ask<'_>) -> Vec<Amounts> {
        if self.waiting() == 0 {
            return Vec::new();
        }
        lock(&self.queues).in_front(&QueueKey::for_ask(ask), 0)
    }

    /// Returns a guard that calls the first waiter when it is dropped.
    fn after<'a>(&'a self, policy: &'a Policy, subject: &'a str) -> CallNext<'a, G> {
        CallNext { queue: self, policy: policy.name(), subject }
    }

    /// Wakes the first waiter, because something was given back.
    fn call_next(&self, policy: &str, subject: &str) {
        if self.waiting() == 0 {
            return;
        }
        let next = lock(&self.queues).call(&QueueKey::new(policy, subject));
        next.into_iter().for_each(Waker::wake);
    }
}

/// Calls the first waiter when dropped: something may have been given back even if the caller went away before the reply.
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

/// An ask in its queue. Dropping it leaves the queue.
#[derive(Debug)]
struct Enqueued<'a, G: Gate> {
    queue: &'a Queue<G>,
    key: QueueKey,
    ticket: u64,
}

impl<G: Gate> Enqueued<'_, G> {
    fn in_front(&self) -> Vec<Amounts> {
        lock(&self.queue.queues).in_front(&self.key, self.ticket)
    }

    fn is_first(&self) -> bool {
        self.in_front().is_empty()
    }

    /// Resolves when this ask is first and was called, or when `alarm` does.
    async fn called_or(&self, alarm: impl Future<Output = ()>) {
        let mut alarm = std::pin::pin!(alarm);
        poll_fn(|context| {
            if lock(&self.queue.queues).is_called(&self.key, self.ticket, context.waker()) {
                return Poll::Ready(());
            }
            alarm.as_mut().poll(context)
        })
        .await;
    }
}

impl<G: Gate> Drop for Enqueued<'_, G> {
    fn drop(&mut self) {
        self.queue.waiting.fetch_sub(1, Ordering::Relaxed);
        let next = lock(&self.queue.queues).leave(&self.key, self.ticket);
        next.into_iter().for_each(Waker::wake);
    }
}

impl<G: Gate> Gate for Queue<G> {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        match operation {
            Operation::Acquire(ask) if self.waiting() != 0 || ask.policy().has_slots() => {
                let in_front = self.in_front_of(ask);
                Box::pin(async move { self.ask(ask, in_front).await.map(Outcome::Decided) })
            }
            Operation::Settle(permit, _) | Operation::Release(permit) => Box::pin(async move {
                let _call = self.after(permit.policy(), permit.subject());
                let outcome = self.gate.run(operation).await?;
                let ends_holding = matches!(operation, Operation::Settle(..))
                    || is_held_until_release(permit.policy());
                self.given_back(permit, outcome == Outcome::Changed(true) && ends_holding);
                Ok(outcome)
            }),
            Operation::Reset { policy, subject } => Box::pin(async move {
                let _call = self.after(policy, subject);
                self.gate.run(operation).await
            }),
            other => self.gate.run(other),
        }
    }

    fn try_run(&self, operation: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        match operation {
            // Waiting asks come first, which takes the queue's lock.
            Operation::Acquire(_) if self.waiting() != 0 => None,
            Operation::Acquire(ask) => {
                let mut outcome = self.gate.try_run(operation)?;
                if ask.policy().has_slots()
                    && let Ok(Outcome::Decided(decision)) = &mut outcome
                {
                    self.estimate(ask, decision);
                }
                Some(outcome)
            }
            Operation::Settle(..) | Operation::Release(_) | Operation::Reset { .. } => None,
            other => self.gate.try_run(other),
        }
    }
}
