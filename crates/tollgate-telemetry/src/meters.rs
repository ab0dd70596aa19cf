//! Counting on the path of every decision: no lock, no allocation, no lookup by text.
//!
//! A policy is found by the hash of its name, which it carries, in a table of fixed size. Counters that every decision
//! touches are kept once per lane, and each thread has a lane of its own. Readers add up the lanes.
//!
//! All sinks of metrics read the same counters, so a decision pays once however many there are.

mod lane;
mod limits;
mod policy;
mod translation;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tollgate::{Event, Observer, Policy, Timestamp, Tried};

use crate::catalogue;
use crate::snapshot::{Series, Snapshot, Value};

use lane::Place;
use policy::{Outcome, PolicyMeters};

pub use translation::{CallOutcome, Ongoing, TranslationMeters};

/// The most policies that are told apart; further ones are counted together as [`OTHER`].
pub const POLICIES_MAX: usize = 256;

/// The name under which policies beyond [`POLICIES_MAX`] are counted.
pub const OTHER: &str = "(other)";

/// Twice the number of policies, so that a search is short.
const PLACES: usize = 2 * POLICIES_MAX;

/// The most pairs of an action and an API key that are counted: more than a configuration can have.
const ADMINISTERED_MAX: usize = 16_384;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How often a key did something, by what it did and its name.
type Administered = BTreeMap<(Box<str>, Box<str>), u64>;

/// What every decision counts, for any number of readers.
pub struct Meters {
    /// Found by the hash of the name; the next place is tried where one is taken.
    places: Box<[OnceLock<PolicyMeters>]>,
    taken: AtomicU64,
    other: OnceLock<PolicyMeters>,
    /// By action and API key.
    administered: Mutex<Administered>,
    fallback: AtomicU64,
    is_degraded: AtomicBool,
    sinks: OnceLock<Box<[Arc<SinkTally>]>>,
    translation: OnceLock<TranslationMeters>,
}

/// What became of the events of one sink.
#[derive(Debug)]
pub(crate) struct SinkTally {
    name: &'static str,
    pub(crate) dropped: AtomicU64,
    pub(crate) failures: AtomicU64,
    /// Whether the last write failed.
    pub(crate) is_failing: AtomicBool,
}

impl SinkTally {
    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            name,
            dropped: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            is_failing: AtomicBool::new(false),
        }
    }
}

impl Meters {
    /// Meters that have seen nothing.
    #[must_use]
    pub fn new() -> Self {
        Self {
            places: (0..PLACES).map(|_| OnceLock::new()).collect(),
            taken: AtomicU64::new(0),
            other: OnceLock::new(),
            administered: Mutex::default(),
            fallback: AtomicU64::new(0),
            is_degraded: AtomicBool::new(false),
            sinks: OnceLock::new(),
            translation: OnceLock::new(),
        }
    }

    /// What translations count, which is shown from the first call of this on.
    #[must_use]
    pub fn translation(&self) -> &TranslationMeters {
        self.translation.get_or_init(TranslationMeters::default)
    }

    /// Shows what became of the events of `sinks` too. Only the first call has an effect.
    pub(crate) fn watch(&self, sinks: Box<[Arc<SinkTally>]>) {
        drop(self.sinks.set(sinks));
    }

    #[inline]
    fn of(&self, policy: &Policy) -> &PolicyMeters {
        let mut place = usize::try_from(policy.name_hash() & (PLACES as u64 - 1)).unwrap_or(0);
        for _ in 0..PLACES {
            match self.places[place].get() {
                Some(meters) if meters.is_of(policy) => return meters,
                Some(_) => place = (place + 1) & (PLACES - 1),
                None => break,
            }
        }
        self.add(policy, place)
    }

    #[cold]
    fn add(&self, policy: &Policy, first: usize) -> &PolicyMeters {
        let mut place = first;
        for _ in 0..PLACES {
            if self.places[place].get().is_none() && POLICIES_MAX as u64 <= self.taken.load(Relaxed)
            {
                break;
            }
            let meters = self.places[place].get_or_init(|| {
                self.taken.fetch_add(1, Relaxed);
                PolicyMeters::new(Some(policy))
            });
            if meters.is_of(policy) {
                return meters;
            }
            place = (place + 1) & (PLACES - 1);
        }
        self.other.get_or_init(|| PolicyMeters::new(None))
    }

