//! Counters of the gateway for LLM APIs. A process without a gateway has none of these series.
//!
//! A call to a provider takes milliseconds at least, so a lock per event is cheap beside it. Every call has several events, so
//! finding its counters allocates nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use tollgate::Span;

use super::{OTHER, lock};
use crate::catalogue::{self, Metric};
use crate::snapshot::{CALL_BOUNDS_MS, Series, Value};

/// The most pairs of an upstream and a model that are counted separately; further ones are counted as [`OTHER`].
const CALLS_MAX: usize = 1_024;

/// The most pairs of a model and a reason of a refusal; further ones are counted as [`OTHER`].
const REFUSALS_MAX: usize = 4_096;

/// The counters of the gateway of this process.
#[derive(Default)]
pub struct GatewayMeters {
    calls: Mutex<ByLabels<CallCounts>>,
    refusals: Mutex<ByLabels<u64>>,
    levels: OnceLock<Box<dyn Fn() -> GatewayLevels + Send + Sync>>,
}

/// Values by two labels, in their order.
#[derive(Debug)]
struct ByLabels<T>(Vec<([Arc<str>; 2], T)>);

/// How busy the gateway is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatewayLevels {
    /// Calls that wait for their quota.
    pub waiting: u64,
    /// The bytes of request bodies that the gateway holds.
    pub held_bytes: u64,
    /// Calls that are at a provider.
    pub in_flight: u64,
}

/// The upstream and the model of a call, by their configured names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatewayCall<'a> {
    /// The name of the upstream.
    pub upstream: &'a str,
    /// The model, or `other` if it is not configured.
    pub model: &'a str,
}

/// The outcome of a call that reached a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatewayOutcome {
    /// A complete response.
    Answered,
    /// The provider refused the last attempt for its own limits or load.
    Refused,
    /// Another error of the provider, or no response.
    Failed,
    /// The client or the provider disconnected before the last byte.
    Aborted,
}

impl GatewayOutcome {
    const ALL: [Self; 4] = [Self::Answered, Self::Refused, Self::Failed, Self::Aborted];

    const fn label(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Aborted => "aborted",
        }
    }
}

/// The counters of one upstream and model.
#[derive(Debug, Default)]
struct CallCounts {
    outcomes: [u64; GatewayOutcome::ALL.len()],
    waited: Durations,
    first_byte: Durations,
    /// By unit.
    tokens: BTreeMap<Arc<str>, u64>,
    provider_refusals: u64,
}

/// A histogram of durations of calls.
#[derive(Debug, Default)]
struct Durations {
    counts: [u64; CALL_BOUNDS_MS.len() + 1],
    /// In microseconds.
    sum: u64,
}

impl Durations {
    fn add(&mut self, took: Span) {
        let bucket = CALL_BOUNDS_MS.partition_point(|bound| Span::from_millis(*bound) < took);
        self.counts[bucket] += 1;
        self.sum = self.sum.saturating_add(took.as_micros());
    }

    fn read(&self) -> Value {
        Value::Buckets { counts: self.counts.to_vec(), sum: self.sum }
    }
}

impl GatewayMeters {
    /// Counts a call that came to its end.
    pub fn ended(&self, call: GatewayCall<'_>, outcome: GatewayOutcome) {
        self.count(call, |counts| counts.outcomes[outcome as usize] += 1);
    }

    /// Counts how long an admitted call waited for its quota.
    pub fn waited(&self, call: GatewayCall<'_>, waited: Span) {
        self.count(call, |counts| counts.waited.add(waited));
    }

    /// Counts how long the provider took until the first byte of its response.
    pub fn first_byte(&self, call: GatewayCall<'_>, took: Span) {
        self.count(call, |counts| counts.first_byte.add(took));
    }

    /// Counts what a call was settled for.
    pub fn settled(&self, call: GatewayCall<'_>, unit: &str, amount: u64) {
        self.count(call, |counts| match counts.tokens.get_mut(unit) {
            Some(tokens) => *tokens = tokens.saturating_add(amount),
            None => {
                counts.tokens.insert(Arc::from(unit), amount);
            }
        });
    }

