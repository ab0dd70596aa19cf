//! Leased: takes blocks of tokens from the store in one write, spends them here, and gives back what is left.
//!
//! Exact and local at once. What is spent in an interval was leased in one that is at most `block_ttl` longer, and the
//! numbers that every gate on such a policy keeps to allow for that, so the limit holds at the time of *spending*. What a
//! caller gives up: a standing counts the tokens that lie unspent in blocks as used, a refusal may be as old as a block,
//! and a crash keeps what it held from everybody until the rule itself restores it.
//!
//! A permit out of a block says so in its stamp ([`LOCAL_STAMPS`](tollgate_core::bounds::LOCAL_STAMPS)): a random number
//! of the block, and its own in it. No store settles such a permit, so one that comes to another instance, or after a
//! restart, gives nothing back: the block it came from is accounted for by whoever holds it, or by time.

mod block;
mod book;
mod desk;
mod gate;
mod lease;
mod traffic;

use std::sync::Arc;

use tollgate_core::{Amounts, Ask, Decision, Permit, Policy, Span, Timestamp, Verdict};

use crate::clock::Clock;
use crate::error::{Error, ErrorKind};
use crate::gate::Gate;
use crate::observe::Observer;
use crate::strategy::chance::Chance;
use crate::strategy::elsewhere::charge_extra;
use crate::strategy::resend::within;

use block::{Block, Moment};
use book::Settling;
use desk::{Desk, Local, SHARE_PARTS};
use traffic::Shared;

/// For how many subjects an instance holds blocks unless told otherwise. Beyond it asks go to the store.
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
    pub skew: Span,
    /// How long a block that has ended waits for its permits to be settled for less before what is left goes back. The
    /// store takes one return only, and a permit settled later keeps its estimate.
    pub settle_wait: Span,
    /// How often a lease is sent before those who wait for it learn that nobody answers. Once is right around a gate that
    /// sends again by itself, such as [`Resend`](crate::Resend).
    pub lease_tries: u32,
    /// Is told of every block that is asked for and given back.
    pub observer: Option<Arc<dyn Observer>>,
}

impl Default for LeasedOptions {
    fn default() -> Self {
        Self {
            subjects_max: SUBJECTS_MAX_DEFAULT,
            skew: Span::from_millis(10),
            settle_wait: Span::from_secs(10),
            lease_tries: 2,
            observer: None,
        }
    }
}

/// A gate that spends blocks of tokens taken from `G` in advance, where the policy has a `block_ttl`.
///
/// Asks with an id, asks behind others, and asks of policies that cannot be leased (no `block_ttl`, slots, shadow mode,
/// or fewer than two asks in a sixteenth of the limit) go to `G` as they are. Needs a tokio runtime.
///
/// An ask that waits for a block is answered within twice the `block_ttl` and twice the longest that `G` takes: it stands
/// in line for at most a `block_ttl` before its last lease is sent, no lease asks anything when it is as old, and then the
/// ask goes to `G` itself.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use tollgate::{
///     Ask, Atomic, Gate, Leased, LeasedOptions, Limit, Memory, Policy, Span, SystemClock, TokenBucket,
/// };
///
/// let policy = Policy::builder("api")
///     .limit(Limit::new("rate", "requests", TokenBucket::per_second(10_000)))
///     .block_ttl(Span::from_millis(50))
///     .build()?;
/// let store = Atomic::new(Memory::new());
/// let gate = Leased::new(store, LeasedOptions::default(), Arc::new(SystemClock));
/// for _ in 0..1_000 {
///     assert!(gate.acquire(&Ask::new(&policy, "alice")).await?.is_admitted());
/// }
/// gate.shutdown().await;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Leased<G: Gate>(Arc<Shared<G>>);

