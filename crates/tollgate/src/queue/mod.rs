//! Waiting for room, first come first served, and fairly between tenants.
//!
//! [`Queue`] wraps a gate and adds [`Queue::acquire_within`]: wait until the ask is admitted or a deadline passes.
//! The first of a queue sleeps until exactly the time that its denial promised, or until something is given back through
//! this gate, and asks again. An ask that does not wait never overtakes one that does: unless there is room for all of
//! them it is denied, and its wait includes those in front.
//!
//! An ask with several charges waits in the queue of the charge that refuses it, and moves when another one does, so a
//! waiter whose own limit binds delays no other. In the queue of a shared limit its [tenant](tollgate_core::Ask::tenant), the
//! subject of the first charge unless another is named, takes turns with the others: the next is the tenant that was charged
//! least per [weight](tollgate_core::PolicyBuilder::weight). No ask overtakes another one of its tenant.
//!
//! The wait for slots of a concurrency limit is an estimate, since it depends on their holders. The queue observes how
//! long permits hold slots, and estimates the waits of its denials from that. A slot that is released through this gate
//! goes to the first waiter at once. One that is released through another process shows only when the store is
//! asked, so the first waiter polls, every 50 ms to 1 s.

pub(crate) mod holding;
mod share;
mod snapshot;
mod wait_queues;

pub use snapshot::{
    QueueSnapshot, QueuesSnapshot, SNAPSHOT_QUEUES_MAX, SNAPSHOT_TENANTS_MAX, TenantSnapshot,
};
pub use wait_queues::{Ticket, WAITERS_MAX};

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};

use tollgate_core::{
    Amounts, Ask, Backoff, Charge, Costs, Decision, Denial, Operation, Outcome, PER_MILLE, Permit,
    Policy, Rule, Span, Timestamp, Wait,
};

use crate::alternatives::Alternatives;
use crate::clock::Clock;
use crate::error::Error;
use crate::gate::{BoxFuture, Gate, decide};
use crate::internal::edge;
use crate::sync::{AtomicUsize, Mutex, lock};

