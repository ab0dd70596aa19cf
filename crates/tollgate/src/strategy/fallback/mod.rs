//! Fallback: decides while the store cannot, by this instance's share, openly, or not at all, as each policy is configured.
//!
//! One failed call opens it: the gate inside has tried often enough by then ([`Resend`](crate::strategy::Resend)). From there on the
//! store is left alone but for one probe every few seconds. What was admitted meanwhile is owed to the store, as far as it
//! still counts when it is posted; a subject that owes nothing goes back to it at once, and one that does as soon as that
//! is posted. Nothing of it outlives the process: a crash in an outage forgets what was owed, which is at most the shares,
//! and everything that was admitted where a policy is open.

mod account;
mod answer;
mod gate;
mod joint;
mod options;
mod owed;
mod recovery;
mod state;
mod suspicion;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tollgate_core::{Policy, Span, Timestamp};

use self::options::FIRST_PROBE;
pub use self::options::{FallbackOptions, ShareStart};
use self::state::State;
use self::suspicion::Suspicion;
use super::random::RandomSource;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind};
use crate::gate::Gate;
use crate::internal::timeout_at;
use crate::observe::{Event, Observer};
use crate::sync::{Mutex, MutexGuard, lock};

/// A gate that goes on while its store is away. See `docs/strategies.md`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// use std::sync::Arc;
/// use tollgate::Memory;
/// use tollgate::clock::SystemClock;
/// use tollgate::strategy::{Fallback, FallbackOptions, Resend, ResendOptions};
///
/// let clock = Arc::new(SystemClock);
/// let store = Memory::new(); // in production, a store on a server
/// let resend = Resend::new(store, ResendOptions::default(), clock.clone());
/// let gate = Fallback::new(resend, FallbackOptions::new(10), clock)?;
/// assert!(!gate.is_degraded());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Fallback<G: Gate>(Arc<Shared<G>>);

#[derive(Debug)]
struct Shared<G> {
    gate: G,
    clock: Arc<dyn Clock>,
    options: FallbackOptions,
    random: RandomSource,
    observer: Option<Arc<dyn Observer>>,
    state: Mutex<State>,
    suspicion: Suspicion,
    /// Whether `state` has to be locked at all.
    is_degraded: AtomicBool,
}

impl<G: Gate> Fallback<G> {
    /// Answers as each policy's [`OnStoreFailure`](crate::policy::OnStoreFailure) says while `gate` cannot.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if there are no instances, or if the longest time between probes is the shorter.
    pub fn new(gate: G, options: FallbackOptions, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let invalid = |text: &str| Err(Error::new(ErrorKind::Invalid, text));
        if options.instances == 0 {
            return invalid("instances 0 must be at least 1: the limits are divided by it");
        }
        if options.probe_max < options.probe_min {
            return invalid("probe_max must be at least probe_min");
        }
        let (random, state) = (RandomSource::default(), Mutex::new(State::default()));
        let is_degraded = AtomicBool::new(false);
        let suspicion = Suspicion::default();
        let shared =
            Shared { gate, clock, options, random, observer: None, state, suspicion, is_degraded };
        Ok(Self(Arc::new(shared)))
    }

    /// The same with another source of jitter and ids. For a gate that is not in use yet.
    #[must_use]
    pub fn random(mut self, random: RandomSource) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.0) {
            shared.random = random;
        }
        self
    }

    /// The same, telling `observer` when degradation begins and ends. For a gate that is not in use yet.
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

    /// Whether the store can be reached but does not serve this program until the operator changes something.
    #[must_use]
    pub fn is_misconfigured(&self) -> bool {
        self.is_degraded() && self.0.state().is_misconfigured
    }

    /// How many subjects owe something to the store.
    #[must_use]
    pub fn owing(&self) -> usize {
        self.0.state().owing().len()
    }

    /// Asks a store that failed whether it is back, without waiting for the time of the next probe. Returns whether asks go to
    /// the store. At most one probe is on its way at any time.
    pub async fn probe(&self) -> bool {
        if self.0.state().cut.is_none() {
            return true;
        }
        self.0.probe().await
    }

    /// Posts what is owed to the store, at most until `deadline`.
    ///
    /// # Errors
    /// Why the store did not take everything. The rest is lost with the process.
    pub async fn shutdown(&self, deadline: Timestamp) -> Result<(), Error> {
        timeout_at(&*self.0.clock, deadline, self.0.post_all()).await.unwrap_or_else(|| {
            let text = "fallback: the store did not take what is owed in time";
            Err(Error::new(ErrorKind::TimedOut, text))
        })
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

    /// Publishes `is_degraded` of the state.
    fn show(&self) {
        let state = self.state();
        self.is_degraded.store(state.is_degraded, Ordering::Release);
    }

    /// Notes that the store failed.
    fn fail(&self, error: &Error, (policy, subject): (&Policy, &str)) {
        let mut state = self.state();
        let pause = self.pause(0);
        let began = state.fail(error, self.clock.as_ref(), pause);
        state.failed = Some((policy.clone(), subject.to_owned()));
        let is_news = state.note_misconfigured(error);
        drop(state);
        self.show();
        if began {
            self.observe(&Event::DegradedBegan { error });
        }
        if is_news {
            self.observe(&Event::Misconfigured { error });
        }
    }

    /// The pause after so many probes in vain: short at first, since most outages are.
    fn pause(&self, probes: u32) -> Span {
        let first = FIRST_PROBE.as_micros().saturating_mul(1 << probes.min(16));
        let first = self.random.between(Span::from_micros(first / 2), Span::from_micros(first));
        let FallbackOptions { probe_min, probe_max, .. } = self.options;
        first.min(self.random.between(probe_min.into(), probe_max.into()))
    }
}
