//! One attempt at one chunk: requests its open segments within the budget and the quota.
//!
//! Every step is stored before the next one. Each attempt takes a permit and keeps it when the call fails, unless the request
//! certainly never arrived: whether the provider counted it is unknown, so it counts. The same applies to its cost where the
//! provider may have worked.

use std::convert::Infallible;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tollgate::retry::{Backoff, ErrorClass, Retry};
use tollgate::{ErrorKind as GateErrorKind, Guard, Span, Timestamp};
use tollgate_telemetry::{CallOutcome, TranslationMeters};

use super::Engine;
use super::prepared::{Budget, ChunkRequest, PreparedDocument};
use super::streak::UselessAnswer;
use super::throttle::Admission;
use crate::error::{Error, ErrorKind, Result};
use crate::job::{CallUsage, ChunkPart, ChunkUpdate, Claim};
use crate::plan::Micros;
use crate::provider::{Completion, ProviderError, ProviderErrorKind as Kind};

/// The delays between attempts after transient failures.
pub(super) const BACKOFF: Backoff =
    Backoff { base: Span::from_secs(2), max: Span::from_secs(60), ..Backoff::CALL.clamped() };

/// How often a failed update is sent to the store again before the run fails.
const UPDATE_RETRIES_MAX: u32 = 4;

/// The consequence of an attempt for the job.
#[derive(Debug)]
pub(super) enum AttemptOutcome {
    /// The job continues.
    Continue,
    /// The job continues, and something was translated.
    Translated,
    /// The job continues, unless other attempts fail alike.
    Useless(UselessAnswer),
    /// The job continues; this chunk is retried at a time, for a reason.
    RetryAt(Timestamp, String),
    /// The quota is exhausted until about this time.
    QuotaExhausted(Timestamp, String),
    /// The gate could not decide, because its store is unavailable or contended.
    GateUnavailable(String),
    /// The budget does not suffice for the call.
    OverBudget(OverBudget),
    /// The job is paused until a time, or until an operator resumes it.
    Pause(Option<Timestamp>, String),
}

/// The outcome of waiting for a permit.
#[derive(Debug)]
enum Acquired {
    Permit(Guard),
    /// No permit ever, for a reason: the cost exceeds the limit.
    Never(String),
    /// No permit; the attempt ends with this outcome.
    Nothing(AttemptOutcome),
}

/// A call that exceeds the budget of its job.
#[derive(Debug)]
pub(super) struct OverBudget {
    pub(super) why: String,
    /// A budget that would suffice for a while.
    pub(super) raise_to: Micros,
    /// Whether pending calls of others may turn out cheaper than reserved.
    pub(super) is_contended: bool,
}

/// An attempt of one worker at one chunk.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) engine: Arc<Engine>,
    pub(super) prepared: Arc<PreparedDocument>,
    pub(super) claim: Claim,
    /// Cancelled when every attempt that is not at the provider yet must stop.
    pub(super) halt: CancellationToken,
}

impl Attempt {
    /// Attempts the chunk, and renews the claim meanwhile.
    pub(super) async fn run(self) -> Result<AttemptOutcome> {
        let Some(lease) = self.engine.store.lease() else { return self.attempt().await };
        tokio::select! {
            biased;
            outcome = self.attempt() => outcome,
            never = renew(&self.engine, &self.claim, lease) => match never {},
        }
    }

    async fn attempt(&self) -> Result<AttemptOutcome> {
        let Claim { run, ref drafts, spent, under_way, .. } = self.claim;
        let mut request = self.prepared.request(run, drafts.open());
        if request.open.len() == run.len() as usize
            && let Some(texts) = self.engine.store.cached(request.key.as_bytes()).await?
            && let Some(drafts) = self.prepared.check_cached(run, texts)
        {
            return self.update(ChunkUpdate::Done { drafts, used: CallUsage::default() }).await;
        }
        let tokens = self.engine.calibrated(&self.prepared, request.tokens);
        let budget = self.prepared.budget();
        let mut cost = self.prepared.cost(tokens, request.output);
        if let Some(budget) = budget {
            let left = budget.most.saturating_sub(spent).saturating_sub(under_way);
            if left < cost {
                self.update(ChunkUpdate::Returned).await?;
                let over = over_budget(budget, spent, cost, 0 < under_way);
                return Ok(AttemptOutcome::OverBudget(over));
            }
            if budget.is_hard {
                cost = self.prepared.limit_output(&mut request.request, tokens, left);
            }
        }
        let guard = match self.acquire(tokens).await {
            Acquired::Permit(guard) => guard,
            Acquired::Never(why) => {
                return self.split(why, drafts, CallUsage::default()).await;
            }
            Acquired::Nothing(outcome) => {
                self.update(ChunkUpdate::Returned).await?;
                return Ok(outcome);
            }
        };
        let sent = ChunkUpdate::Sent { cost, most: budget.map(|budget| budget.most) };
        if self.engine.store.update(&self.claim, &sent).await? {
            return self.send(guard, &request, tokens, cost).await;
        }
        // Another call took the budget, or another worker took the chunk; in that case the update has no effect.
        drop(guard.release().await);
        self.update(ChunkUpdate::Returned).await?;
        Ok(match budget {
            Some(budget) => AttemptOutcome::OverBudget(over_budget(budget, spent, cost, true)),
            None => AttemptOutcome::Continue,
        })
    }

