//! Leased: takes blocks of tokens from the store in one write, spends them locally, and returns the rest.
//!
//! Exact and local at once. What is spent in an interval was leased in one that is at most `block_ttl` longer, and the
//! numbers that every gate on such a policy keeps to allow for that, so the limit holds at the time of *spending*. What a
//! caller gives up: a standing counts the tokens that lie unspent in blocks as used, a refusal may be as old as a block,
//! and the tokens of a crashed instance are unavailable until the rule restores them.
//!
//! A permit out of a block says so in its stamp ([`LOCAL_STAMPS`](tollgate_core::bounds::LOCAL_STAMPS)): a random number
//! of the block, and its own in it. No store settles such a permit, so one that is settled at another instance, or after a
//! restart, refunds nothing: the instance that holds its block accounts for it, or time does.
//!
//! Of an ask with several charges, those of leased policies are spent from the blocks at hand, and the store decides the
//! others together ([`joint`]). Without a block for one of them the store decides the whole ask.

mod block;
mod cached_denial;
mod joint;
mod lease;
mod subject_map;
mod subject_state;
mod worker;

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{
    Amounts, Ask, Decision, Operation, Outcome, Permit, Policy, Timestamp, Verdict,
};

use crate::clock::Clock;
use crate::error::{Error, ErrorKind};
use crate::gate::{BoxFuture, Gate, decide};
use crate::internal::timeout_at;
use crate::observe::Observer;
use crate::strategy::foreign_permit::charge_extra;
use crate::strategy::random::RandomSource;

use block::{Block, Moment};
use subject_map::Settling;
use subject_state::{Local, SHARE_PARTS, SubjectState};
use worker::Shared;

/// The default number of subjects for which an instance holds blocks. Asks of further subjects go to the store.
pub const SUBJECTS_MAX_DEFAULT: usize = 100_000;

/// A block that does not hold this many asks is not worth taking.
const BLOCK_ASKS_MIN: u64 = 2;

/// How blocks are held.
#[derive(Clone, Debug)]
pub struct LeasedOptions {
    /// For how many subjects blocks are held.
    pub subjects_max: usize,
    /// How far instances may differ about when a calendar window or an interval ends: blocks end that much before. Zero
    /// is right for a store that decides by its own clock.
    pub skew: Duration,
    /// How long a block that has ended waits for its permits to be settled for less before its rest is returned. The
    /// store takes one return only, and a permit settled later keeps its estimate.
    pub settle_wait: Duration,
    /// How often a lease is sent before its waiters fail. Once is right around a gate that
    /// resends on its own, such as [`Resend`](crate::strategy::Resend).
    pub lease_tries: u32,
}

impl Default for LeasedOptions {
    fn default() -> Self {
        Self {
            subjects_max: SUBJECTS_MAX_DEFAULT,
            skew: Duration::from_millis(10),
            settle_wait: Duration::from_secs(10),
            lease_tries: 2,
        }
    }
}

/// A gate that spends blocks of tokens taken from `G` in advance, where the policy has a `block_ttl`.
///
/// Asks with an id, asks behind others, and asks of policies that cannot be leased (no `block_ttl`, slots, shadow mode,
/// or fewer than two asks in a sixteenth of the limit) go to `G` as they are. Needs a tokio runtime.
///
/// Of an ask with several charges, those of leased policies are spent from blocks, and `G` decides the others as one ask.
/// What was spent goes back to its blocks unless all of them are admitted. If one of the blocks is missing, the whole ask
/// goes to `G`.
///
/// An ask that waits for a block is answered within twice the `block_ttl` and twice the longest that `G` takes: it
/// queues for at most a `block_ttl` before its last lease is sent, no lease asks anything when it is as old, and then the
/// ask goes to `G` itself.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use tollgate::clock::SystemClock;
/// use tollgate::strategy::{Leased, LeasedOptions};
/// use tollgate::{Ask, Clock, GateExt, Limit, Memory, Policy, Span, TokenBucket};
///
/// let policy = Policy::builder("api")
///     .limit(Limit::new("rate", "requests", TokenBucket::per_second(10_000)))
///     .block_ttl(Span::from_millis(50))
///     .build()?;
/// let gate = Leased::new(Memory::new(), LeasedOptions::default(), Arc::new(SystemClock));
/// for _ in 0..1_000 {
///     assert!(gate.acquire(&Ask::new(&policy, "alice")).await?.is_admitted());
/// }
/// gate.shutdown(SystemClock.now() + Span::from_secs(5)).await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Leased<G: Gate>(Arc<Shared<G>>);

