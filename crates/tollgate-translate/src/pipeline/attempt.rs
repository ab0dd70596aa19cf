//! One attempt at one chunk: what is open of it is asked for within the budget and the quota.
//!
//! Every step is written down before the next one is taken. A permit is taken for each attempt, and kept when the call
//! failed, unless it surely never arrived: whether the provider counted it is unknown, and the strict side is to assume that
//! it did. The same goes for its money where the provider may have worked.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::watch;
use tollgate::{Backoff, ErrorKind as GateErrorKind, Guard, Span, Timestamp, edge};
use tollgate_telemetry::{CallOutcome, TranslationMeters};

use super::alike::Useless;
use super::book::{Asking, Book, Budget};
use super::throttle::Pass;
use super::{Engine, Options};
use crate::error::{Error, ErrorKind};
use crate::job::{Claim, Part, Step, Used};
use crate::plan::Micros;
use crate::provider::{Answer, ProviderError, ProviderErrorKind as Kind};

/// How long to wait after a call that failed for a passing reason.
pub(super) const BACKOFF: Backoff = Backoff {
    base: Span::from_secs(2),
    max: Span::from_secs(60),
    jitter_low: 500,
    jitter_high: 1_500,
    clamp: true,
};

/// How often a step is written down before the run ends with the store's error.
const RECORDS_MAX: u32 = 5;

/// What an attempt means for the job.
#[derive(Debug)]
pub(super) enum Came {
    /// Go on.
    On,
    /// Go on; something was translated.
    Useful,
    /// Go on, unless others failed alike.
    Useless(Useless),
    /// Go on; this chunk is tried again at a time, and why.
    Again(Timestamp, String),
    /// The quota is used up until this time, as far as can be told from a place in line.
    Full(Timestamp, String),
    /// The gate did not decide, because its store is away or busy; and why.
    Undecided(String),
    /// There is not enough money for the call.
    Poor(Poor),
    /// Nothing goes on before this time, or before somebody acts.
    Pause(Option<Timestamp>, String),
}

/// A call that the budget of its job has not enough left for.
#[derive(Debug)]
pub(super) struct Poor {
    pub(super) why: String,
    /// A budget that would be enough for a while.
    pub(super) raise_to: Micros,
    /// Whether calls of others are under way that may leave some.
    pub(super) is_contended: bool,
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
        let Claim { run, ref drafts, spent, under_way, .. } = self.claim;
        let mut asking = self.book.ask(run, drafts.open());
        if asking.open.len() == run.len() as usize
            && let Some(texts) = self.engine.store.recall(asking.key.as_bytes()).await?
            && let Some(drafts) = self.book.recalled(run, texts)
        {
            return self.record(Step::Done { drafts, used: Used::default() }).await;
        }
        let tokens = self.engine.corrected(&self.book, asking.tokens);
        let budget = self.book.budget();
        let mut cost = self.book.cost(tokens, asking.output);
        if let Some(budget) = budget {
            let left = budget.most.saturating_sub(spent).saturating_sub(under_way);
            if left < cost {
                self.record(Step::Back).await?;
                return Ok(Came::Poor(over_budget(budget, spent, cost, 0 < under_way)));
            }
            if budget.is_hard {
                cost = self.book.bounded(&mut asking.request, tokens, left);
            }
        }
        let guard = match self.permit(tokens).await? {
            Ok(guard) => guard,
            Err(came) => return Ok(came),
        };
        let most = budget.map(|budget| budget.most);
        if self.engine.store.record(&self.claim, &Step::Sent { cost, most }).await? {
            return self.send(guard, &asking, tokens, cost).await;
        }
        // Another call has the money by now, or another worker has the chunk, who does not notice this.
        drop(guard.release().await);
        self.record(Step::Back).await?;
        Ok(match budget {
            Some(budget) => Came::Poor(over_budget(budget, self.claim.spent, cost, true)),
            None => Came::On,
        })
    }

    /// Writes a step down. A store that fails for a moment must not cost an answer that is paid, so it is tried again.
    pub(super) async fn record(&self, step: Step) -> Result<Came, Error> {
        let mut tries = 0;
        let is_kept = loop {
            let error = match self.engine.store.record(&self.claim, &step).await {
                Ok(is_kept) => break is_kept,
                Err(error) => error,
            };
            tries += 1;
            // A store that can be away waits by itself.
            if RECORDS_MAX <= tries || error.kind() == ErrorKind::Unavailable {
                return Err(error);
            }
            let wait = BACKOFF.delay(tries - 1, edge::random());
            self.engine.clock.sleep_until(self.now() + wait).await;
        };
        if let Some(meters) = self.engine.meters()
            && is_kept
        {
            meters.translated(self.words_done(&step));
        }
        Ok(Came::On)
    }

    /// How many words are translated by `step`.
    fn words_done(&self, step: &Step) -> u64 {
        let is_done = |part: &&Part| part.failed.is_none() && part.drafts.open().is_empty();
        match step {
            Step::Done { .. } => self.book.words(self.claim.run),
            Step::Split { parts, .. } => {
                parts.iter().filter(is_done).map(|part| self.book.words(part.run)).sum()
            }
            _ => 0,
        }
    }

    fn options(&self) -> &Options {
        &self.engine.options
    }

    pub(super) fn now(&self) -> Timestamp {
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
            Ok(Pass::Never(why)) => {
                Err(self.divide(why, &self.claim.drafts, Used::default()).await?)
            }
            Ok(Pass::Undecided(why)) => Err(self.undecided(why).await?),
            Err(error) if error.is_unavailable() || error.kind() == GateErrorKind::Contended => {
                Err(self.undecided(error.to_string()).await?)
            }
            Err(error) => {
                self.record(Step::Back).await?;
                Err(Came::Pause(None, format!("the quota cannot be asked: {error}")))
            }
        })
    }

    /// Puts the chunk back, unchanged: neither it nor the provider is to blame.
    async fn undecided(&self, why: String) -> Result<Came, Error> {
        self.record(Step::Back).await?;
        Ok(Came::Undecided(why))
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
        if let Some(meters) = self.engine.meters() {
            meters.called(outcome_of(&answer));
        }
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
}

const fn outcome_of(answer: &Result<Answer, ProviderError>) -> CallOutcome {
    match answer {
        Ok(_) => CallOutcome::Answered,
        Err(error) => match error.kind {
            Kind::DailyQuota
            | Kind::MinuteQuota
            | Kind::TokenQuota
            | Kind::Quota
            | Kind::NotInTier => CallOutcome::Refused,
            _ => CallOutcome::Failed,
        },
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

fn over_budget(budget: Budget, spent: u64, next: u64, is_contended: bool) -> Poor {
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
    Poor { why, raise_to, is_contended }
}
