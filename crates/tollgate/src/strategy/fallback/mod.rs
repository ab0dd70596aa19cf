//! Answering while the store cannot: by this instance's share, openly, or not at all, as each policy says.
//!
//! One failed call opens it: the gate inside has tried often enough by then ([`Resend`](crate::Resend)). From there on the
//! store is left alone but for one probe every few seconds. What was admitted meanwhile is owed to the store; a subject
//! that owes nothing goes back to it at once, and one that does as soon as that is posted. Nothing of it outlives the
//! process: a crash in an outage forgets what was owed, which is at most the shares.

mod account;
mod gate;
mod settings;
mod state;
mod tend;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tollgate_core::{Costs, OnStoreFailure, Permit, Policy, Span, Timestamp};

use self::account::Job;
pub use self::settings::FallbackSettings;
use self::state::{State, Way, key_of};
use super::chance::Chance;
use super::elsewhere::charge_extra;
use super::resend::within;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind};
use crate::gate::{BoxFuture, Gate};
use crate::observe::{Event, Observer};
use crate::sync::{Mutex, MutexGuard, lock};

/// How long an ask waits for what its subject owes to be posted, before it is answered without the store once more.
pub(crate) const POST_WAIT: Span = Span::from_secs(1);

/// How long the store recognises a posted debt that is sent again.
pub(crate) const POSTED_TTL: Span = Span::from_hours(1);

/// Accounts that are over are looked for at most this often.
const SWEEP_EVERY: Span = Span::from_secs(1);

/// However short the probes are set, this is between two of them.
const LOOK_AGAIN_MIN: Span = Span::from_millis(1);

/// A gate that goes on while its store is away. See `docs/strategies.md`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// use std::sync::Arc;
/// use tollgate::{Atomic, Attempts, Fallback, FallbackSettings, Memory, Resend, SystemClock};
///
/// let clock = Arc::new(SystemClock);
/// let store = Atomic::new(Memory::new()); // in truth a store that can be away
/// let resend = Resend::new(store, Attempts::default(), clock.clone());
/// let gate = Fallback::new(resend, FallbackSettings::new(10), clock)?;
/// assert!(!gate.is_degraded());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Fallback<G: Gate>(Arc<Shared<G>>);

#[derive(Debug)]
struct Shared<G> {
    gate: G,
    clock: Arc<dyn Clock>,
    settings: FallbackSettings,
    chance: Chance,
    observer: Option<Arc<dyn Observer>>,
    state: Mutex<State>,
    /// Whether `state` has to be looked at at all.
    is_degraded: AtomicBool,
}

impl<G: Gate> Fallback<G> {
    /// Answers as each policy's [`OnStoreFailure`] says while `gate` cannot.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if there are no instances, or if the longest time between probes is the shorter.
    pub fn new(gate: G, settings: FallbackSettings, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let invalid = |text: &str| Err(Error::new(ErrorKind::Invalid, text));
        if settings.instances == 0 {
            return invalid("instances 0 must be at least 1: the limits are divided by it");
        }
        if settings.probe_max < settings.probe_min {
            return invalid("probe_max must be at least probe_min");
        }
        let (chance, state) = (Chance::default(), Mutex::new(State::default()));
        let is_degraded = AtomicBool::new(false);
        let shared = Shared { gate, clock, settings, chance, observer: None, state, is_degraded };
        Ok(Self(Arc::new(shared)))
    }

    /// The same with another source of jitter and ids. For a gate that nobody uses yet.
    #[must_use]
    pub fn chance(mut self, chance: Chance) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.0) {
            shared.chance = chance;
        }
        self
    }

    /// The same, telling `observer` when degradation begins and ends. For a gate that nobody uses yet.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.0) {
            shared.observer = Some(observer);
        }
        self
    }

    /// Whether something was decided without the store that the store does not know of yet, or still is.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.0.is_degraded.load(Ordering::Acquire)
    }

    /// How many subjects owe something to the store.
    #[must_use]
    pub fn owing(&self) -> usize {
        self.0.state().owing().len()
    }

    /// Asks a store that failed whether it is back, without waiting for the time of the next probe. Says whether asks go to
    /// the store. At most one probe is on its way at any time.
    pub async fn probe(&self) -> bool {
        if self.0.state().cut.is_none() {
            return true;
        }
        self.0.probe().await
    }

    /// Posts what is owed, for a program that ends.
    ///
    /// # Errors
    /// Why the store could not be told; what is left is lost with the process.
    pub async fn drain(&self) -> Result<(), Error> {
        self.0.post_all().await
    }
}

impl<G> Shared<G> {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn observe(&self, event: &Event<'_>) {
        if let Some(observer) = &self.observer {
            observer.observe(event);
        }
    }

    /// Lets callers see what the state says.
    fn show(&self) {
        let state = self.state();
        self.is_degraded.store(state.is_degraded, Ordering::Release);
    }

    /// Notes that the store failed.
    fn fail(&self, error: &Error, (policy, subject): (&Policy, &str)) {
        let pause = self.chance.between(self.settings.probe_min, self.settings.probe_max);
        let mut state = self.state();
        let began = state.fail(error, self.clock.now(), pause);
        state.failed = Some((policy.clone(), subject.to_owned()));
        drop(state);
        self.show();
        if began {
            self.observe(&Event::DegradedBegan { error });
        }
    }

