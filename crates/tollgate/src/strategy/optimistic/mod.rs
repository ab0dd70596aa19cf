//! Optimistic: decide from local memory, post to the shared store in the background.
//!
//! Each instance keeps a view of every entry it uses, made from the store's answers, and admits from it at memory speed.
//! What it admitted is posted as one charge every so often, and the answer corrects the view. Between two answers it can
//! be wrong by what others did meanwhile, so it holds at most `unposted_max` of each unit that the store does not know
//! of, and then asks the store. That bounds what all instances together admit over a limit, in any of its windows:
//! [`over_issue_bound`]. An argument for the bound is in `docs/strategies.md`.

mod account;
mod ask;
mod gate;
mod joint;
mod ledger;
mod options;
mod outbox;
mod post;
mod stamp;
mod view;

pub use options::{OptimisticOptions, over_issue_bound};

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tollgate_core::{
    Ask, ChargeRecord, Decision, Denial, Grant, Permit, Policy, Refusal, Timestamp, Verdict,
    standings,
};

use crate::clock::Clock;
use crate::error::Error;
use crate::gate::Gate;
use crate::observe::Observer;
use crate::strategy::random::RandomSource;
use crate::sync::{Mutex, lock};

use account::{Account, Local};
use post::{Key, Shared};
use stamp::Stamps;

/// A gate that decides locally and posts to `gate` in the background.
///
/// The first ask for a subject asks the store; later ones are decided here, as long as the instance holds less than
/// `unposted_max`. What the local view refuses is asked at the store too, so nothing is refused that has room there, and a
/// wait is the store's own. Policies with a concurrency limit, and asks with an id or behind others, always ask the store.
///
/// Posting needs a tokio runtime. Call [`shutdown`](Self::shutdown) before dropping it: what is unposted when it is
/// dropped is lost, as in a crash.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// use std::sync::Arc;
/// use tollgate::clock::SystemClock;
/// use tollgate::strategy::{Optimistic, OptimisticOptions};
/// use tollgate::{Ask, Clock, GateExt, Limit, Memory, Policy, Span, TokenBucket};
///
/// let shared = Arc::new(Memory::new()); // in life, a store that many processes share
/// let clock = Arc::new(SystemClock);
/// let gate = Optimistic::new(shared, OptimisticOptions::new(25), clock.clone());
/// let policy = Policy::new("api", [Limit::new("rate", "requests", TokenBucket::per_second(100))])?;
/// assert!(gate.acquire(&Ask::new(&policy, "alice")).await?.is_admitted());
/// gate.shutdown(clock.now() + Span::from_secs(5)).await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Optimistic<G> {
    shared: Arc<Shared<G>>,
    /// Stopped when the gate is dropped.
    posters: Mutex<JoinSet<()>>,
    stamps: Stamps,
    closing: AtomicBool,
}

impl<G: Gate> Optimistic<G> {
    /// Creates the optimistic gate of one instance around the shared `gate`.
    pub fn new(gate: G, options: OptimisticOptions, clock: Arc<dyn Clock>) -> Self {
        let shared = Shared::new(gate, options, clock);
        Self {
            stamps: Stamps::new(shared.random.draw()),
            shared: Arc::new(shared),
            posters: Mutex::new(JoinSet::new()),
            closing: AtomicBool::new(false),
        }
    }