use holding::{HoldingTimes, SLOT_POLL_MAX, SLOT_POLL_MIN, is_held_until_release};
use share::{actual_share, share};
use wait_queues::{Place, QueueKey, WaitQueues};

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

    /// Returns what waits now: the longest queues, and in each the tenants with the most waiters.
    pub fn snapshot(&self) -> QueuesSnapshot {
        if self.waiting() == 0 { QueuesSnapshot::default() } else { lock(&self.queues).snapshot() }
    }

    /// Returns how many asks wait in the queues of each policy. An ask with several charges waits in one queue for each.
    pub fn waiting_by_policy(&self) -> BTreeMap<Box<str>, usize> {
        if self.waiting() == 0 { BTreeMap::new() } else { lock(&self.queues).waiting_by_policy() }
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
        let due = self.due(deadline);
        if takes_turns(ask) {
            let (alternatives, mut ticket) = (Alternatives::only(ask), Ticket::default());
            let decided = self.acquire_jointly_within(&alternatives, due, &mut ticket).await;
            return decided.map(|(_, decision)| decision);
        }
        let charge = ask.charges().next().expect("an ask has a charge");
        let enqueued = self.join(ask, charge, &mut Ticket::default(), false)?;
        let (mut in_front, mut late) = (enqueued.in_front(), false);
        loop {
            let asked_behind = in_front.len();
            let denial = match self.ask(ask, in_front).await? {
                Decision::Denied(denial) => denial,
                admitted => return Ok(admitted),
            };
            if late || denial.wait == Wait::Never {
                return Ok(Decision::Denied(denial));
            }
            lock(&self.queues).waits(&enqueued.place);
            if self.is_hopeless(ask, &denial, deadline) {
                in_front = enqueued.in_front();
                // An ask in front that was admitted meanwhile may count twice: it is charged, and this one was behind it.
                if in_front.len() < asked_behind {
                    continue;
                }
                return Ok(Decision::Denied(denial));
            }
            loop {
                late = self.sleep(&enqueued, &denial, due).await;
                in_front = enqueued.in_front();
                if late || in_front.is_empty() {
                    break;
                }
            }
        }
    }

    /// Waits until one of `alternatives` is admitted, at most until `deadline`: at each time the first that fits, in their
    /// order. It waits for the one with the shortest wait.
    ///
    /// # Errors
    /// As [`acquire_within`](Self::acquire_within).
    pub async fn acquire_any_within(
        &self,
        alternatives: &Alternatives<'_>,
        deadline: Timestamp,
    ) -> Result<Decision, Error> {
        let mut ticket = Ticket::default();
        let decided = self.acquire_any_in_turn(alternatives, deadline, &mut ticket).await;
        decided.map(|(_, decision)| decision)
    }

    /// As [`acquire_any_within`](Self::acquire_any_within), for an ask that may have to be repeated, such as a call that the provider
    /// refused: with the same `ticket` it waits again at the place that it first had. Returns also the index of the alternative
    /// that was decided.
    ///
    /// # Errors
    /// As [`acquire_within`](Self::acquire_within).
    pub async fn acquire_any_in_turn(
        &self,
        alternatives: &Alternatives<'_>,
        deadline: Timestamp,
        ticket: &mut Ticket,
    ) -> Result<(usize, Decision), Error> {
        self.acquire_jointly_within(alternatives, self.due(deadline), ticket).await
    }

    fn due(&self, deadline: Timestamp) -> Due {
        let left = deadline.since(self.clock.now());
        Due { deadline, monotonic: self.clock.monotonic().plus(left) }
    }

    /// Waits until every charge of one of `alternatives` fits. It waits in the queue of the charge that refuses, so it asks
    /// the gate before it waits, unless others are to be served first.
    async fn acquire_jointly_within(
        &self,
        alternatives: &Alternatives<'_>,
        due: Due,
        ticket: &mut Ticket,
    ) -> Result<(usize, Decision), Error> {
        let mut enqueued = None;
        if self.waiting() != 0 {
            let blocking = |ask| self.blocking(ask).map(|charge| (ask, charge));
            let blocked: Vec<_> = alternatives.asks().iter().filter_map(blocking).collect();
            if let Some((ask, charge)) = blocked.first()
                && blocked.len() == alternatives.asks().len()
            {
                enqueued = Some(self.join(ask, charge, ticket, true)?);
            }
        }
        let mut late = false;
        loop {
            if let Some(enqueued) = &enqueued {
                while !late && !enqueued.is_first() {
                    late = self.sleep_until(enqueued, due.deadline, due).await;
                }
            }
            let mut trial = alternatives.trial();
            while let Some(ask) = trial.next() {
                trial.add(self.ask(ask, Vec::new()).await);
            }
            let (index, denial) = match trial.finish()? {
                (index, Decision::Denied(denial)) => (index, denial),
                admitted => return Ok(admitted),
            };
            let ask = &alternatives.asks()[index];
            let is_final = late || denial.wait == Wait::Never;
            if is_final || self.is_hopeless(ask, &denial, due.deadline) {
                return Ok((index, Decision::Denied(denial)));
            }
            let charge = binding_charge(ask, &denial);
            let place = match enqueued.take() {
                Some(place) if place.place.key == queue_key(charge) => place,
                // The place in the other queue is given up after the new one is taken.
                _ => self.join(ask, charge, ticket, true)?,
            };
            lock(&self.queues).denied(&place.place, &denial);
            late = self.sleep(&place, &denial, due).await;
            enqueued = Some(place);
        }
    }

    /// Returns the first charge of `ask` that others wait for who are served before it.
    fn blocking<'i, 'a>(&self, ask: &'i Ask<'a>) -> Option<&'i Charge<'a>> {
        ask.charges().find(|charge| self.blocks(ask, charge).is_some())
    }

    /// Sleeps until the time that `denial` promised, if it is first, or until it is called. Returns whether it is too late
    /// to wait any longer.
    async fn sleep(&self, enqueued: &Enqueued<'_, G>, denial: &Denial, due: Due) -> bool {
        let promised = if enqueued.is_first() { self.wake_at(denial) } else { due.deadline };
        self.sleep_until(enqueued, promised, due).await
    }

    async fn sleep_until(&self, enqueued: &Enqueued<'_, G>, alarm: Timestamp, due: Due) -> bool {
        // A wall clock that was set back must not delay a waiter beyond the deadline.
        let left = due.monotonic.as_micros().saturating_sub(self.clock.monotonic().as_micros());
        let alarm = alarm.min(due.deadline).min(self.clock.now() + Span::from_micros(left));
        enqueued.called_or(self.clock.sleep_until(alarm)).await;
        due.monotonic <= self.clock.monotonic() || due.deadline <= self.clock.now()
    }

    /// Asks the gate behind `in_front`, and estimates the wait of a denial.
    async fn ask(&self, ask: &Ask<'_>, in_front: Vec<Amounts>) -> Result<Decision, Error> {
        let mut decision = if in_front.is_empty() {
            decide(&self.gate, ask).await?
        } else {
            decide(&self.gate, &ask.clone().behind(in_front)).await?
        };
        self.estimate(ask, &mut decision);
        if decision.is_admitted() {
            self.charged(ask);
        }
        Ok(for_tenant_of(ask, decision))
    }

    /// Counts the charges of `ask`, which was admitted, for the turns of its tenant.
    fn charged(&self, ask: &Ask<'_>) {
        if self.waiting() == 0 {
            return;
        }
        let (tenant, weight) = ask.tenant();
        for charge in ask.charges() {
            let share = share(charge.policy(), charge.amounts()) / weight;
            self.wake(|queues| queues.charged(&queue_key(charge), tenant, share));
        }
    }

    /// Counts what settling or releasing `permit` gave back, for the turns of its tenant.
    fn uncharged(&self, permit: &Permit, actual: Option<&Costs>) {
        if self.waiting() == 0 {
            return;
        }
        let (tenant, weight) = permit.tenant();
        for part in permit.charges() {
            let (policy, charged) = (part.policy(), part.charged().amounts);
            let key = QueueKey::new(policy.name(), part.subject());
            let before = share(policy, charged) / weight;
            let estimate = Costs::new();
            // The actual costs of the ask do not apply to a charge with costs of its own.
            let actual = actual.map(|actual| if part.has_own_costs() { &estimate } else { actual });
            let after = actual.map_or(0, |actual| actual_share(policy, charged, actual) / weight);
            self.wake(|queues| match before.checked_sub(after) {
                Some(less) => queues.given_back(&key, tenant, less),
                None => queues.charged(&key, tenant, after - before),
            });
        }
    }

    /// Wakes the waiter whose turn it is after a change of the queues.
    fn wake(&self, change: impl FnOnce(&mut WaitQueues) -> Option<Waker>) {
        let next = change(&mut lock(&self.queues));
        next.into_iter().for_each(Waker::wake);
    }

    /// Returns the denial of `ask` because others wait for `charge` and are served first, if that is so. It is the latest
    /// denial of the first of them.
    fn blocks(&self, ask: &Ask<'_>, charge: &Charge<'_>) -> Option<Option<Denial>> {
        let queues = lock(&self.queues);
        let (denial, waiting_ahead) = queues.blocks(&queue_key(charge), ask.tenant().0)?;
        let asked = |denial: &Denial| charge.policy().costs(charge.amounts()).get(&denial.unit);
        Some(denial.map(|denial| Denial {
            waiting_ahead,
            asked: asked(denial).unwrap_or(denial.asked),
            ..denial.clone()
        }))
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
            let charge = binding_charge(ask, denial);
            denial.estimate(|limit| holding.mean(charge.policy(), charge.subject(), limit));
        }
    }

    /// Observes how long `permit`, which was settled to `actual` or released, held its slots.
    fn given_back(&self, permit: &Permit, actual: Option<&Costs>) {
        self.uncharged(permit, actual);
        if permit.expires_at().is_none() {
            return;
        }
        for part in permit.parts().filter(|part| part.expires_at().is_some()) {
            if actual.is_some() || is_held_until_release(part.policy()) {
                lock(&self.holding).released(&part, self.clock.monotonic());
            }
        }
    }

    fn join(
        &self,
        ask: &Ask<'_>,
        charge: &Charge<'_>,
        ticket: &mut Ticket,
        waits: bool,
    ) -> Result<Enqueued<'_, G>, Error> {
        let (key, amounts) = (queue_key(charge), *charge.amounts());
        let place = lock(&self.queues).join(key, ask.tenant(), amounts, ticket, waits)?;
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Ok(Enqueued { queue: self, place })
    }

    /// Returns whether neither time nor a release of slots will admit the ask before `deadline`.
    fn is_hopeless(&self, ask: &Ask<'_>, denial: &Denial, deadline: Timestamp) -> bool {
        let wait = if denial.is_estimated() {
            Some(denial.not_before().since(denial.decided_at))
        } else {
            // A broker of an older version does not mark a wait for slots.
            let policy = binding_charge(ask, denial).policy();
            let binding = policy.limits().find(|limit| limit.name() == &*denial.limit);
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
        let key = QueueKey::new(ask.policy().name(), ask.subject());
        lock(&self.queues).in_front(&key, None)
    }

    /// Wakes the first waiter, because something was given back.
    fn call_next(&self, policy: &Policy, subject: &str) {
        if self.waiting() != 0 {
            self.wake(|queues| queues.call(&QueueKey::new(policy.name(), subject)));
        }
    }
}