    /// Counts an attempt that the provider refused for its own limits or load.
    pub fn provider_refused(&self, call: GatewayCall<'_>) {
        self.count(call, |counts| counts.provider_refusals += 1);
    }

    /// Counts a call for `model` that the gateway itself refused.
    pub fn refused(&self, model: &str, reason: &str) {
        let mut refusals = lock(&self.refusals);
        *refusals.entry([model, reason], REFUSALS_MAX) += 1;
    }

    /// Reads the levels by `read` for each snapshot. Only the first call has an effect.
    pub fn read_levels_by(&self, read: impl Fn() -> GatewayLevels + Send + Sync + 'static) {
        drop(self.levels.set(Box::new(read)));
    }

    fn count(&self, call: GatewayCall<'_>, change: impl FnOnce(&mut CallCounts)) {
        let mut calls = lock(&self.calls);
        change(calls.entry([call.upstream, call.model], CALLS_MAX));
    }

    pub(super) fn read(&self, series: &mut Vec<Series>) {
        let mut add = |metric: &'static Metric, labels: &[&Arc<str>], value: Value| {
            let labels = labels.iter().map(|label| Arc::clone(label)).collect();
            series.push(Series { metric, labels, value });
        };
        for ([upstream, model], counts) in &lock(&self.calls).0 {
            for outcome in GatewayOutcome::ALL {
                let (label, count) =
                    (Arc::from(outcome.label()), counts.outcomes[outcome as usize]);
                let labels = [upstream, model, &label];
                add(&catalogue::GATEWAY_CALLS, &labels, Value::Number(count));
            }
            for (unit, tokens) in &counts.tokens {
                let labels = [upstream, model, unit];
                add(&catalogue::GATEWAY_TOKENS, &labels, Value::Number(*tokens));
            }
            let labels = [upstream, model];
            add(&catalogue::GATEWAY_WAITED, &labels, counts.waited.read());
            add(&catalogue::GATEWAY_FIRST_BYTE, &labels, counts.first_byte.read());
            let refusals = Value::Number(counts.provider_refusals);
            add(&catalogue::GATEWAY_PROVIDER_REFUSALS, &labels, refusals);
            let aborted = counts.outcomes[GatewayOutcome::Aborted as usize];
            add(&catalogue::GATEWAY_ABORTED, &labels, Value::Number(aborted));
        }
        for ([model, reason], count) in &lock(&self.refusals).0 {
            add(&catalogue::GATEWAY_REFUSALS, &[model, reason], Value::Number(*count));
        }
        let levels = self.levels.get().map(|read| read()).unwrap_or_default();
        for (metric, level) in [
            (&catalogue::GATEWAY_WAITING, levels.waiting),
            (&catalogue::GATEWAY_HELD_BYTES, levels.held_bytes),
            (&catalogue::GATEWAY_IN_FLIGHT, levels.in_flight),
        ] {
            add(metric, &[], Value::Number(level));
        }
    }
}

impl fmt::Debug for GatewayMeters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayMeters").field("calls", &self.calls).finish_non_exhaustive()
    }
}

impl<T> Default for ByLabels<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Default> ByLabels<T> {
    fn find(&self, [first, second]: [&str; 2]) -> Result<usize, usize> {
        self.0.binary_search_by(|([known_first, known_second], _)| {
            (**known_first).cmp(first).then_with(|| (**known_second).cmp(second))
        })
    }

    /// Returns the value of `labels`, or the one of [`OTHER`] if there are `most` already.
    fn entry(&mut self, mut labels: [&str; 2], most: usize) -> &mut T {
        let mut found = self.find(labels);
        if found.is_err() && most <= self.0.len() {
            labels = [OTHER, OTHER];
            found = self.find(labels);
        }
        let index = found.unwrap_or_else(|free| {
            self.0.insert(free, (labels.map(Arc::from), T::default()));
            free
        });
        &mut self.0[index].1
    }
}
