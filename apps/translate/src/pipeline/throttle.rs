//! The quota in front of the provider, shared by all calls to it.
//!
//! Each attempt takes a new permit for one request and its estimated tokens, first come first served in this process. A refusal by
//! the provider is a violation: it is recorded, and the gate is closed until the provider's time, for all who share it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tollgate::core::Wait;
use tollgate::incident::{RETRY_AFTER_MAX, Recorder, Violation, report_violation};
use tollgate::observe::{Event, Observed, Observer};
use tollgate::policy::{OnStoreFailure, Rule};
use tollgate::retry::{Backoff, acquire_with_backoff};
use tollgate::{
    Ask, Clock, Costs, Decision, Denial, Error, Gate, Guard, Policy, Queue, Span, Standing,
    Timestamp,
};
use tollgate_telemetry::Meters;

use crate::provider::{ProviderError, ProviderErrorKind};

/// The unit of calls.
const REQUESTS: &str = "requests";
/// The unit of input tokens.
const TOKENS: &str = "tokens";

/// How far the provider's clock may be behind ours at the begin of its day.
pub(super) const DAY_MARGIN: Span = Span::from_secs(10);

/// The shortest window that counts as daily.
const DAY: Span = Span::from_hours(24);

/// The quota of one policy and subject, such as a project's quota of a model.
#[derive(Debug)]
pub struct Throttle {
    queue: Arc<Queue<Arc<dyn Gate>>>,
    /// The same queue, for guards.
    gate: Arc<dyn Gate>,
    policy: Policy,
    subject: String,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn Observer>,
    recorder: Arc<Recorder>,
    counted_in: Arc<OnceLock<Arc<Meters>>>,
    /// How asks wait outside the queue, if they do.
    backoff: Option<Backoff>,
    /// The number of those asks.
    backing_off: AtomicUsize,
    full: Arc<Mutex<Option<ExhaustedLimit>>>,
}

/// The limit that queued attempts wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExhaustedLimit {
    /// Its name.
    pub limit: String,
    /// When the next attempt may be admitted.
    pub until: Timestamp,
    /// The standing of every limit at the last denial.
    pub standing: Vec<Standing>,
}

/// The outcome of waiting for a permit.
#[derive(Debug)]
pub(super) enum Admission {
    /// Admitted: call now, and settle the permit.
    Admitted(Guard),
    /// Not before a time that is too far away to wait for.
    NotBefore(Timestamp, String),
    /// Never: the cost exceeds the limit.
    Never(String),
    /// The store is unavailable, and this process's share of the quota does not suffice.
    Unavailable(String),
}

/// An attempt that waits outside the queue, counted until it is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An observer that ignores all events.
#[derive(Debug)]
struct Ignore;

impl Observer for Ignore {
    fn observe(&self, _event: &Event<'_>) {}
}

impl Throttle {
    /// Returns the quota of `subject` under `policy` at `gate`. Charges those of the units `requests` and `tokens` that the policy has.
    pub fn new(
        gate: Arc<dyn Gate>,
        policy: Policy,
        subject: impl Into<String>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self::observed(gate, policy, subject, clock, Arc::new(Ignore))
    }

    /// Like [`new`](Self::new), with an observer of all decisions of the gate and all refusals by the provider.
    pub fn observed(
        gate: Arc<dyn Gate>,
        policy: Policy,
        subject: impl Into<String>,
        clock: Arc<dyn Clock>,
        observer: Arc<dyn Observer>,
    ) -> Self {
        let recorder = Arc::new(Recorder::new());
        let counted_in = Arc::new(OnceLock::new());
        let full = Arc::default();
        let all: Arc<dyn Observer> = Arc::new(Fanout {
            observer: Arc::clone(&observer),
            recorder: Arc::clone(&recorder),
            counted_in: Arc::clone(&counted_in),
            full: Arc::clone(&full),
            clock: Arc::clone(&clock),
        });
        let gate: Arc<dyn Gate> = Arc::new(Observed::new(gate, all, Arc::clone(&clock)));
        let queue = Arc::new(Queue::new(gate, Arc::clone(&clock)));
        let gate = Arc::clone(&queue) as Arc<dyn Gate>;
        Self {
            queue,
            gate,
            policy,
            subject: subject.into(),
            clock,
            observer,
            recorder,
            counted_in,
            full,
            backoff: None,
            backing_off: AtomicUsize::new(0),
        }
    }

    /// Makes attempts ask again with backoff, instead of queueing until the promised time.
    #[must_use]
    pub const fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = Some(backoff);
        self
    }

    /// Counts denials in `meters`; only the first call has an effect.
    pub(super) fn count_in(&self, meters: &Arc<Meters>) {
        drop(self.counted_in.set(Arc::clone(meters)));
    }

