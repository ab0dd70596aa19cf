//! One attempt at one chunk, and what its outcome means for the chunk and for the job.
//!
//! Every step is written down before the next one is taken. A permit is taken for each attempt, and kept when the call
//! failed, unless it surely never arrived: whether the provider counted it is unknown, and the strict side is to assume that
//! it did. The same goes for its money where the provider may have worked.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::watch;
use tollgate::{Backoff, Guard, Span, Timestamp, edge};
use tollgate_telemetry::TranslationMeters;

use super::book::{Asking, Book};
use super::throttle::Pass;
use super::{Engine, Options};
use crate::error::Error;
use crate::job::{Claim, Step, Used};
use crate::plan::Micros;
use crate::provider::{Answer, Finish, ProviderError, ProviderErrorKind as Kind};
use crate::verify::{self, Fault, next_step};

/// How long to wait after a call that failed for a passing reason.
const BACKOFF: Backoff = Backoff {
    base: Span::from_secs(2),
    max: Span::from_secs(60),
    jitter_low: 500,
    jitter_high: 1_500,
    clamp: true,
};

/// How often in a row a chunk's call may fail for a passing reason before the job takes a rest.
const PASSING_MAX: u32 = 8;

/// How often a step is written down before the run ends with the store's error.
const RECORDS_MAX: u32 = 5;

/// How long a job rests while its provider is down.
const REST: Span = Span::from_mins(10);

/// What an attempt means for the job.
#[derive(Debug)]
pub(super) enum Came {
    /// Go on.
    On,
    /// Go on; this chunk is tried again at a time, and why.
    Again(Timestamp, String),
    /// The quota is used up until this time, as far as can be told from a place in line.
    Full(Timestamp, String),
    /// There is not enough money for the call, and why; whether calls of others are under way that may leave some.
    Poor(String, bool),
    /// Nothing goes on before this time, or before somebody acts.
    Pause(Option<Timestamp>, String),
}

/// One worker's hands on one chunk.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) engine: Arc<Engine>,
    pub(super) book: Arc<Book>,
    pub(super) claim: Claim,
    /// Set when everything that is not at the provider yet must stop.
    pub(super) halt: watch::Receiver<bool>,
}

impl Attempt {
    /// Attempts the chunk, and keeps the claim alive meanwhile.
    pub(super) async fn run(self) -> Result<Came, Error> {
        let (engine, claim) = (Arc::clone(&self.engine), self.claim.clone());
        let Some(lease) = engine.store.lease() else { return self.once().await };
        tokio::select! {
            biased;
            came = self.once() => came,
            never = keep_alive(&engine, &claim, lease) => match never {},
        }
    }

    async fn once(mut self) -> Result<Came, Error> {
        let mut asking = self.book.ask(self.claim.run);
        if let Some(texts) = self.engine.store.recall(asking.key.as_bytes()).await?
            && texts.len() == self.claim.run.len() as usize
        {
            return self.record(Step::Done { texts, warning: None, used: Used::default() }).await;
        }
        let tokens = self.engine.corrected(&self.book, asking.tokens);
        let most = self.book.max_cost().map(|Micros(most)| most);
        let mut cost = self.book.cost(tokens, asking.output);
        if let Some(most) = most {
            let Claim { spent, under_way, .. } = self.claim;
            let left = most.saturating_sub(spent).saturating_sub(under_way);
            if left < cost {
                self.record(Step::Back).await?;
                return Ok(Came::Poor(over_budget(most, spent, cost), 0 < under_way));
            }
            cost = self.book.bounded(&mut asking.request, tokens, left);
        }
        let guard = match self.permit(tokens).await? {
            Ok(guard) => guard,
            Err(came) => return Ok(came),
        };
        if self.engine.store.record(&self.claim, &Step::Sent { cost, most }).await? {
            return self.send(guard, &asking, tokens, cost).await;
        }
        // Another call has the money by now, or another worker has the chunk, who does not notice this.
        drop(guard.release().await);
        self.record(Step::Back).await?;
        Ok(match most {
            Some(most) => Came::Poor(over_budget(most, self.claim.spent, cost), true),
            None => Came::On,
        })
    }