impl<G: Gate> Leased<G> {
    /// Leases from `gate`, by the time of `clock`.
    pub fn new(gate: G, options: LeasedOptions, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Shared::new(gate, options, clock)))
    }

    /// The same with another source of ids, block numbers and jitter. For a gate that nobody uses yet.
    #[must_use]
    pub fn chance(mut self, chance: Chance) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.0) {
            shared.chance = chance;
        }
        self
    }

    /// The gate inside.
    pub fn inner(&self) -> &G {
        &self.0.gate
    }

    /// Decides `ask` out of a block or by a refusal that still stands, without waiting and without allocating. Nothing
    /// if only [`acquire`](Gate::acquire) can tell.
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
        Ok(self.local(ask, now, |desk, local| match local {
            Local::Spent { charge, .. } => Some(Verdict::Admitted(charge)),
            Local::Refused => {
                let scarcity = desk.scarcity.as_ref()?;
                Some(Verdict::Denied(scarcity.refusal(&desk.policy, ask.amounts())))
            }
            Local::Ask => None,
        }))
    }

    /// Gives every block back and waits until that is done. Afterwards every ask goes to the store.
    pub async fn shutdown(&self) {
        self.0.shut_down().await;
    }

    /// As [`shutdown`](Self::shutdown), but waits no longer than until `deadline`.
    ///
    /// # Errors
    /// [`Unavailable`](crate::ErrorKind::Unavailable) if the store did not take every block by then. Nothing is lost: the rule
    /// restores what the block held, as after a crash.
    pub async fn shutdown_by(&self, deadline: Timestamp) -> Result<(), Error> {
        let late = self.0.clock.sleep_until(deadline);
        let unreturned = match within(self.0.shut_down(), late).await {
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

    /// Answers from the desk, and has the next block fetched if the one at hand runs low.
    #[inline]
    fn local<T>(
        &self,
        ask: &Ask<'_>,
        now: Moment,
        answer: impl FnOnce(&Desk, Local) -> Option<T>,
    ) -> Option<T> {
        let (policy, subject) = (ask.policy(), ask.subject());
        let (answer, low) = self.0.book.with(policy, subject, |desk| {
            let local = desk.answer(ask, now);
            let low = matches!(local, Local::Spent { low: true, .. });
            desk.leasing |= low;
            (answer(desk, local), low)
        })?;
        if low {
            self.0.begin_lease(policy, subject, true);
        }
        answer
    }

    async fn decide(&self, ask: &Ask<'_>) -> Result<Decision, Error> {
        ask.check()?;
        if !is_plain(ask) || !ask.policy().is_leased() {
            return self.0.gate.acquire(ask).await;
        }
        let now = self.0.now();
        let local = self.local(ask, now, |desk, local| match local {
            Local::Spent { place, charge, .. } => {
                let permit = desk.permit(place, charge.stamp, ask.amounts(), now);
                Some(Decision::Admitted(permit))
            }
            Local::Refused => {
                let scarcity = desk.scarcity.as_ref()?;
                Some(Decision::Denied(scarcity.denial(&desk.policy, ask.amounts(), now)))
            }
            Local::Ask => None,
        });
        match local {
            Some(decision) => Ok(decision),
            None => self.wait_for_lease(ask, now).await,
        }
    }

    async fn wait_for_lease(&self, ask: &Ask<'_>, now: Moment) -> Result<Decision, Error> {
        let (policy, subject, amounts) = (ask.policy(), ask.subject(), *ask.amounts());
        let worth = Amounts::from_fn(|unit| amounts.at(unit).saturating_mul(BLOCK_ASKS_MIN));
        if !policy.block_max(SHARE_PARTS).covers(&worth) || amounts.is_zero() {
            return self.0.gate.acquire(ask).await;
        }
        let joined = self.0.book.with_new(policy, subject, now, |desk| {
            desk.adopt(policy);
            desk.takes_blocks(now).then(|| {
                let begins = !std::mem::replace(&mut desk.leasing, true);
                desk.wait(amounts, now).map(|answer| (answer, begins))
            })
        });
        let Some(joined) = joined.flatten() else { return self.0.gate.acquire(ask).await };
        let (answer, begins) = joined?;
        if begins {
            self.0.begin_lease(policy, subject, false);
        }
        match answer.await {
            Ok(decision) => decision,
            Err(_) => self.0.gate.acquire(ask).await,
        }
    }

    /// Settles a permit out of a block for `actual`.
    async fn settle_local(&self, permit: &Permit, actual: &Amounts) -> Result<bool, Error> {
        let now = self.0.now();
        permit.charged().check_age(now.wall)?;
        let post = match self.0.book.settle(permit, actual, now, false) {
            Settling::Before => return Ok(false),
            Settling::Done(ended) => return Ok(self.settled(ended)),
            Settling::Post(extra) => extra,
            Settling::Unknown => actual.minus(permit.charged().amounts),
        };
        if !charge_extra(&self.0.gate, permit, &permit.policy().costs(&post)).await? {
            return Ok(false);
        }
        match self.0.book.settle(permit, actual, self.0.now(), true) {
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
        self.0.book.with(policy, subject, Desk::stop);
    }
}

/// Whether the ask has no id and stands behind nobody. A repeat must be recognised wherever it comes, and only the store
/// knows who stands in front.
#[inline]
fn is_plain(ask: &Ask<'_>) -> bool {
    ask.id_text().is_none() && ask.in_front().is_empty()
}

/// What a crash leaves: blocks that nobody spends, until the rule restores them.
impl<G: Gate> Drop for Leased<G> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