    /// Every series as of now.
    #[must_use]
    pub fn snapshot(&self, at: Timestamp) -> Snapshot {
        let mut series = Vec::new();
        for meters in self.places.iter().chain([&self.other]).filter_map(OnceLock::get) {
            meters.read(&mut series);
        }
        let number =
            |metric, labels, number| Series { metric, labels, value: Value::Number(number) };
        for ((action, key), count) in &*lock(&self.administered) {
            let labels = vec![Arc::from(&**action), Arc::from(&**key)];
            series.push(number(&catalogue::ADMINISTERED, labels, *count));
        }
        series.push(number(&catalogue::FALLBACK, Vec::new(), self.fallback.load(Relaxed)));
        let active = u64::from(self.is_degraded.load(Relaxed));
        series.push(number(&catalogue::FALLBACK_ACTIVE, Vec::new(), active));
        if let Some(translation) = self.translation.get() {
            translation.read(&mut series);
        }
        for sink in self.sinks.get().into_iter().flatten() {
            let labels = vec![Arc::from(sink.name)];
            series.push(number(&catalogue::DROPPED, labels.clone(), sink.dropped.load(Relaxed)));
            series.push(number(&catalogue::SINK_FAILURES, labels, sink.failures.load(Relaxed)));
        }
        let order = |series: &Series| {
            catalogue::METRICS.iter().position(|metric| metric.name == series.metric.name)
        };
        series.sort_by_key(order);
        Snapshot { at, series }
    }
}

impl Default for Meters {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Meters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meters").field("policies", &self.taken).finish_non_exhaustive()
    }
}

impl Observer for Meters {
    #[inline]
    fn observe(&self, event: &Event<'_>) {
        match event {
            Event::Admitted { ask, permit, took } => {
                let meters = self.of(ask.policy());
                let place = Place::mine();
                meters.took(place, Outcome::Admitted, *took);
                if permit.shadow_denied.is_none() {
                    meters.charged(place, ask, &permit.limits);
                }
                if permit.degraded || permit.shadow_denied.is_some() {
                    meters.rare(permit.degraded, permit.shadow_denied.is_some());
                }
            }
            Event::Denied { ask, denial, took } => {
                let meters = self.of(ask.policy());
                meters.took(Place::mine(), Outcome::Denied, *took);
                meters.limits.refused(ask.policy(), denial);
                meters.rare(denial.degraded, false);
            }
            other => self.observe_rare(other),
        }
    }
}

impl Meters {
    #[cold]
    fn observe_rare(&self, event: &Event<'_>) {
        match event {
            Event::Charged { ask } => self.of(ask.policy()).charged_unseen(ask),
            Event::Failed { policy, took, .. } => {
                let meters = self.of(policy);
                meters.took(Place::mine(), Outcome::Failed, *took);
                meters.errors.fetch_add(1, Relaxed);
            }
            Event::Tried { policy, attempt, took, result } => {
                self.of(policy).tried(*attempt, *took, *result);
            }
            Event::Administered { action, by } => {
                let mut counts = lock(&self.administered);
                let place = ((*action).into(), (*by).into());
                if counts.len() < ADMINISTERED_MAX || counts.contains_key(&place) {
                    *counts.entry(place).or_default() += 1;
                }
            }
            Event::DegradedBegan { .. } => {
                self.fallback.fetch_add(1, Relaxed);
                self.is_degraded.store(true, Relaxed);
            }
            Event::DegradedEnded { .. } => self.is_degraded.store(false, Relaxed),
            Event::Unposted { policy, unposted, unposted_max } => {
                self.of(policy).unposted(*unposted, *unposted_max);
            }
            Event::OverIssued { policy, limit, amount } => {
                self.of(policy).limits.over_issued(policy, limit, *amount);
            }
            Event::Mended { policy, .. } => {
                self.of(policy).mended.fetch_add(1, Relaxed);
            }
            Event::Violated { policy, incident } => {
                self.of(policy).limits.violated(policy, &incident.limit);
            }
            _ => {}
        }
    }
}

/// The word for how a try ended.
pub(crate) const fn word_of(result: Tried) -> &'static str {
    match result {
        Tried::Answered => "answered",
        Tried::Raced => "raced",
        Tried::Throttled => "throttled",
        Tried::Failed => "failed",
    }
}
