//! A model at an upstream: what is known about it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate::{Span, Timestamp};

use crate::bounds::{PAUSE_MAX, PAUSE_MIN};
use crate::calibration::Calibration;
use crate::snapshot::DeploymentSnapshot;

/// The state of one model at one upstream, shared by all calls.
#[derive(Debug)]
pub(crate) struct Deployment {
    pub(crate) upstream: Arc<str>,
    /// The configured name or pattern of the model, for metrics and subjects.
    pub(crate) model: Arc<str>,
    pub(crate) counters: Counters,
    state: Mutex<State>,
}

/// Counts since the gateway started.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) in_flight: AtomicU64,
    pub(crate) calls: AtomicU64,
    waited_calls: AtomicU64,
    waited_micros: AtomicU64,
    input_tokens: AtomicU64,
    output_tokens: AtomicU64,
    first_bytes: AtomicU64,
    first_byte_micros: AtomicU64,
    pub(crate) refused: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    calibration: Calibration,
    closed_until: Option<Timestamp>,
    /// Whether the closure is known to this process only, so that asking the store would admit.
    is_local: bool,
    /// Failures since the last success.
    failures: u32,
    /// Whether a response broke off since the last whole one.
    is_breaking_off: bool,
    /// Why it could not be reached, until it responds.
    problem: Option<Arc<str>>,
    /// The limits that differ from the policy, as they were reported.
    reported: Vec<(&'static str, u64)>,
}

impl Deployment {
    pub(crate) fn new(upstream: &str, model: &str) -> Self {
        Self {
            upstream: upstream.into(),
            model: model.into(),
            counters: Counters::default(),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses or extends what is known about its calls.
    pub(crate) fn calibrate<T>(&self, work: impl FnOnce(&mut Calibration) -> T) -> T {
        work(&mut self.state().calibration)
    }

    /// Returns until when this process sends it nothing, although the store would admit.
    pub(crate) fn paused_until(&self, now: Timestamp) -> Option<Timestamp> {
        let state = self.state();
        state.closed_until.filter(|until| state.is_local && now < *until)
    }

    /// Returns until when it is closed, here or in the store.
    pub(crate) fn closed_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.state().closed_until.filter(|until| now < *until)
    }

    /// Closes it until `until`; `is_local` if the store does not know.
    pub(crate) fn close(&self, until: Timestamp, is_local: bool) {
        let state = &mut *self.state();
        if state.closed_until.is_none_or(|closed| closed <= until) {
            state.closed_until = Some(until);
            state.is_local = is_local;
        }
    }

    /// Counts a failure. Returns how long to leave the deployment alone: as long as the provider asked for, and otherwise longer with
    /// each failure in a row. Calls that were under way when it was closed fail for the same reason and do not count.
    pub(crate) fn back_off(&self, hint: Option<Span>, now: Timestamp) -> Span {
        let state = &mut *self.state();
        let closed = state.closed_until.filter(|until| now < *until);
        if let (None, Some(until)) = (hint, closed) {
            return until.since(now);
        }
        state.failures = state.failures.saturating_add(1);
        let doubled = PAUSE_MIN.as_micros() << state.failures.saturating_sub(1).min(10);
        hint.unwrap_or(Span::from_micros(doubled).min(PAUSE_MAX)).max(PAUSE_MIN)
    }

    /// Counts a response that was not refused.
    pub(crate) fn succeeded(&self) {
        let state = &mut *self.state();
        state.failures = 0;
        state.problem = None;
    }

    /// Notes a response that broke off. Returns whether it is the first since the last whole one.
    pub(crate) fn broke_off(&self) -> bool {
        !std::mem::replace(&mut self.state().is_breaking_off, true)
    }

    /// Notes a response that was whole and reported its usage.
    pub(crate) fn responded_whole(&self) {
        self.state().is_breaking_off = false;
    }

    /// Remembers why it could not be reached.
    pub(crate) fn unreachable(&self, problem: String) {
        self.state().problem = Some(problem.into());
    }

    /// Returns why it could not be reached at the last attempt.
    pub(crate) fn problem(&self) -> Option<Arc<str>> {
        self.state().problem.clone()
    }

    /// Returns whether the provider's limit of `unit` was not reported yet.
    pub(crate) fn is_news(&self, unit: &'static str, limit: u64) -> bool {
        let reported = &mut self.state().reported;
        if reported.contains(&(unit, limit)) {
            return false;
        }
        reported.retain(|(known, _)| *known != unit);
        reported.push((unit, limit));
        true
    }

    pub(crate) fn snapshot(&self, dialect: &'static str, now: Timestamp) -> DeploymentSnapshot {
        let counters = &self.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let first_byte = get(&counters.first_byte_micros).checked_div(get(&counters.first_bytes));
        DeploymentSnapshot {
            upstream: self.upstream.to_string(),
            dialect,
            model: self.model.to_string(),
            in_flight: get(&counters.in_flight),
            calls: get(&counters.calls),
            waited_calls: get(&counters.waited_calls),
            waited: Span::from_micros(get(&counters.waited_micros)),
            input_tokens: get(&counters.input_tokens),
            output_tokens: get(&counters.output_tokens),
            first_byte: first_byte.map(Span::from_micros),
            refused: get(&counters.refused),
            closed_until: self.closed_until(now),
        }
    }
}

impl Counters {
    pub(crate) fn waited(&self, span: Span) {
        if !span.is_zero() {
            self.waited_calls.fetch_add(1, Ordering::Relaxed);
            self.waited_micros.fetch_add(span.as_micros(), Ordering::Relaxed);
        }
    }

    pub(crate) fn first_byte(&self, after: Span) {
        self.first_bytes.fetch_add(1, Ordering::Relaxed);
        self.first_byte_micros.fetch_add(after.as_micros(), Ordering::Relaxed);
    }

    pub(crate) fn tokens(&self, input: u64, output: u64) {
        self.input_tokens.fetch_add(input, Ordering::Relaxed);
        self.output_tokens.fetch_add(output, Ordering::Relaxed);
    }
}
