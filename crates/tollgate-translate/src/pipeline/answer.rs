//! What an answer, or a call without one, means for its chunk and for the job.

use tollgate::{Span, Timestamp, edge};

use super::alike::{Blame, Useless};
use super::attempt::{Attempt, BACKOFF, Came};
use super::book::Asking;
use super::settle::{accept, give_up, settle};
use crate::error::Error;
use crate::job::{Drafts, Step, Used};
use crate::provider::{Answer, Finish, ProviderError, ProviderErrorKind as Kind};
use crate::verify::{self, Checked, Ending, Fault, Tried, next_step};

/// How often in a row a chunk's call may fail for a passing reason before the job takes a rest.
const PASSING_MAX: u32 = 8;

/// How long a job rests while its provider is down.
const REST: Span = Span::from_mins(10);

/// How often a chunk must come back untranslated before it is taken so, in a job of which nothing is translated.
const ECHOES_MAX: u32 = 4;

impl Attempt {
    /// Keeps what is good of an answer, and decides about the rest.
    pub(super) async fn answered(
        &self,
        answer: &Answer,
        tokens: u64,
        asking: &Asking,
    ) -> Result<Came, Error> {
        let input = answer.usage.input.unwrap_or(tokens);
        let output = answer.usage.paid_output();
        let used = Used { input, output, cost: self.book.cost(input, output) };
        let (run, open, before) = (self.claim.run, asking.open.as_slice(), &self.claim.drafts);
        let check = |ending| self.book.check(run, open, &answer.text, ending);
        let checked = match &answer.finish {
            Finish::Stop => check(Ending::Whole),
            Finish::MaxTokens => check(Ending::CutOff),
            // The same request would be blocked again; half of it may not be.
            Finish::Blocked(_) => {
                return self.divide(answer.finish.to_string(), before, used).await;
            }
            Finish::Other(reason) => {
                Checked::nothing(Fault::Unfinished { reason: reason.clone() }, open.len())
            }
        };
        let is_useful = 0 < checked.translated;
        let settled = settle(before.clone(), open, checked.clone());
        let Some(fault) = settled.fault else {
            self.done(settled.drafts, asking, used).await?;
            return Ok(if is_useful { Came::Useful } else { Came::On });
        };
        let (reason, mut drafts) = (fault.to_string(), settled.drafts);
        let attempts = self.claim.faults + 1;
        let tried = Tried { attempts, open: drafts.open().len(), settled: settled.count };
        match next_step(&fault, tried) {
            verify::Step::Split => self.divide(reason.clone(), &drafts, used).await?,
            verify::Step::Fail => self.give_up(reason.clone(), &drafts, used).await?,
            step => {
                if step == verify::Step::Accept && self.accepts_echoes(attempts).await? {
                    drafts = accept(drafts, open, checked);
                    if drafts.open().is_empty() {
                        self.done(drafts, asking, used).await?;
                        return Ok(Came::On);
                    }
                }
                let (at, reason) = (self.now(), reason.clone());
                self.record(Step::Again { at, reason, drafts, used, is_fault: true }).await?
            }
        };
        let blame = match fault {
            Fault::Echoed | Fault::Language { .. } => Blame::Model,
            _ => Blame::Size,
        };
        Ok(if is_useful { Came::Useful } else { self.useless(reason, blame) })
    }

    fn useless(&self, reason: String, blame: Blame) -> Came {
        let is_part = !self.book.is_planned(self.claim.run);
        Came::Useless(Useless { reason, blame, is_part })
    }

    /// Whether a source that was repeated twice is what the model makes of this text, and not of every one.
    async fn accepts_echoes(&self, attempts: u32) -> Result<bool, Error> {
        if self.claim.drafts.open().len() < self.claim.run.len() as usize || ECHOES_MAX <= attempts
        {
            return Ok(true);
        }
        Ok(0 < self.engine.store.counts(&self.claim.job).await?.done)
    }