/// The end of a wait. The monotonic time is that of the deadline when the wait began.
#[derive(Clone, Copy, Debug)]
struct Due {
    deadline: Timestamp,
    monotonic: Span,
}

fn queue_key(charge: &Charge<'_>) -> QueueKey {
    QueueKey::new(charge.policy().name(), charge.subject())
}

/// Returns the charge whose limit binds.
fn binding_charge<'i, 'a>(ask: &'i Ask<'a>, denial: &Denial) -> &'i Charge<'a> {
    let index = denial.binding_charge().unwrap_or(0);
    let mut charges = ask.charges();
    charges.nth(index).or_else(|| ask.charges().next()).expect("an ask has a charge")
}

/// Calls the first waiters when dropped: something may have been given back even if the caller went away before the reply.
struct CallNext<'a, G: Gate> {
    queue: &'a Queue<G>,
    operation: Operation<'a>,
}

impl<G: Gate> Drop for CallNext<'_, G> {
    fn drop(&mut self) {
        let (queue, operation) = (self.queue, self.operation);
        match operation {
            Operation::Settle(permit, _) | Operation::Release(permit) => {
                permit.charges().for_each(|part| queue.call_next(part.policy(), part.subject()));
            }
            other => queue.call_next(other.policy(), other.subject()),
        }
    }
}