    /// The error of a policy that does without fallback, or cannot have it.
    fn closed(&self, policy: &Policy, why: &str) -> Error {
        let cause = self.state().cut.clone();
        let text = format!("the store cannot be asked, and policy {:?} {why}", policy.name());
        let text = match &cause {
            Some(cause) => format!("{text}: {cause}"),
            None => text,
        };
        let error = Error::new(ErrorKind::Unavailable, text);
        match cause {
            Some(cause) => error.caused_by(cause),
            None => error,
        }
    }
}

impl<G: Gate> Shared<G> {
    /// Waits until what the subject owes is posted, and says whether the store may be asked.
    async fn ready(&self, of: (&Policy, &str)) -> bool {
        let key = key_of(of.0, of.1);
        let until = self.clock.now() + POST_WAIT;
        loop {
            let way = self.state().way(&key);
            match way {
                Way::Store => return true,
                Way::Local => return false,
                Way::Post => match within(self.post(&key), self.clock.sleep_until(until)).await {
                    Some(Ok(())) => {}
                    Some(Err(error)) => {
                        if error.is_unavailable() {
                            self.fail(&error, of);
                        }
                        return false;
                    }
                    None => return false,
                },
            }
        }
    }

    /// Runs `here` on the account of the subject, as a decision that is made without the store.
    fn locally<T>(
        self: &Arc<Self>,
        policy: &Policy,
        subject: &str,
        here: impl FnOnce(&mut account::Account, Timestamp) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let now = self.clock.now();
        let mut state = self.state();
        state.open_account(policy, subject, now, &self.settings)?;
        let answer = state.counted(&key_of(policy, subject), |account| here(account, now));
        drop(state);
        self.show();
        self.tended();
        answer.unwrap_or_else(|| Err(Error::new(ErrorKind::Corrupt, "an account was lost")))
    }

    /// Keeps `job` for a store that is away.
    fn keep(self: &Arc<Self>, permit: &Permit, job: Job) -> Result<bool, Error> {
        self.has_room()?;
        self.locally(permit.policy(), permit.subject(), |account, now| {
            account.keep(job, now);
            Ok(true)
        })
    }

    /// Whether another call can be kept for the store.
    fn has_room(&self) -> Result<(), Error> {
        self.state().has_room(self.settings.kept_max)
    }

    fn is_cut(&self) -> bool {
        self.is_degraded.load(Ordering::Acquire) && self.state().cut.is_some()
    }
}

impl<G: Gate> Fallback<G> {
    /// Asks the store if it can be asked; if not, or if it fails, answers `here`. `here` is told whether the store may have
    /// carried it out.
    async fn answer<'a, T>(
        &'a self,
        (policy, subject): (&'a Policy, &'a str),
        store: impl FnOnce(&'a G) -> BoxFuture<'a, Result<T, Error>>,
        here: impl FnOnce(&mut account::Account, Timestamp, bool) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let shared = &self.0;
        let mut is_ready = true;
        if self.is_degraded() {
            if !shared.state().is_tended {
                shared.tend_now().await;
            }
            is_ready = shared.ready((policy, subject)).await;
        }
        let mut in_doubt = false;
        if is_ready {
            match store(&shared.gate).await {
                Err(error) if error.is_unavailable() => {
                    in_doubt = shared.has_room().is_ok();
                    shared.fail(&error, (policy, subject));
                    if policy.on_store_failure() == OnStoreFailure::Closed {
                        shared.tended();
                        return Err(error);
                    }
                }
                answer => return answer,
            }
        }
        if policy.on_store_failure() == OnStoreFailure::Closed {
            return Err(shared.closed(policy, "has on_store_failure = \"closed\""));
        }
        shared.locally(policy, subject, |account, now| here(account, now, in_doubt))
    }

    /// Settles what was given without the store where it was given; elsewhere only what it cost beyond the estimate can
    /// be charged, once.
    async fn settle_local(&self, permit: &Permit, actual: Option<&Costs>) -> Result<bool, Error> {
        if !permit.is_charged() {
            return Ok(false);
        }
        let shared = &self.0;
        let (policy, subject) = (permit.policy(), permit.subject());
        let key = key_of(policy, subject);
        let is_ours = shared.state().account(&key).is_some_and(|account| account.gave(permit));
        if is_ours {
            let now = shared.clock.now();
            let settled =
                shared.state().counted(&key, |account| account.settle(permit, actual, now));
            let settled = settled.unwrap_or(Ok(false))?;
            // Costs beyond the estimate may come after everything else was posted.
            let owes = shared.state().account(&key).is_some_and(|account| account.owes());
            if owes {
                shared.state().is_degraded = true;
                shared.show();
                shared.tended();
            }
            return Ok(settled);
        }
        let was = permit.costs();
        let more = |unit| {
            actual
                .and_then(|actual| actual.get(unit))
                .map_or(0, |is: u64| is.saturating_sub(was.get(unit).unwrap_or(0)))
        };
        let costs: Costs = policy.units().map(|unit| (unit, more(unit))).collect();
        charge_extra(self, permit, &costs).await
    }
}

impl<G: Gate> Shared<G> {
    /// Sees to it that somebody probes.
    fn tended(self: &Arc<Self>) {
        let is_untended = !std::mem::replace(&mut self.state().is_tended, true);
        if is_untended && !self.tend() {
            self.state().is_tended = false;
        }
    }
}
