//! The quota in front of the provider, shared by everything that calls it.
//!
//! Each attempt takes a new permit for one request and its estimated tokens, and waits its turn, first come first served
//! in this process. When the provider refuses all the same, that is a violation: it is written down, and the gate is
//! closed until the provider's time, for everybody who shares it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tollgate::incident::{RETRY_AFTER_MAX, Recorder, Violation, report_violation};
use tollgate::{
    Ask, Backoff, Clock, Costs, Decision, Denial, Error, Event, Gate, Guard, Observed, Observer,
    OnStoreFailure, Policy, Queue, Rule, Span, Standing, Timestamp, Wait, acquire_with_backoff,
};
use tollgate_telemetry::Meters;

use crate::provider::{ProviderError, ProviderErrorKind};

/// The unit of calls.
const REQUESTS: &str = "requests";
/// The unit of input tokens.
const TOKENS: &str = "tokens";

/// How far the clock by which the provider's day begins may be behind ours.
pub(super) const DAY_MARGIN: Span = Span::from_secs(10);

/// A window as long as this is a daily one.
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
    /// How asks wait outside the line, if they do.
    backoff: Option<Backoff>,
    /// How many do.
    backing_off: AtomicUsize,
    full: Arc<Mutex<Option<Full>>>,
}

/// What those in line wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Full {
    /// The limit that is used up.
    pub limit: String,
    /// When the next one may go.
    pub until: Timestamp,
    /// Where every limit stood when that was said.
    pub standing: Vec<Standing>,
}

/// The answer to a wish to call.
#[derive(Debug)]
pub(super) enum Pass {
    /// Go now, and settle it.
    Go(Guard),
    /// Not before a time that is too far away to wait in line for.
    NotBefore(Timestamp, String),
    /// It can never go: it costs more than the limit.
    Never(String),
    /// The store is away, and this process's share of the quota does not suffice.
    Undecided(String),
}

/// An attempt that waits outside the line, counted until it is dropped.
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

/// An observer for those who do not want one.
#[derive(Debug)]
struct Nobody;

impl Observer for Nobody {
    fn observe(&self, _event: &Event<'_>) {}
}

impl Throttle {
    /// The quota of `subject` under `policy` at `gate`. Whichever of the units `requests` and `tokens` the policy has are
    /// taken.
    pub fn new(
        gate: Arc<dyn Gate>,
        policy: Policy,
        subject: impl Into<String>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self::observed(gate, policy, subject, clock, Arc::new(Nobody))
    }

    /// The same, with an observer that is told of every answer of the gate and of every refusal by the provider.
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
        let all: Arc<dyn Observer> = Arc::new(All {
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

    /// The same, where attempts ask again after growing pauses instead of in line at the promised time.
    #[must_use]
    pub const fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = Some(backoff);
        self
    }

    /// Counts denials in `meters` from now on; only the first call has an effect.
    pub(super) fn count_in(&self, meters: &Arc<Meters>) {
        drop(self.counted_in.set(Arc::clone(meters)));
    }

    /// The policy.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// For whom calls are counted.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// How many attempts wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.waiting() + self.backing_off.load(Ordering::Relaxed)
    }

    /// What those in line wait for, if somebody waits.
    #[must_use]
    pub fn full(&self) -> Option<Full> {
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

    /// Waits for a permit, at most for `patience`. Dropping the future leaves the line.
    pub(super) async fn acquire(&self, tokens: u64, patience: Span) -> Result<Pass, Error> {
        let ask = self.ask(tokens);
        let deadline = self.clock.now() + patience;
        let decided = match &self.backoff {
            None => self.queue.acquire_within(&ask, deadline).await?,
            Some(backoff) => {
                let _waiting = Waiting::new(&self.backing_off);
                let (gate, clock) = (&*self.gate, &*self.clock);
                acquire_with_backoff(gate, &ask, backoff, deadline, clock).await?
            }
        };
        Ok(match decided {
            Decision::Admitted(permit) => Pass::Go(Guard::new(&self.gate, permit)),
            Decision::Denied(denial) if self.is_of_share(&denial) => {
                Pass::Undecided(self.share_is_used(&denial))
            }
            Decision::Denied(denial) => match denial.wait {
                Wait::Until(_) => {
                    let wait = denial.retry_after().unwrap_or_default();
                    let at = self.clock.now() + wait + self.margin(&denial);
                    Pass::NotBefore(at, why(&denial))
                }
                Wait::Never => Pass::Never(format!(
                    "it needs {} {}, and the limit {} is {}",
                    denial.asked, denial.unit, denial.limit, denial.most
                )),
            },
        })
    }

    /// Whether a denial is about this process's share alone, so that the store may admit as soon as it is back.
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
        format!("the store is away, and this process's share of the limit {limit} {share}")
    }

    /// How long to wait beyond the time of a refusal: the provider's day begins by another clock than ours.
    fn margin(&self, denial: &Denial) -> Span {
        let limit = self.policy.limits().find(|limit| limit.name() == &*denial.limit);
        match limit.map(tollgate::Limit::rule) {
            Some(Rule::CalendarWindow(_)) => DAY_MARGIN,
            _ => Span::ZERO,
        }
    }

    /// The call was made and counted as `tokens`; as estimated, if the provider did not say.
    pub(super) async fn settle(&self, guard: Guard, tokens: Option<u64>) -> Result<(), Error> {
        let mut actual = Costs::new();
        if let Some(tokens) = tokens
            && self.policy.units().any(|known| known == TOKENS)
        {
            actual.set(TOKENS, tokens);
        }
        guard.settle(&actual).await
    }

    /// The provider refused what was admitted: writes it down and closes the gate until `until`.
    pub(super) async fn refused(
        &self,
        tokens: u64,
        error: &ProviderError,
        until: Timestamp,
    ) -> Result<(), Error> {
        let ask = self.ask(tokens);
        let retry_after = until.since(self.clock.now()).min(RETRY_AFTER_MAX);
        let violation = Violation { ask: &ask, limit: self.limit_of(error.kind), retry_after };
        let (gate, observer) = (self.gate.as_ref(), self.observer.as_ref());
        report_violation(gate, &self.recorder, observer, self.clock.as_ref(), &violation)
            .await
            .map(drop)
    }

    /// The limit of the policy that the provider's word is about; nothing if it has none of that kind.
    fn limit_of(&self, kind: ProviderErrorKind) -> Option<&str> {
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
        Rule::CalendarWindow(window) => window.period == tollgate::Period::Day,
        Rule::RollingWindow(window) => DAY <= window.window,
        _ => false,
    }
}

fn why(denial: &Denial) -> String {
    format!("the limit {} of {} is used up", denial.limit, denial.policy)
}

/// Everybody who wants to know what the gate says.
#[derive(Debug)]
struct All {
    observer: Arc<dyn Observer>,
    recorder: Arc<Recorder>,
    counted_in: Arc<OnceLock<Arc<Meters>>>,
    full: Arc<Mutex<Option<Full>>>,
    clock: Arc<dyn Clock>,
}

impl All {
    /// Remembers what the first in line waits for.
    fn remember(&self, event: &Event<'_>) {
        let full = match event {
            Event::Denied { denial, .. } => denial.retry_after().map(|wait| Full {
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

impl Observer for All {
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