impl<G: Gate> Leased<G> {
    /// Leases from `gate`, by the time of `clock`.
    pub fn new(gate: G, options: LeasedOptions, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Shared::new(gate, options, clock)))
    }

    /// The same with another source of ids, block numbers and jitter. For a gate that is not in use yet.
    #[must_use]
    pub fn random(mut self, random: RandomSource) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.0) {
            shared.random = random;
        }
        self
    }

    /// Reports every block that is leased and returned to `observer`. For a gate that is not in use yet.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.0) {
            shared.observer = Some(observer);
        }
        self
    }

    /// Returns the gate inside.
    pub fn inner(&self) -> &G {
        &self.0.gate
    }

    /// Decides `ask` from a block or by a cached denial, without waiting and without allocating. `None`
    /// if only [`acquire`](crate::GateExt::acquire) can tell.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for a wrong ask.
    #[inline]
    pub fn try_acquire(&self, ask: &Ask<'_>) -> Result<Option<Verdict>, Error> {
        ask.check()?;
        if !is_plain(ask) {
            return Ok(None);
        }
        let now = self.0.now();
        Ok(self.local(ask, now, |state, local| match local {
            Local::Spent { charge, .. } => Some(Verdict::Admitted(charge)),
            Local::Refused => {
                let cached_denial = state.cached_denial.as_ref()?;
                Some(Verdict::Denied(cached_denial.refusal(&state.policy, ask.amounts())))
            }
            Local::Ask => None,
        }))
    }

    /// Returns every block to the store, at most until `deadline`. Afterwards every ask goes to the store.
    ///
    /// # Errors
    /// [`Unavailable`](crate::ErrorKind::Unavailable) if the store did not take every block by then. Nothing is lost: the rule
    /// restores what the block held, as after a crash.
    pub async fn shutdown(&self, deadline: Timestamp) -> Result<(), Error> {
        let unreturned = match timeout_at(&*self.0.clock, deadline, self.0.shut_down()).await {
            Some(0) => return Ok(()),
            Some(some) => format!("{some} blocks"),
            None => "some blocks".to_owned(),
        };
        self.0.abort();
        let text = format!(
            "leased: the store did not take {unreturned} back in time; what they held comes back as the rule restores it"
        );
        Err(Error::new(ErrorKind::Unavailable, text))
    }

    /// Decides by the local state, and starts the next lease if the present block runs low.
    #[inline]
    fn local<T>(
        &self,
        ask: &Ask<'_>,
        now: Moment,
        answer: impl FnOnce(&SubjectState, Local) -> Option<T>,
    ) -> Option<T> {
        let (policy, subject) = (ask.policy(), ask.subject());
        let (answer, low) = self.0.subjects.with(policy, subject, |state| {
            let local = state.answer(ask, now);
            let low = matches!(local, Local::Spent { low: true, .. });
            state.leasing |= low;
            (answer(state, local), low)
        })?;
        if low {
            self.0.begin_lease(policy, subject, true);
        }
        answer
    }

    /// Decides `ask` without the store, if a block or a cached denial can.
    fn try_decide(&self, ask: &Ask<'_>) -> Result<Option<Decision>, Error> {
        ask.check()?;
        if ask.has_several_charges() {
            return Ok(self.try_jointly(ask));
        }
        if !is_plain(ask) || !ask.policy().is_leased() {
            return Ok(None);
        }
        let now = self.0.now();
        Ok(self.local(ask, now, |state, local| match local {
            Local::Spent { index, charge, .. } => {
                let permit = state.permit(index, charge.stamp, ask.amounts(), now);
                Some(Decision::Admitted(permit))
            }
            Local::Refused => {
                let cached_denial = state.cached_denial.as_ref()?;
                Some(Decision::Denied(cached_denial.denial(&state.policy, ask.amounts(), now)))
            }
            Local::Ask => None,
        }))
    }

    async fn decide(&self, ask: &Ask<'_>) -> Result<Decision, Error> {
        if ask.has_several_charges() {
            return self.decide_jointly(ask).await;
        }
        if let Some(decision) = self.try_decide(ask)? {
            return Ok(decision);
        }
        if !is_plain(ask) || !ask.policy().is_leased() {
            return decide(&self.0.gate, ask).await;
        }
        self.wait_for_lease(ask, self.0.now()).await
    }

    async fn wait_for_lease(&self, ask: &Ask<'_>, now: Moment) -> Result<Decision, Error> {
        let (policy, subject, amounts) = (ask.policy(), ask.subject(), *ask.amounts());
        if !is_worth_a_block(ask) {
            return decide(&self.0.gate, ask).await;
        }
        let joined = self.0.subjects.with_new(policy, subject, now, |state| {
            state.adopt(policy);
            state.takes_blocks(now).then(|| {
                let begins = !std::mem::replace(&mut state.leasing, true);
                state.wait(amounts, now).map(|answer| (answer, begins))
            })
        });
        let Some(joined) = joined.flatten() else { return decide(&self.0.gate, ask).await };
        let (answer, begins) = joined?;
        if begins {
            self.0.begin_lease(policy, subject, false);
        }
        match answer.await {
            Ok(decision) => decision,
            Err(_) => decide(&self.0.gate, ask).await,
        }
    }

    /// Settles a permit out of a block for `actual`.
    async fn settle_local(&self, permit: &Permit, actual: &Amounts) -> Result<bool, Error> {
        let now = self.0.now();
        permit.charged().check_age(now.wall)?;
        let post = match self.0.subjects.settle(permit, actual, now, false) {
            Settling::Before => return Ok(false),
            Settling::Done(ended) => return Ok(self.settled(ended)),
            Settling::Post(extra) => extra,
            Settling::Unknown => actual.minus(permit.charged().amounts),
        };
        if !charge_extra(&self.0.gate, permit, &permit.policy().costs(&post)).await? {
            return Ok(false);
        }
        match self.0.subjects.settle(permit, actual, self.0.now(), true) {
            Settling::Before => Ok(false),
            Settling::Done(ended) => Ok(self.settled(ended)),
            Settling::Post(_) | Settling::Unknown => Ok(true),
        }
    }

    fn settled(&self, ended: Option<Box<Block>>) -> bool {
        if let Some(block) = ended {
            self.0.begin_return(*block);
        }
        true
    }

    fn stop(&self, policy: &Policy, subject: &str) {
        self.0.subjects.with(policy, subject, SubjectState::stop);
    }
}

