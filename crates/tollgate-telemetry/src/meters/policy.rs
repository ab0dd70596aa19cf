//! The counters of one policy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tollgate::observe::AttemptResult;
use tollgate::{Ask, Policy, Span, Standing};

use super::lane::{LANES, LaneId};
use super::limits::{LIMIT_SLOTS, Limits};
use super::{OTHER, result_label};
use crate::catalogue::{self, Metric};
use crate::snapshot::{ATTEMPTS_MAX, DURATION_BOUNDS_US, DURATION_BUCKETS, Series, Value};

/// The outcome of an ask.
#[derive(Clone, Copy)]
pub(super) enum Outcome {
    Admitted,
    Denied,
    Failed,
}

const OUTCOMES: [&str; 3] = ["admitted", "denied", "failed"];
const RESULTS: [AttemptResult; 4] = [
    AttemptResult::Answered,
    AttemptResult::Raced,
    AttemptResult::Throttled,
    AttemptResult::Failed,
];

/// The counters of one thread, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Lane {
    /// By slot of the limit.
    pub(super) charged: [AtomicU64; LIMIT_SLOTS],
    took: [Durations; OUTCOMES.len()],
}

#[derive(Debug, Default)]
struct Durations {
    counts: [AtomicU64; DURATION_BUCKETS],
    sum_us: AtomicU64,
}

impl Durations {
    #[inline]
    fn add(&self, took: Span, add: impl Fn(&AtomicU64, u64)) {
        let micros = took.as_micros();
        let bucket = if micros <= DURATION_BOUNDS_US[0] {
            0
        } else {
            DURATION_BOUNDS_US.partition_point(|bound| *bound < micros)
        };
        add(&self.counts[bucket], 1);
        // Most decisions in memory take less than the resolution of the clock.
        if micros != 0 {
            add(&self.sum_us, micros);
        }
    }

    fn read(&self) -> Value {
        Value::Buckets { counts: self.counts.iter().map(get).collect(), sum: get(&self.sum_us) }
    }
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Relaxed)
}

/// The value of a gauge that was not set yet.
pub(super) const UNKNOWN: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct PolicyMeters {
    /// Compared by pointer first; `None` for the policies counted together.
    policy: Option<Policy>,
    name: Arc<str>,
    lanes: Box<[Lane; LANES]>,
    pub(super) limits: Limits,
    pub(super) errors: AtomicU64,
    pub(super) mended: AtomicU64,
    shadow: AtomicU64,
    degraded: AtomicU64,
    store: Durations,
    tries: [AtomicU64; RESULTS.len()],
    attempts: [AtomicU64; ATTEMPTS_MAX],
    attempts_sum: AtomicU64,
    unposted: AtomicU64,
    unposted_max: AtomicU64,
}

impl PolicyMeters {
    pub(super) fn new(policy: Option<&Policy>) -> Self {
        Self {
            policy: policy.cloned(),
            name: policy.map_or(OTHER, Policy::name).into(),
            lanes: Box::default(),
            limits: Limits::default(),
            errors: AtomicU64::default(),
            mended: AtomicU64::default(),
            shadow: AtomicU64::default(),
            degraded: AtomicU64::default(),
            store: Durations::default(),
            tries: Default::default(),
            attempts: Default::default(),
            attempts_sum: AtomicU64::default(),
            unposted: AtomicU64::new(UNKNOWN),
            unposted_max: AtomicU64::new(UNKNOWN),
        }
    }

    #[inline]
    pub(super) fn is_of(&self, policy: &Policy) -> bool {
        self.policy.as_ref().is_some_and(|own| own.is_named_as(policy))
    }

    /// Counts a decision.
    #[inline]
    pub(super) fn took(&self, lane: LaneId, outcome: Outcome, took: Span) {
        let durations = &lane.select(&self.lanes).took[outcome as usize];
        durations.add(took, |counter, more| lane.add(counter, more));
    }

    /// Counts the charges of `ask` on each limit, and what they leave.
    #[inline]
    pub(super) fn charged(&self, lane: LaneId, ask: &Ask<'_>, standings: &[Standing]) {
        let counters = lane.select(&self.lanes);
        self.limits
            .charged(ask, standings, |limit, amount| lane.add(&counters.charged[limit], amount));
    }