    /// Stores an update. A store that fails for a moment must not cost a paid answer, so it is retried.
    pub(super) async fn update(&self, update: ChunkUpdate) -> Result<AttemptOutcome> {
        let retry = Retry { max_retries: UPDATE_RETRIES_MAX, ..Retry::unlimited(BACKOFF) };
        // A store that reports an outage has waited already.
        let classify = |error: &Error| match error.kind() {
            ErrorKind::Unavailable => ErrorClass::Fatal,
            _ => ErrorClass::Retryable,
        };
        let store = |_| self.engine.store.update(&self.claim, &update);
        let stored = retry.run(&*self.engine.clock, store, classify).await;
        let is_stored = stored.map_err(|error| error.last)?;
        if let Some(meters) = self.engine.meters()
            && is_stored
        {
            meters.translated(self.translated_words(&update));
        }
        Ok(AttemptOutcome::Continue)
    }

    /// Returns the number of words that `update` finishes.
    fn translated_words(&self, update: &ChunkUpdate) -> u64 {
        let is_done = |part: &&ChunkPart| part.failed.is_none() && part.drafts.open().is_empty();
        match update {
            ChunkUpdate::Done { .. } => self.prepared.words(self.claim.run),
            ChunkUpdate::Split { parts, .. } => {
                parts.iter().filter(is_done).map(|part| self.prepared.words(part.run)).sum()
            }
            _ => 0,
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.engine.clock.now()
    }

    /// Waits for a permit, unless the attempt must stop.
    async fn acquire(&self, tokens: u64) -> Acquired {
        let acquired = tokio::select! {
            biased;
            () = self.halt.cancelled() => return Acquired::Nothing(AttemptOutcome::Continue),
            acquired = self.engine.throttle.acquire(tokens, self.engine.options.quota_wait) => acquired,
        };
        Acquired::Nothing(match acquired {
            Ok(Admission::Admitted(guard)) => return Acquired::Permit(guard),
            Ok(Admission::Never(why)) => return Acquired::Never(why),
            Ok(Admission::NotBefore(at, why)) => AttemptOutcome::QuotaExhausted(at, why),
            Ok(Admission::Unavailable(why)) => AttemptOutcome::GateUnavailable(why),
            Err(error) if error.is_unavailable() || error.kind() == GateErrorKind::Contended => {
                AttemptOutcome::GateUnavailable(error.to_string())
            }
            Err(error) => {
                AttemptOutcome::Pause(None, format!("the quota cannot be asked: {error}"))
            }
        })
    }

    async fn send(
        &self,
        guard: Guard,
        request: &ChunkRequest,
        tokens: u64,
        cost: u64,
    ) -> Result<AttemptOutcome> {
        let use_by = guard.permit().and_then(tollgate::Permit::use_by);
        if use_by.is_some_and(|by| by < self.now()) {
            // It would reach the provider in a window that it was not counted in.
            drop(guard.release().await);
            return self.update(ChunkUpdate::Returned).await;
        }
        let answer = {
            let _at_provider = self.engine.meters().map(TranslationMeters::at_provider);
            self.engine.provider.translate(&request.request).await
        };
        if let Some(meters) = self.engine.meters() {
            meters.called(call_outcome(&answer));
        }
        let counted = answer.as_ref().ok().and_then(|answer| answer.usage.input);
        let never_arrived = matches!(&answer, Err(error) if error.kind == Kind::Unreachable);
        let outcome = match answer {
            Ok(answer) => self.answered(&answer, tokens, request).await,
            Err(error) => self.failed(error, tokens, cost).await,
        };
        if let Some(counted) = counted {
            self.engine.learn(&self.prepared, request.tokens, counted).await;
        }
        // After the update: a permit that is not settled costs time, an answer that is lost costs money. A gate that is unreachable
        // keeps the estimate, which errs to the strict side.
        if never_arrived {
            drop(guard.release().await);
        } else {
            drop(self.engine.throttle.settle(guard, counted).await);
        }
        outcome
    }
}

const fn call_outcome(answer: &Result<Completion, ProviderError>) -> CallOutcome {
    match answer {
        Ok(_) => CallOutcome::Answered,
        Err(error) if error.kind.is_quota() => CallOutcome::Refused,
        Err(ProviderError { kind: Kind::NotInTier, .. }) => CallOutcome::Refused,
        Err(_) => CallOutcome::Failed,
    }
}

/// Renews the claim of one attempt. A claim whose response was lost has no attempt, and expires.
async fn renew(engine: &Engine, claim: &Claim, lease: Span) -> Infallible {
    loop {
        let due = engine.clock.now() + Span::from_micros(lease.as_micros() / 3);
        engine.clock.sleep_until(due).await;
        // A store that is unreachable for a moment is no reason to drop a paid call.
        drop(engine.store.renew(claim, engine.clock.now()).await);
    }
}

fn over_budget(budget: Budget, spent: u64, next: u64, is_contended: bool) -> OverBudget {
    let raise_to = Micros(budget.most.saturating_mul(2).max(spent.saturating_add(next)));
    let [most, spent, next] = [budget.most, spent, next].map(Micros);
    let bound = match budget.is_hard {
        true => format!("at most {most} may be"),
        false => format!("more than {most} needs your consent, since it was planned to cost less"),
    };
    let why = format!(
        "the next call may cost {next}, {spent} is spent, and {bound}; resuming goes nowhere before you raise the bound, as in \
         --max-cost {}",
        raise_to.to_string().trim_start_matches('$')
    );
    OverBudget { why, raise_to, is_contended }
}