    /// Writes a step down. A store that fails for a moment must not cost an answer that is paid, so it is tried again.
    async fn record(&self, step: Step) -> Result<Came, Error> {
        let mut tries = 0;
        while let Err(error) = self.engine.store.record(&self.claim, &step).await {
            tries += 1;
            if RECORDS_MAX <= tries {
                return Err(error);
            }
            let wait = BACKOFF.delay(tries - 1, edge::random());
            self.engine.clock.sleep_until(self.now() + wait).await;
        }
        Ok(Came::On)
    }

    fn options(&self) -> &Options {
        &self.engine.options
    }

    fn now(&self) -> Timestamp {
        self.engine.clock.now()
    }

    /// Waits for a permit; the inner error is what the chunk's way ends with for now.
    async fn permit(&mut self, tokens: u64) -> Result<Result<Guard, Came>, Error> {
        let patience = self.options().patience;
        let passed = {
            let halted = self.halt.wait_for(|halt| *halt);
            tokio::select! {
                biased;
                _ = halted => None,
                passed = self.engine.throttle.acquire(tokens, patience) => Some(passed),
            }
        };
        let Some(passed) = passed else {
            return Ok(Err(self.record(Step::Back).await?));
        };
        Ok(match passed {
            Ok(Pass::Go(guard)) => Ok(guard),
            Ok(Pass::NotBefore(at, why)) => {
                self.record(Step::Back).await?;
                Err(Came::Full(at, why))
            }
            Ok(Pass::Never(why)) => Err(self.divide(why, Used::default()).await?),
            // The gate could not decide, so nobody may go; it may be able to later.
            Err(error) => Err(self.again_later(error.to_string(), None, Used::default()).await?),
        })
    }

    async fn send(
        &self,
        guard: Guard,
        asking: &Asking,
        tokens: u64,
        cost: u64,
    ) -> Result<Came, Error> {
        let use_by = guard.permit().and_then(tollgate::Permit::use_by);
        if use_by.is_some_and(|by| by < self.now()) {
            // It would reach the provider in a window that it was not counted in.
            drop(guard.release().await);
            return self.record(Step::Back).await;
        }
        let answer = {
            let _at_provider = self.engine.meters().map(TranslationMeters::at_provider);
            self.engine.provider.translate(&asking.request).await
        };
        let counted = answer.as_ref().ok().and_then(|answer| answer.usage.input);
        let never_arrived = matches!(&answer, Err(error) if error.kind == Kind::Unreachable);
        let came = match answer {
            Ok(answer) => self.answered(&answer, tokens, asking).await,
            Err(error) => self.failed(error, tokens, cost).await,
        };
        if let Some(counted) = counted {
            self.engine.learn(&self.book, asking.tokens, counted).await;
        }
        // After the journal: a permit that is not settled costs time, an answer that is lost costs money. A gate that cannot
        // be told keeps the estimate, which errs to the strict side.
        if never_arrived {
            drop(guard.release().await);
        } else {
            drop(self.engine.throttle.settle(guard, counted).await);
        }
        came
    }

    async fn answered(&self, answer: &Answer, tokens: u64, asking: &Asking) -> Result<Came, Error> {
        let input = answer.usage.input.unwrap_or(tokens);
        let output = answer.usage.paid_output();
        let used = Used { input, output, cost: self.book.cost(input, output) };
        let fault = match &answer.finish {
            Finish::Stop => match self.book.check(self.claim.run, &answer.text) {
                // A doubt is worth one more try, and after that a warning.
                Ok(verified) if verified.doubts.is_empty() || 0 < self.claim.faults => {
                    let warning = verified.doubts.first().map(ToString::to_string);
                    let texts = verified.texts;
                    self.record(Step::Done { texts: texts.clone(), warning, used }).await?;
                    self.engine.store.remember(asking.key.as_bytes(), &texts, self.now()).await?;
                    return Ok(Came::On);
                }
                Ok(mut verified) => verified.doubts.swap_remove(0),
                Err(fault) => fault,
            },
            Finish::MaxTokens => Fault::Truncated,
            // The same request would be blocked again; half of it may not be.
            Finish::Blocked(_) => return self.divide(answer.finish.to_string(), used).await,
            Finish::Other(reason) => Fault::Unfinished { reason: reason.clone() },
        };
        let reason = fault.to_string();
        match next_step(&fault, self.claim.faults + 1, self.claim.run.len() as usize) {
            verify::Step::Retry => {
                let at = self.now();
                self.record(Step::Again { at, reason, used, is_fault: true }).await
            }
            verify::Step::Split => self.divide(reason, used).await,
            verify::Step::Fail | verify::Step::Accept => {
                self.record(Step::Failed { reason, used }).await
            }
        }
    }