/// An ask in its queue. Dropping it leaves the queue.
#[derive(Debug)]
struct Enqueued<'a, G: Gate> {
    queue: &'a Queue<G>,
    place: Place,
}

impl<G: Gate> Enqueued<'_, G> {
    fn in_front(&self) -> Vec<Amounts> {
        lock(&self.queue.queues).in_front(&self.place.key, Some(&self.place))
    }

    fn is_first(&self) -> bool {
        lock(&self.queue.queues).is_first(&self.place)
    }

    /// Resolves when this ask is first and was called, or when `alarm` does.
    async fn called_or(&self, alarm: impl Future<Output = ()>) {
        let mut alarm = std::pin::pin!(alarm);
        poll_fn(|context| {
            if lock(&self.queue.queues).is_called(&self.place, context.waker()) {
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
        self.queue.wake(|queues| queues.leave(&self.place));
    }
}

impl<G: Gate> Gate for Queue<G> {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        match operation {
            Operation::Acquire(ask)
                if takes_turns(ask)
                    && (self.waiting() != 0 || has_slots(ask) || ask.named_tenant().is_some()) =>
            {
                let denial = ask.charges().find_map(|charge| self.blocks(ask, charge)?);
                Box::pin(async move {
                    match denial {
                        Some(denial) => Ok(Outcome::Decided(Decision::Denied(denial))),
                        None => self.ask(ask, Vec::new()).await.map(Outcome::Decided),
                    }
                })
            }
            Operation::Acquire(ask) if self.waiting() != 0 || has_slots(ask) => {
                let in_front = self.in_front_of(ask);
                Box::pin(async move { self.ask(ask, in_front).await.map(Outcome::Decided) })
            }
            Operation::Settle(permit, _) | Operation::Release(permit) => Box::pin(async move {
                let _call = CallNext { queue: self, operation };
                let outcome = self.gate.run(operation).await?;
                if outcome == Outcome::Changed(true) {
                    let actual = match operation {
                        Operation::Settle(_, actual) => Some(actual),
                        _ => None,
                    };
                    self.given_back(permit, actual);
                }
                Ok(outcome)
            }),
            Operation::Reset { .. } => Box::pin(async move {
                let _call = CallNext { queue: self, operation };
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
                if has_slots(ask)
                    && let Ok(Outcome::Decided(decision)) = &mut outcome
                {
                    self.estimate(ask, decision);
                }
                Some(outcome.map(|outcome| match outcome {
                    Outcome::Decided(decision) => Outcome::Decided(for_tenant_of(ask, decision)),
                    other => other,
                }))
            }
            Operation::Settle(..) | Operation::Release(_) | Operation::Reset { .. } => None,
            other => self.gate.try_run(other),
        }
    }
}

/// Returns whether asks of several tenants may wait in the queues of `ask`.
fn takes_turns(ask: &Ask<'_>) -> bool {
    ask.has_several_charges() || ask.named_tenant().is_some()
}

/// Adds the tenant that `ask` names to its permit, so that what is given back counts for the same tenant.
fn for_tenant_of(ask: &Ask<'_>, decision: Decision) -> Decision {
    match (decision, ask.named_tenant()) {
        (Decision::Admitted(permit), Some((tenant, weight))) => {
            Decision::Admitted(permit.with_tenant(tenant, weight))
        }
        (decision, _) => decision,
    }
}

fn has_slots(ask: &Ask<'_>) -> bool {
    ask.charges().any(|charge| charge.policy().has_slots())
}
