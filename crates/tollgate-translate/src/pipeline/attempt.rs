//! One attempt at one chunk, and what its outcome means for the chunk and for the job.
//!
//! Every step is written down before the next one is taken. A permit is taken for each attempt, and kept when the call
//! failed: whether the provider counted it is unknown, and the strict side is to assume that it did.

use std::sync::Arc;

use tokio::sync::watch;
use tollgate::{Backoff, Clock as _, Guard, Span, Timestamp, edge};

use super::book::{Book, Trouble};
use super::throttle::Pass;
use super::{Engine, Options};
use crate::error::Error;
use crate::job::{Claim, Step, Used};
use crate::provider::{Answer, Finish, ProviderError, ProviderErrorKind as Kind, Request};

/// How long to wait after a call that failed for a passing reason.
const BACKOFF: Backoff = Backoff {
    base: Span::from_secs(2),
    max: Span::from_secs(60),
    jitter_low: 500,
    jitter_high: 1_500,
    clamp: true,
};

/// How often the answer to a chunk of one segment may be bad before it is given up.
const FAULTS_MAX: u32 = 3;

/// How often in a row a chunk's call may fail for a passing reason before the job takes a rest.
const PASSING_MAX: u32 = 8;

/// How long a job rests while its provider is down.
const REST: Span = Span::from_mins(10);

/// What an attempt means for the job.
#[derive(Debug)]
pub(super) enum Came {
    /// Go on.
    On,
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
    pub(super) async fn run(mut self) -> Result<Came, Error> {
        let request = self.book.request(self.claim.run);
        let hash = self.book.hash(&request);
        if let Some(texts) = self.engine.store.recall(&hash).await?
            && texts.len() == self.claim.run.len() as usize
        {
            return self.record(Step::Done { texts, used: Used::default() }).await;
        }
        let tokens = self.engine.estimate(&self.book, &request);
        let cost = self.book.cost_expected(tokens, self.claim.run);
        if let Some(most) = self.book.max_cost() {
            if most < self.claim.spent.saturating_add(cost) {
                self.record(Step::Back).await?;
                return Ok(Came::Pause(None, over_budget(most, self.claim.spent, cost)));
            }
            self.record(Step::Expect { cost }).await?;
        }
        let guard = match self.permit(tokens).await? {
            Ok(guard) => guard,
            Err(came) => return Ok(came),
        };
        if self.engine.store.record(&self.claim, &Step::Sent { cost }).await? {
            self.send(guard, &request, tokens, hash).await
        } else {
            // Another worker has it by now.
            guard.release().await?;
            Ok(Came::On)
        }
    }

    async fn record(&self, step: Step) -> Result<Came, Error> {
        self.engine.store.record(&self.claim, &step).await?;
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
                Err(Came::Pause(Some(at), why))
            }
            Ok(Pass::Never(why)) => Err(self.divide(why, Used::default()).await?),
            // The gate could not decide, so nobody may go; it may be able to later.
            Err(error) => Err(self.again_later(error.to_string(), None, Used::default()).await?),
        })
    }

    async fn send(
        &self,
        guard: Guard,
        request: &Request,
        tokens: u64,
        hash: [u8; 32],
    ) -> Result<Came, Error> {
        let late = guard.permit().and_then(tollgate::Permit::use_by).is_some_and(|by| by < self.now());
        if late {
            // It would reach the provider in a window that it was not counted in.
            guard.release().await?;
            return self.record(Step::Back).await;
        }
        let answer = self.engine.provider.translate(request).await;
        let counted = answer.as_ref().ok().and_then(|answer| answer.usage.input);
        let came = match answer {
            Ok(answer) => {
                self.engine.learn(&self.book, request, &answer);
                self.answered(answer, tokens, hash).await
            }
            Err(error) => self.failed(error, tokens).await,
        };
        // After the journal: a permit that is not settled costs time, an answer that is lost costs money. A gate that cannot
        // be told keeps the estimate, which errs to the strict side.
        drop(self.engine.throttle.settle(guard, counted).await);
        came
    }

    async fn answered(&self, answer: Answer, tokens: u64, hash: [u8; 32]) -> Result<Came, Error> {
        let input = answer.usage.input.unwrap_or(tokens);
        let output = answer.usage.paid_output();
        let used = Used { input, output, cost: self.book.cost(input, output) };
        let trouble = match &answer.finish {
            Finish::Stop => match self.book.check(self.claim.run, &answer.text) {
                Ok(texts) => {
                    self.record(Step::Done { texts: texts.clone(), used }).await?;
                    self.engine.store.remember(&hash, &texts, self.now()).await?;
                    return Ok(Came::On);
                }
                Err(trouble) => trouble,
            },
            // The same request would end the same way.
            Finish::MaxTokens | Finish::Blocked(_) => {
                return self.divide(answer.finish.to_string(), used).await;
            }
            Finish::Other(_) => Trouble(answer.finish.to_string()),
        };
        self.step_down(trouble, used).await
    }

    /// The ladder: the same again, then halves, then single segments, then given up.
    async fn step_down(&self, Trouble(reason): Trouble, used: Used) -> Result<Came, Error> {
        let faults = self.claim.faults + 1;
        if faults == 1 || (self.claim.run.len() == 1 && faults < FAULTS_MAX) {
            let at = self.now();
            return self.record(Step::Again { at, reason, used, is_fault: true }).await;
        }
        self.divide(reason, used).await
    }

    /// Halves, or given up where there is nothing to halve.
    async fn divide(&self, reason: String, used: Used) -> Result<Came, Error> {
        if 1 < self.claim.run.len() {
            let at = self.book.middle(self.claim.run);
            return self.record(Step::Split { at, reason, used }).await;
        }
        self.record(Step::Failed { reason, used }).await
    }

    async fn failed(&self, error: ProviderError, tokens: u64) -> Result<Came, Error> {
        // What the provider refused it did not count as work, but it may have counted it against the quota.
        let used = Used::default();
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
            Kind::Overloaded | Kind::Unreachable | Kind::Garbled => {
                let until = self.now() + self.delay(error.retry_after);
                self.again_later(error.text, Some(until), used).await
            }
            Kind::NotInTier | Kind::Gone | Kind::Denied => {
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
        Ok(Came::On)
    }
}

fn over_budget(most: u64, spent: u64, next: u64) -> String {
    let money = |millionths: u64| format!("{}.{:04}", millionths / 1_000_000, millionths % 1_000_000 / 100);
    format!(
        "the next chunk may cost {}, {} is spent, and at most {} may be; raise the limit and resume",
        money(next),
        money(spent),
        money(most)
    )
}
