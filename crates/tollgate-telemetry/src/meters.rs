//! Counters on the path of every decision: no lock, no allocation, no lookup by text.
//!
//! A policy is found by its hash in a table of fixed size. Counters that every decision touches exist once per lane, and
//! each thread owns a lane; readers add up the lanes. All sinks read the same counters, so the cost of a decision does not
//! depend on their number.

mod gateway;
mod lane;
mod limits;
mod policy;
mod translation;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tollgate::observe::{AttemptResult, Event, Observer};
use tollgate::{Ask, Policy, Timestamp};

use crate::catalogue;
use crate::snapshot::{Series, Snapshot, Value};

use lane::LaneId;
use policy::{Outcome, PolicyMeters};

pub use gateway::{GatewayCall, GatewayLevels, GatewayMeters, GatewayOutcome};
pub use translation::{CallOutcome, Ongoing, TranslationMeters};

/// The most policies that are counted separately; further ones are counted as [`OTHER`].
pub const POLICIES_MAX: usize = 256;

/// The name under which policies beyond [`POLICIES_MAX`] are counted.
pub const OTHER: &str = "(other)";

/// Twice the bound, so that a search is short.
const TABLE_SIZE: usize = 2 * POLICIES_MAX;

/// The most pairs of an action and an API key: more than a configuration can have.
const ADMINISTERED_MAX: usize = 16_384;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts by action and API key.
type Administered = BTreeMap<(Box<str>, Box<str>), u64>;

/// The counters of all decisions, for any number of readers.
pub struct Meters {
    /// A hash table of policies with linear probing.
    table: Box<[OnceLock<PolicyMeters>]>,
    used: AtomicU64,
    other: OnceLock<PolicyMeters>,
    /// By action and API key.
    administered: Mutex<Administered>,
    fallback: AtomicU64,
    is_degraded: AtomicBool,
    sinks: OnceLock<Box<[Arc<SinkCounters>]>>,
    translation: OnceLock<TranslationMeters>,
    gateway: OnceLock<GatewayMeters>,
}

/// Dropped events and failed writes of one sink.
#[derive(Debug)]
pub(crate) struct SinkCounters {
    name: &'static str,
    pub(crate) dropped: AtomicU64,
    pub(crate) failures: AtomicU64,
    /// Whether the last write failed.
    pub(crate) is_failing: AtomicBool,
}

impl SinkCounters {
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
    /// Creates meters at zero.
    #[must_use]
    pub fn new() -> Self {
        Self {
            table: (0..TABLE_SIZE).map(|_| OnceLock::new()).collect(),
            used: AtomicU64::new(0),
            other: OnceLock::new(),
            administered: Mutex::default(),
            fallback: AtomicU64::new(0),
            is_degraded: AtomicBool::new(false),
            sinks: OnceLock::new(),
            translation: OnceLock::new(),
            gateway: OnceLock::new(),
        }
    }

    /// Returns the counters of translations. The first call adds their series.
    #[must_use]
    pub fn translation(&self) -> &TranslationMeters {
        self.translation.get_or_init(TranslationMeters::default)
    }

    /// Returns the counters of the gateway. The first call adds their series.
    #[must_use]
    pub fn gateway(&self) -> &GatewayMeters {
        self.gateway.get_or_init(GatewayMeters::default)
    }

    /// Adds the series of `sinks`. Only the first call has an effect.
    pub(crate) fn add_sinks(&self, sinks: Box<[Arc<SinkCounters>]>) {
        drop(self.sinks.set(sinks));
    }

    #[inline]
    fn policy(&self, policy: &Policy) -> &PolicyMeters {
        let mut index = usize::try_from(policy.name_hash() & (TABLE_SIZE as u64 - 1)).unwrap_or(0);
        for _ in 0..TABLE_SIZE {
            match self.table[index].get() {
                Some(meters) if meters.is_of(policy) => return meters,
                Some(_) => index = (index + 1) & (TABLE_SIZE - 1),
                None => break,
            }
        }
        self.add(policy, index)
    }

    #[cold]
    fn add(&self, policy: &Policy, first: usize) -> &PolicyMeters {
        let mut index = first;
        for _ in 0..TABLE_SIZE {
            if self.table[index].get().is_none() && POLICIES_MAX as u64 <= self.used.load(Relaxed) {
                break;
            }
            let meters = self.table[index].get_or_init(|| {
                self.used.fetch_add(1, Relaxed);
                PolicyMeters::new(Some(policy))
            });
            if meters.is_of(policy) {
                return meters;
            }
            index = (index + 1) & (TABLE_SIZE - 1);
        }
        self.other.get_or_init(|| PolicyMeters::new(None))
    }