    /// Returns the policy.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the subject.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// Returns the number of waiting attempts.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.waiting() + self.backing_off.load(Ordering::Relaxed)
    }

    /// Returns the limit that queued attempts wait for.
    #[must_use]
    pub fn exhausted(&self) -> Option<ExhaustedLimit> {
        let full = self.full.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        (0 < self.waiting() && self.clock.now() < full.until).then_some(full)
    }

    fn ask(&self, tokens: u64) -> Ask<'_> {
        let mut ask = Ask::new(&self.policy, self.subject.as_str());
        for (unit, amount) in [(REQUESTS, 1), (TOKENS, tokens)] {
            if self.policy.units().any(|known| known == unit) {
                ask = ask.cost(unit, amount);
            }
        }
        ask
    }

    /// Waits for a permit, at most for `max_wait`. Dropping the future leaves the queue.
    pub(super) async fn acquire(&self, tokens: u64, max_wait: Span) -> Result<Admission, Error> {
        let ask = self.ask(tokens);
        let deadline = self.clock.now() + max_wait;
        let decided = match &self.backoff {
            None => self.queue.acquire_within(&ask, deadline).await?,
            Some(backoff) => {
                let _waiting = Waiting::new(&self.backing_off);
                let (gate, clock) = (&*self.gate, &*self.clock);
                acquire_with_backoff(gate, &ask, backoff, deadline, clock).await?
            }
        };
        Ok(match decided {
            Decision::Admitted(permit) => Admission::Admitted(Guard::new(&self.gate, permit)),
            Decision::Denied(denial) if self.is_of_share(&denial) => {
                Admission::Unavailable(self.share_is_used(&denial))
            }
            Decision::Denied(denial) => match denial.wait {
                Wait::Until(_) => {
                    let wait = denial.retry_after().unwrap_or_default();
                    let at = self.clock.now() + wait + self.margin(&denial);
                    Admission::NotBefore(at, why(&denial))
                }
                Wait::Never => Admission::Never(format!(
                    "it needs {} {}, and the limit {} is {}",
                    denial.asked, denial.unit, denial.limit, denial.most
                )),
            },
        })
    }

    /// Returns whether a denial is about this process's share alone, so that the store may admit as soon as it is back.
    fn is_of_share(&self, denial: &Denial) -> bool {
        let policy = self.policy.for_subject(&self.subject);
        denial.degraded && policy.on_store_failure() == OnStoreFailure::Fallback
    }

    fn share_is_used(&self, denial: &Denial) -> String {
        let Denial { limit, unit, asked, most, .. } = denial;
        let share = match denial.wait {
            Wait::Until(_) => "is used up".to_owned(),
            Wait::Never => format!("is {most} {unit}, and the call needs {asked}"),
        };
        format!("the store is unavailable, and this process's share of the limit {limit} {share}")
    }

    /// Returns how long to wait beyond the time of a denial: the provider's day begins by another clock than ours.
    fn margin(&self, denial: &Denial) -> Span {
        let limit = self.policy.limits().find(|limit| limit.name() == &*denial.limit);
        match limit.map(tollgate::Limit::rule) {
            Some(Rule::CalendarWindow(_)) => DAY_MARGIN,
            _ => Span::ZERO,
        }
    }

    /// Settles the permit of a call that the provider counted as `tokens`; without a count, the estimate stays.
    pub(super) async fn settle(&self, guard: Guard, tokens: Option<u64>) -> Result<(), Error> {
        let mut actual = Costs::new();
        if let Some(tokens) = tokens
            && self.policy.units().any(|known| known == TOKENS)
        {
            actual.set(TOKENS, tokens);
        }
        guard.settle(&actual).await
    }

    /// Records a refusal by the provider of an admitted call, and closes the gate until `until`.
    pub(super) async fn refused(
        &self,
        tokens: u64,
        error: &ProviderError,
        until: Timestamp,
    ) -> Result<(), Error> {
        let ask = self.ask(tokens);
        let retry_after = until.since(self.clock.now()).min(RETRY_AFTER_MAX);
        let violation =
            Violation { ask: &ask, limit: self.violated_limit(error.kind), retry_after };
        let (gate, observer) = (self.gate.as_ref(), self.observer.as_ref());
        report_violation(gate, &self.recorder, observer, self.clock.as_ref(), &violation)
            .await
            .map(drop)
    }

    /// Returns the limit of the policy that matches the provider's refusal.
    fn violated_limit(&self, kind: ProviderErrorKind) -> Option<&str> {
        let wanted = |unit: &'static str, daily: bool| {
            let mut limits = self.policy.limits().filter(move |limit| limit.unit() == unit);
            limits.find(|limit| is_daily(limit.rule()) == daily).map(tollgate::Limit::name)
        };
        match kind {
            ProviderErrorKind::DailyQuota => wanted(REQUESTS, true),
            ProviderErrorKind::TokenQuota => wanted(TOKENS, false),
            _ => wanted(REQUESTS, false),
        }
    }
}

fn is_daily(rule: &Rule) -> bool {
    match rule {
        Rule::CalendarWindow(window) => window.period == tollgate::policy::Period::Day,
        Rule::RollingWindow(window) => DAY <= window.window,
        _ => false,
    }
}

fn why(denial: &Denial) -> String {
    format!("the limit {} of {} is used up", denial.limit, denial.policy)
}

/// Forwards events to all observers.
#[derive(Debug)]
struct Fanout {
    observer: Arc<dyn Observer>,
    recorder: Arc<Recorder>,
    counted_in: Arc<OnceLock<Arc<Meters>>>,
    full: Arc<Mutex<Option<ExhaustedLimit>>>,
    clock: Arc<dyn Clock>,
}

impl Fanout {
    /// Remembers the limit of the last denial.
    fn remember(&self, event: &Event<'_>) {
        let full = match event {
            Event::Denied { denial, .. } => denial.retry_after().map(|wait| ExhaustedLimit {
                limit: denial.limit.to_string(),
                until: self.clock.now() + wait,
                standing: denial.limits.clone(),
            }),
            Event::Admitted { .. } => None,
            _ => return,
        };
        *self.full.lock().unwrap_or_else(PoisonError::into_inner) = full;
    }
}

impl Observer for Fanout {
    fn observe(&self, event: &Event<'_>) {
        self.remember(event);
        self.observer.observe(event);
        self.recorder.observe(event);
        if let Event::Denied { .. } | Event::Failed { .. } = event
            && let Some(meters) = self.counted_in.get()
        {
            meters.translation().denied();
        }
    }
}