    async fn done(&self, drafts: Drafts, asking: &Asking, used: Used) -> Result<(), Error> {
        let run = self.claim.run;
        let is_whole = asking.open.len() == run.len() as usize;
        let key = if is_whole { asking.key } else { self.book.key(run) };
        self.record(Step::Done { drafts: drafts.clone(), used }).await?;
        match drafts.whole() {
            Some(whole) => {
                self.engine.store.remember(key.as_bytes(), &whole.texts, self.now()).await
            }
            None => Ok(()),
        }
    }

    /// Halves of what is open, or given up where that is a single segment.
    pub(super) async fn divide(
        &self,
        reason: String,
        drafts: &Drafts,
        used: Used,
    ) -> Result<Came, Error> {
        match self.book.halves(self.claim.run, drafts) {
            Some(parts) => self.record(Step::Split { parts, reason, used }).await,
            None => self.give_up(reason, drafts, used).await,
        }
    }

    /// Gives up what is open, and nothing else.
    async fn give_up(&self, reason: String, drafts: &Drafts, used: Used) -> Result<Came, Error> {
        let parts = give_up(self.claim.run, drafts, &reason);
        match parts.len() {
            1 => self.record(Step::Failed { reason, used }).await,
            _ => self.record(Step::Split { parts, reason, used }).await,
        }
    }

    /// What a call without an answer means.
    pub(super) async fn failed(
        &self,
        error: ProviderError,
        tokens: u64,
        cost: u64,
    ) -> Result<Came, Error> {
        // What the provider refused it did not count as work; what was lost on the way back it did.
        let used = match error.kind {
            Kind::Unanswered | Kind::Garbled => Used { cost, ..Used::default() },
            _ => Used::default(),
        };
        match error.kind {
            Kind::DailyQuota => self.day_is_over(error, tokens).await,
            Kind::MinuteQuota | Kind::TokenQuota | Kind::Quota => {
                let until = self.now() + self.delay(error.retry_after);
                drop(self.engine.throttle.refused(tokens, &error, until).await);
                self.engine.saw_violation();
                self.again_later(error.text, until, used).await
            }
            Kind::Overloaded | Kind::Unreachable | Kind::Unanswered | Kind::Garbled => {
                let until = self.now() + self.delay(error.retry_after);
                self.again_later(error.text, until, used).await
            }
            Kind::NotInTier | Kind::Gone | Kind::Denied | Kind::NotProvider => {
                self.record(Step::Back).await?;
                Ok(Came::Pause(None, error.text))
            }
            Kind::BadRequest => self.refused(error.text, used).await,
        }
    }

    /// A chunk whose request is refused waits until others were sent: if those are refused too, it is not the chunk. If not, the part of it
    /// that is refused is looked for.
    async fn refused(&self, reason: String, used: Used) -> Result<Came, Error> {
        let drafts = &self.claim.drafts;
        if self.book.is_planned(self.claim.run) && self.claim.faults == 0 {
            let (at, reason, drafts) = (self.now(), reason.clone(), drafts.clone());
            self.record(Step::Again { at, reason, drafts, used, is_fault: true }).await?;
        } else {
            self.divide(reason.clone(), drafts, used).await?;
        }
        Ok(self.useless(reason, Blame::Request))
    }

    /// The longer of the backoff and what the provider asked for.
    fn delay(&self, retry_after: Option<Span>) -> Span {
        BACKOFF.delay(self.claim.passing, edge::random()).max(retry_after.unwrap_or_default())
    }

    pub(super) async fn again_later(
        &self,
        reason: String,
        at: Timestamp,
        used: Used,
    ) -> Result<Came, Error> {
        self.engine.saw_failure();
        let (why, drafts) = (reason.clone(), self.claim.drafts.clone());
        self.record(Step::Again { at, reason: why, drafts, used, is_fault: false }).await?;
        if (self.claim.passing + 1).is_multiple_of(PASSING_MAX) {
            let why = format!("the provider failed {PASSING_MAX} times in a row: {reason}");
            return Ok(Came::Pause(Some(self.now() + REST), why));
        }
        Ok(Came::Again(at, reason))
    }
}