    /// Halves, or given up where there is nothing to halve.
    async fn divide(&self, reason: String, used: Used) -> Result<Came, Error> {
        match self.book.middle(self.claim.run) {
            Some(at) => self.record(Step::Split { at, reason, used }).await,
            None => self.record(Step::Failed { reason, used }).await,
        }
    }

    async fn failed(&self, error: ProviderError, tokens: u64, cost: u64) -> Result<Came, Error> {
        // What the provider refused it did not count as work; what was lost on the way back it did.
        let used = match error.kind {
            Kind::Unanswered | Kind::Garbled => Used { cost, ..Used::default() },
            _ => Used::default(),
        };
        match error.kind {
            Kind::DailyQuota => {
                let until = self.engine.provider.day_ends(self.now());
                drop(self.engine.throttle.refused(tokens, &error, until).await);
                self.engine.saw_violation();
                self.record(Step::Back).await?;
                Ok(Came::Pause(Some(until), error.text))
            }
            Kind::MinuteQuota | Kind::TokenQuota | Kind::Quota => {
                let until = self.now() + self.delay(error.retry_after);
                drop(self.engine.throttle.refused(tokens, &error, until).await);
                self.engine.saw_violation();
                self.again_later(error.text, Some(until), used).await
            }
            Kind::Overloaded | Kind::Unreachable | Kind::Unanswered | Kind::Garbled => {
                let until = self.now() + self.delay(error.retry_after);
                self.again_later(error.text, Some(until), used).await
            }
            Kind::NotInTier | Kind::Gone | Kind::Denied | Kind::NotProvider => {
                self.record(Step::Back).await?;
                Ok(Came::Pause(None, error.text))
            }
            Kind::BadRequest => self.record(Step::Failed { reason: error.text, used }).await,
        }
    }

    /// The longer of the backoff and what the provider asked for.
    fn delay(&self, retry_after: Option<Span>) -> Span {
        BACKOFF.delay(self.claim.passing, edge::random()).max(retry_after.unwrap_or_default())
    }

    async fn again_later(
        &self,
        reason: String,
        until: Option<Timestamp>,
        used: Used,
    ) -> Result<Came, Error> {
        let at = until.unwrap_or_else(|| self.now() + self.delay(None));
        self.engine.saw_failure();
        let step = Step::Again { at, reason: reason.clone(), used, is_fault: false };
        self.record(step).await?;
        if (self.claim.passing + 1).is_multiple_of(PASSING_MAX) {
            let why = format!("the provider failed {PASSING_MAX} times in a row: {reason}");
            return Ok(Came::Pause(Some(self.now() + REST), why));
        }
        Ok(Came::Again(at, reason))
    }
}

/// Each attempt renews its own claim: one whose answer was lost on the way has no attempt, and ends by itself.
async fn keep_alive(engine: &Engine, claim: &Claim, lease: Span) -> Infallible {
    loop {
        let due = engine.clock.now() + Span::from_micros(lease.as_micros() / 3);
        engine.clock.sleep_until(due).await;
        // A store that cannot be reached for a moment is no reason to drop a call that is paid.
        drop(engine.store.renew(claim, engine.clock.now()).await);
    }
}

fn over_budget(most: u64, spent: u64, next: u64) -> String {
    let [most, spent, next] = [most, spent, next].map(Micros);
    format!(
        "the next call may cost {next}, {spent} is spent, and at most {most} may be; resuming goes nowhere before you \
         raise the bound"
    )
}