/// Returns whether a block holds enough asks of this kind.
fn is_worth_a_block(ask: &Ask<'_>) -> bool {
    let amounts = ask.amounts();
    let worth = Amounts::from_fn(|unit| amounts.at(unit).saturating_mul(BLOCK_ASKS_MIN));
    ask.policy().block_max(SHARE_PARTS).covers(&worth) && !amounts.is_zero()
}

/// Returns whether the ask has one charge, no id and no asks in front. Only the store recognises a repeated id and knows the
/// asks in front.
#[inline]
fn is_plain(ask: &Ask<'_>) -> bool {
    ask.id_text().is_none() && ask.in_front().is_empty() && !ask.has_several_charges()
}

impl<G: Gate> Gate for Leased<G> {
    /// Standings are the store's: unspent tokens in blocks, here or elsewhere, count as used.
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        match operation {
            Operation::Acquire(ask) => {
                Box::pin(async move { self.decide(ask).await.map(Outcome::Decided) })
            }
            Operation::Settle(permit, _)
            | Operation::Release(permit)
            | Operation::Renew(permit)
                if operation.is_joint() =>
            {
                if permit.parts().any(|part| part.is_local()) {
                    Box::pin(self.run_on_joint(operation, permit))
                } else {
                    self.0.gate.run(operation)
                }
            }
            Operation::Settle(permit, actual) if permit.is_local() => Box::pin(async move {
                let actual = permit.charged().with_actual(actual)?;
                self.settle_local(permit, &actual).await.map(Outcome::Changed)
            }),
            Operation::Release(permit) if permit.is_local() => Box::pin(async move {
                self.settle_local(permit, &Amounts::default()).await.map(Outcome::Changed)
            }),
            // A permit out of a block holds no slot and is returned as it is.
            Operation::Renew(permit) if permit.is_local() => {
                Box::pin(ready(Ok(Outcome::Permitted(permit.clone()))))
            }
            // Blocks of this instance are not spent from now on; those of others end within the `block_ttl`.
            Operation::Close { policy, subject, .. } | Operation::Reset { policy, subject } => {
                Box::pin(async move {
                    self.stop(policy, subject);
                    let outcome = self.0.gate.run(operation).await;
                    // A block may have been leased while the store ran the operation.
                    self.stop(policy, subject);
                    outcome
                })
            }
            other => self.0.gate.run(other),
        }
    }

    fn try_run(&self, operation: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        match operation {
            Operation::Acquire(ask) => match self.try_decide(ask) {
                Ok(decision) => decision.map(|decision| Ok(Outcome::Decided(decision))),
                Err(error) => Some(Err(error)),
            },
            _ => None,
        }
    }
}

/// Leaves unreturned blocks as a crash does: the rule restores them.
impl<G: Gate> Drop for Leased<G> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