    /// Counts the charges of `ask` where the standings are unknown.
    pub(super) fn charged_unseen(&self, ask: &Ask<'_>) {
        let lane = LaneId::current();
        let counters = lane.select(&self.lanes);
        self.limits.charged_unseen(ask, |limit, amount| lane.add(&counters.charged[limit], amount));
    }

    pub(super) fn rare(&self, is_degraded: bool, is_shadow: bool) {
        if is_degraded {
            self.degraded.fetch_add(1, Relaxed);
        }
        if is_shadow {
            self.shadow.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn tried(&self, attempt: u32, took: Span, result: AttemptResult) {
        self.store.add(took, |counter, more| {
            counter.fetch_add(more, Relaxed);
        });
        if let Some(index) = RESULTS.iter().position(|known| *known == result) {
            self.tries[index].fetch_add(1, Relaxed);
        }
        let index = usize::try_from(attempt.saturating_sub(1)).unwrap_or(usize::MAX);
        self.attempts[index.min(ATTEMPTS_MAX - 1)].fetch_add(1, Relaxed);
        self.attempts_sum.fetch_add(attempt.into(), Relaxed);
    }

    pub(super) fn unposted(&self, unposted: u64, unposted_max: u64) {
        self.unposted.store(unposted, Relaxed);
        self.unposted_max.store(unposted_max, Relaxed);
    }

    pub(super) fn read(&self, all: &mut Vec<Series>) {
        let charged = |slot: usize| {
            let lanes = self.lanes.iter().map(|lane| get(&lane.charged[slot]));
            lanes.fold(0, u64::saturating_add)
        };
        self.limits.read(&self.name, charged, all);
        for (index, label) in OUTCOMES.iter().enumerate() {
            let mut took = Value::Buckets { counts: vec![0; DURATION_BUCKETS], sum: 0 };
            self.lanes.iter().for_each(|lane| took.add(&lane.took[index].read()));
            self.push(all, &catalogue::TOOK, Some(label), took);
        }
        let number = |counter: &AtomicU64| Value::Number(get(counter));
        self.push(all, &catalogue::ERRORS, None, number(&self.errors));
        self.push(all, &catalogue::MENDED, None, number(&self.mended));
        self.push(all, &catalogue::SHADOW, None, number(&self.shadow));
        self.push(all, &catalogue::DEGRADED, None, number(&self.degraded));
        self.read_store(all);
        for (metric, gauge) in
            [(&catalogue::UNPOSTED, &self.unposted), (&catalogue::UNPOSTED_MAX, &self.unposted_max)]
        {
            if get(gauge) != UNKNOWN {
                self.push(all, metric, None, number(gauge));
            }
        }
    }

    /// Adds the series of the store, if the gate reports its tries.
    fn read_store(&self, all: &mut Vec<Series>) {
        if self.tries.iter().all(|tries| get(tries) == 0) {
            return;
        }
        self.push(all, &catalogue::STORE_TOOK, None, self.store.read());
        for (result, tries) in RESULTS.iter().zip(&self.tries) {
            let tries = Value::Number(get(tries));
            match result {
                AttemptResult::Raced => {
                    self.push(all, &catalogue::CONDITIONAL, None, tries.clone());
                }
                AttemptResult::Throttled => {
                    self.push(all, &catalogue::THROTTLED, None, tries.clone());
                }
                AttemptResult::Answered | AttemptResult::Failed => {}
            }
            self.push(all, &catalogue::STORE_TRIES, Some(result_label(*result)), tries);
        }
        let attempts = Value::Buckets {
            counts: self.attempts.iter().map(get).collect(),
            sum: get(&self.attempts_sum),
        };
        self.push(all, &catalogue::ATTEMPTS, None, attempts);
    }

    fn push(
        &self,
        all: &mut Vec<Series>,
        metric: &'static Metric,
        label: Option<&str>,
        value: Value,
    ) {
        let labels = [Arc::clone(&self.name)].into_iter().chain(label.map(Arc::from)).collect();
        all.push(Series { metric, labels, value });
    }
}