    /// Returns all series.
    #[must_use]
    pub fn snapshot(&self, at: Timestamp) -> Snapshot {
        let mut series = Vec::new();
        for meters in self.table.iter().chain([&self.other]).filter_map(OnceLock::get) {
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
        if let Some(gateway) = self.gateway.get() {
            gateway.read(&mut series);
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
        f.debug_struct("Meters").field("policies", &self.used).finish_non_exhaustive()
    }
}

impl Observer for Meters {
    #[inline]
    fn observe(&self, event: &Event<'_>) {
        match event {
            Event::Admitted { ask, .. } | Event::Denied { ask, .. } | Event::Charged { ask }
                if ask.has_several_charges() =>
            {
                self.observe_joint(event, ask);
            }
            Event::Admitted { ask, permit, took } => {
                let meters = self.policy(ask.policy());
                let lane = LaneId::current();
                meters.took(lane, Outcome::Admitted, *took);
                if permit.shadow_denied.is_none() {
                    meters.charged(lane, ask, &permit.limits);
                }
                if permit.degraded || permit.shadow_denied.is_some() {
                    meters.rare(permit.degraded, permit.shadow_denied.is_some());
                }
            }
            Event::Denied { ask, denial, took } => {
                let meters = self.policy(ask.policy());
                meters.took(LaneId::current(), Outcome::Denied, *took);
                meters.limits.refused(ask.policy(), denial);
                meters.rare(denial.degraded, false);
            }
            other => self.observe_rare(other),
        }
    }
}

impl Meters {
    /// Counts an ask with several charges under the policy of each. A denial counts for the charges that refuse.
    #[cold]
    fn observe_joint(&self, event: &Event<'_>, ask: &Ask<'_>) {
        for index in 0..ask.charges().len() {
            let Some(part) = ask.part(index) else { continue };
            match event {
                Event::Admitted { permit, took, .. } => {
                    if let Some(permit) = permit.charges().nth(index) {
                        self.observe(&Event::Admitted { ask: &part, permit, took: *took });
                    }
                }
                Event::Denied { denial, took, .. } => {
                    if let Some(denial) = denial.for_charge(index) {
                        self.observe(&Event::Denied { ask: &part, denial: &denial, took: *took });
                    }
                }
                _ => self.observe(&Event::Charged { ask: &part }),
            }
        }
    }

    #[cold]
    fn observe_rare(&self, event: &Event<'_>) {
        match event {
            Event::Charged { ask } => self.policy(ask.policy()).charged_unseen(ask),
            Event::Failed { policy, took, .. } => {
                let meters = self.policy(policy);
                meters.took(LaneId::current(), Outcome::Failed, *took);
                meters.errors.fetch_add(1, Relaxed);
            }
            Event::Tried { policy, attempt, took, result } => {
                self.policy(policy).tried(*attempt, *took, *result);
            }
            Event::Administered { action, by } => {
                let mut counts = lock(&self.administered);
                let key = ((*action).into(), (*by).into());
                if counts.len() < ADMINISTERED_MAX || counts.contains_key(&key) {
                    *counts.entry(key).or_default() += 1;
                }
            }
            Event::DegradedBegan { .. } => {
                self.fallback.fetch_add(1, Relaxed);
                self.is_degraded.store(true, Relaxed);
            }
            Event::DegradedEnded { .. } => self.is_degraded.store(false, Relaxed),
            Event::Unposted { policy, unposted, unposted_max } => {
                self.policy(policy).unposted(*unposted, *unposted_max);
            }
            Event::OverIssued { policy, limit, amount } => {
                self.policy(policy).limits.over_issued(policy, limit, *amount);
            }
            Event::Repaired { policy, .. } => {
                self.policy(policy).mended.fetch_add(1, Relaxed);
            }
            Event::Violated { policy, incident } => {
                self.policy(policy).limits.violated(policy, &incident.limit);
            }
            _ => {}
        }
    }
}

/// Returns the label of the result of a try.
pub(crate) const fn result_label(result: AttemptResult) -> &'static str {
    match result {
        AttemptResult::Answered => "answered",
        AttemptResult::Raced => "raced",
        AttemptResult::Throttled => "throttled",
        AttemptResult::Failed => "failed",
    }
}