    /// Reports the unposted amount of a subject to `observer` whenever a post begins and ends
    /// ([`Event::Unposted`](crate::observe::Event::Unposted)): in `requests` where the policy counts them, in its first unit
    /// otherwise. For a gate that is not in use yet.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.observer = Some(observer);
        }
        self
    }

    /// The same with another source of ids, stamps and jitter. For a gate that is not in use yet.
    #[must_use]
    pub fn random(mut self, random: RandomSource) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            (shared.salt, self.stamps) = (random.id(), Stamps::new(random.draw()));
            shared.random = random;
        }
        self
    }

    /// Returns the gate inside.
    pub fn inner(&self) -> &G {
        &self.shared.gate
    }

    /// Decides `ask` from local memory, without waiting; `None` if only the store can decide. A denial under
    /// shadow mode is returned as denied, for the caller to ignore.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for a wrong ask.
    #[inline]
    pub fn try_acquire(&self, ask: &Ask<'_>) -> Result<Option<Verdict>, Error> {
        let answer = self.decide(ask, |_, _, _| ())?;
        Ok(answer.map(|(verdict, ())| verdict))
    }

    /// Decides locally, and lets `look` at the account right after the decision.
    #[inline]
    fn decide<R>(
        &self,
        ask: &Ask<'_>,
        look: impl FnOnce(&Account, &Verdict, Timestamp) -> R,
    ) -> Result<Option<(Verdict, R)>, Error> {
        if ask.id_text().is_some() || !ask.in_front().is_empty() || ask.has_several_charges() {
            return Ok(None);
        }
        let now = self.shared.clock.now();
        let local = self.shared.ledger.with(ask.policy(), ask.subject(), |account| {
            // Read under the lock, so that a shutdown sees every admission.
            if self.closing.load(Ordering::Acquire) {
                return Ok(None);
            }
            let (verdict, wake) = match account.decide(ask, now)? {
                Local::AskStore => return Ok(None),
                Local::Denied(refusal) => (Verdict::Denied(refusal), false),
                Local::Admitted { charge, wake } => {
                    let stamp = self.stamps.stamp(charge.stamp);
                    (Verdict::Admitted(ChargeRecord { stamp, ..charge }), wake)
                }
            };
            let seen = look(account, &verdict, now);
            Ok(Some((verdict, seen, wake)))
        });
        match local.transpose().map(Option::flatten) {
            Ok(Some((verdict, seen, wake))) => {
                if wake {
                    self.wake(ask.policy(), ask.subject());
                }
                Ok(Some((verdict, seen)))
            }
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The local decision as a gate's answer.
    fn local(&self, ask: &Ask<'_>) -> Result<Option<Decision>, Error> {
        let answer = self.decide(ask, |account, verdict, now| match verdict {
            Verdict::Admitted(_) | Verdict::Repeated(_) => Err(standings(account.view(), now)),
            Verdict::Denied(refusal) => Ok(account.denial(ask, *refusal, now)),
        })?;
        Ok(answer.map(|answer| match answer {
            (Verdict::Admitted(charge) | Verdict::Repeated(charge), limits) => {
                let grant = Grant::new(charge, ask.policy(), ask.amounts());
                Decision::Admitted(Permit::for_ask(ask, grant, limits.err().unwrap_or_default()))
            }
            (Verdict::Denied(refusal), denial) => self.denied(ask, refusal, denial.ok()),
        }))
    }

    fn denied(&self, ask: &Ask<'_>, refusal: Refusal, denial: Option<Denial>) -> Decision {
        let now = self.shared.clock.now();
        let denial = denial.unwrap_or_else(|| Denial::for_ask(ask, refusal, now, Vec::new()));
        if ask.policy().is_shadow() {
            Decision::Admitted(Permit::in_shadow(ask, denial))
        } else {
            Decision::Denied(denial)
        }
    }

    /// Starts or hurries the poster of this account.
    #[cold]
    fn wake(&self, policy: &Policy, subject: &str) {
        let Ok(runtime) = Handle::try_current() else { return };
        let key: Option<Option<Key>> = self.shared.ledger.with(policy, subject, |account| {
            if account.posting {
                account.outbox().urge();
                return None;
            }
            account.posting = true;
            Some((account.policy().clone(), account.subject.clone()))
        });
        if let Some(key) = key.flatten() {
            let mut posters = lock(&self.posters);
            while posters.try_join_next().is_some() {}
            posters.spawn_on(Arc::clone(&self.shared).post(key), &runtime);
        }
    }

    /// Posts the admissions of this subject now, and waits until the store has them. Returns whether there were any.
    ///
    /// # Errors
    /// Why the store could not take it; it is kept and sent again.
    pub async fn flush(&self, policy: &Policy, subject: &str) -> Result<bool, Error> {
        let waiting = self.shared.ledger.with(policy, subject, |account| {
            (account.has_calls(), account.posting, account.subject.clone())
        });
        let Some((true, posting, subject)) = waiting else { return Ok(false) };
        if !posting {
            self.wake(policy, &subject);
        }
        self.shared.flush(&(policy.clone(), subject)).await
    }

    /// Posts everything. From now on every ask goes to the store.
    ///
    /// # Errors
    /// [`Unavailable`](crate::ErrorKind::Unavailable) if the store did not take everything by `deadline`.
    pub async fn shutdown(&self, deadline: Timestamp) -> Result<(), Error> {
        self.closing.store(true, Ordering::Release);
        self.shared.ledger.end();
        for (policy, subject) in self.shared.ledger.with_calls() {
            // Twice: the first may begin a poster, and the second keeps it from waiting for more.
            self.wake(&policy, &subject);
            self.wake(&policy, &subject);
        }
        self.shared.finish(deadline).await
    }

    /// How much of each unit of `policy` was admitted for `subject` and is not known to the store yet.
    pub fn unposted(&self, policy: &Policy, subject: &str) -> tollgate_core::Costs {
        let unposted = self.shared.ledger.with(policy, subject, |account| account.unposted());
        policy.costs(&unposted.unwrap_or_default())
    }
}
