//! The consequences of an answer, or of a failed call, for its chunk and its job.

use tollgate::internal::edge;
use tollgate::{Span, Timestamp};

use super::attempt::{Attempt, AttemptOutcome, BACKOFF};
use super::prepared::ChunkRequest;
use super::settle::{accept, give_up, settle};
use super::streak::{Cause, UselessAnswer, letters};
use super::throttle::DAY_MARGIN;
use crate::error::Result;
use crate::job::{CallUsage, ChunkRecord, ChunkUpdate, Drafts};
use crate::provider::{Completion, FinishReason, ProviderError, ProviderErrorKind as Kind};
use crate::verify::{Checked, Ending, Fault, NextStep, Tried, next_step};

/// How many consecutive transient failures of a chunk pause its job.
const TRANSIENT_MAX: u32 = 8;

/// How long a job is paused while its provider is down.
const DOWN_PAUSE: Span = Span::from_mins(10);

/// How often a chunk must come back untranslated before that is accepted, in a job without any translation.
const ECHOES_MAX: u32 = 4;

/// The range of the delay between a first refusal for the day and the call that confirms it.
const CONFIRM_DELAY_MIN: Span = Span::from_secs(10);
const CONFIRM_DELAY_MAX: Span = Span::from_mins(2);

/// How long a first refusal for the day is remembered.
const CONFIRM_WINDOW: Span = Span::from_mins(10);

impl Attempt {
    /// Stores the good part of an answer, and decides about the rest.
    pub(super) async fn answered(
        &self,
        answer: &Completion,
        tokens: u64,
        request: &ChunkRequest,
    ) -> Result<AttemptOutcome> {
        let input = answer.usage.input.unwrap_or(tokens);
        let output = answer.usage.paid_output();
        let used = CallUsage { input, output, cost: self.prepared.cost(input, output) };
        let (run, open, before) = (self.claim.run, request.open.as_slice(), &self.claim.drafts);
        let check = |ending| self.prepared.check(run, open, &answer.text, ending);
        let checked = match &answer.finish {
            FinishReason::Stop => check(Ending::Whole),
            FinishReason::MaxTokens => check(Ending::CutOff),
            // The same request would be blocked again; half of it may not be.
            FinishReason::Blocked(_) => {
                return self.split(answer.finish.to_string(), before, used).await;
            }
            FinishReason::Other(reason) => {
                Checked::nothing(Fault::Unfinished { reason: reason.clone() }, open.len())
            }
        };
        let is_useful = 0 < checked.translated;
        let settled = settle(before.clone(), open, checked.clone());
        let Some(fault) = settled.fault else {
            self.finish(settled.drafts, request, used).await?;
            return Ok(match is_useful {
                true => AttemptOutcome::Translated,
                false => AttemptOutcome::Continue,
            });
        };
        let (reason, mut drafts) = (fault.to_string(), settled.drafts);
        let attempts = self.claim.faults + 1;
        let tried = Tried { attempts, open: drafts.open().len(), settled: settled.count };
        match next_step(&fault, tried) {
            NextStep::Split => self.split(reason.clone(), &drafts, used).await?,
            NextStep::Fail => self.give_up(reason.clone(), &drafts, used).await?,
            step => {
                if step == NextStep::Accept && self.accepts_echoes(attempts).await? {
                    drafts = accept(drafts, open, checked);
                    if drafts.open().is_empty() {
                        self.finish(drafts, request, used).await?;
                        return Ok(AttemptOutcome::Continue);
                    }
                }
                let (at, reason) = (self.now(), reason.clone());
                self.update(ChunkUpdate::Again { at, reason, drafts, used, is_fault: true }).await?
            }
        };
        let cause = match fault {
            Fault::Echoed | Fault::Language { .. } => Cause::Model,
            _ => Cause::Size,
        };
        Ok(if is_useful { AttemptOutcome::Translated } else { self.useless(reason, cause) })
    }

    fn useless(&self, reason: String, cause: Cause) -> AttemptOutcome {
        let is_part = !self.prepared.is_planned(self.claim.run);
        AttemptOutcome::Useless(UselessAnswer { reason, cause, is_part })
    }

    /// Returns whether the model left this text untranslated on purpose, since it does not do so with every text.
    async fn accepts_echoes(&self, attempts: u32) -> Result<bool> {
        let is_partly_settled = self.claim.drafts.open().len() < self.claim.run.len() as usize;
        Ok(is_partly_settled
            || ECHOES_MAX <= attempts
            || 0 < self.engine.store.counts(&self.claim.job).await?.done)
    }

    /// Stores the translated chunk, and caches its texts.
    async fn finish(&self, drafts: Drafts, request: &ChunkRequest, used: CallUsage) -> Result<()> {
        let run = self.claim.run;
        let is_whole = request.open.len() == run.len() as usize;
        let key = if is_whole { request.key } else { self.prepared.cache_key(run) };
        self.update(ChunkUpdate::Done { drafts: drafts.clone(), used }).await?;
        match drafts.whole() {
            Some(whole) => self.engine.store.cache(key.as_bytes(), &whole.texts, self.now()).await,
            None => Ok(()),
        }
    }

    /// Halves the open segments; gives up a single one.
    pub(super) async fn split(
        &self,
        reason: String,
        drafts: &Drafts,
        used: CallUsage,
    ) -> Result<AttemptOutcome> {
        match self.prepared.halves(self.claim.run, drafts) {
            Some(parts) => self.update(ChunkUpdate::Split { parts, reason, used }).await,
            None => self.give_up(reason, drafts, used).await,
        }
    }

    /// Gives up the open segments, and nothing else.
    async fn give_up(
        &self,
        reason: String,
        drafts: &Drafts,
        used: CallUsage,
    ) -> Result<AttemptOutcome> {
        let parts = give_up(self.claim.run, drafts, &reason);
        match parts.len() {
            1 => self.update(ChunkUpdate::Failed { reason, used }).await,
            _ => self.update(ChunkUpdate::Split { parts, reason, used }).await,
        }
    }

    /// Handles a failed call.
    pub(super) async fn failed(
        &self,
        error: ProviderError,
        tokens: u64,
        cost: u64,
    ) -> Result<AttemptOutcome> {
        // The provider does not charge a refusal; it may charge an answer that was lost.
        let used = match error.kind {
            Kind::Unanswered | Kind::Garbled => CallUsage { cost, ..CallUsage::default() },
            _ => CallUsage::default(),
        };
        match error.kind {
            Kind::DailyQuota => self.daily_quota_exhausted(error, tokens).await,
            Kind::NotInTier
            | Kind::InsufficientQuota
            | Kind::Gone
            | Kind::Denied
            | Kind::NotProvider => {
                self.update(ChunkUpdate::Returned).await?;
                Ok(AttemptOutcome::Pause(None, error.text))
            }
            Kind::BadRequest | Kind::TooLarge => self.refused(error.text, used).await,
            _ => {
                // The longer of the backoff and the provider's wish.
                let backoff = BACKOFF.delay(self.claim.transient, edge::random());
                let until = self.now() + backoff.max(error.retry_after.unwrap_or_default());
                if error.kind.is_quota() {
                    drop(self.engine.throttle.refused(tokens, &error, until).await);
                    self.engine.count_violation();
                }
                self.retry_at(error.text, until, used).await
            }
        }
    }

    /// Delays a refused chunk until others were sent: if those are refused too, the chunk is not the cause. Otherwise splits it to find
    /// the part that is refused.
    async fn refused(&self, reason: String, used: CallUsage) -> Result<AttemptOutcome> {
        let drafts = &self.claim.drafts;
        if self.prepared.is_planned(self.claim.run) && self.claim.faults == 0 {
            let (at, reason, drafts) = (self.now(), reason.clone(), drafts.clone());
            self.update(ChunkUpdate::Again { at, reason, drafts, used, is_fault: true }).await?;
        } else {
            self.split(reason.clone(), drafts, used).await?;
        }
        Ok(self.useless(reason, Cause::Request))
    }

    /// Schedules a retry after a transient failure.
    async fn retry_at(
        &self,
        reason: String,
        at: Timestamp,
        used: CallUsage,
    ) -> Result<AttemptOutcome> {
        self.engine.failures.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (why, drafts) = (reason.clone(), self.claim.drafts.clone());
        self.update(ChunkUpdate::Again { at, reason: why, drafts, used, is_fault: false }).await?;
        if (self.claim.transient + 1).is_multiple_of(TRANSIENT_MAX) {
            let why = format!("the provider failed {TRANSIENT_MAX} times in a row: {reason}");
            return Ok(AttemptOutcome::Pause(Some(self.now() + DOWN_PAUSE), why));
        }
        Ok(AttemptOutcome::RetryAt(at, reason))
    }

    /// Confirms a refusal for the day by a second call, and then pauses the job until the day is over, for all who share the quota.
    ///
    /// Just after midnight the provider's day may not have begun by its own clock, and a pause would last a whole day for nothing.
    /// The provider's hint is short in that case, but it can be as short on a day that is used up.
    async fn daily_quota_exhausted(
        &self,
        error: ProviderError,
        tokens: u64,
    ) -> Result<AttemptOutcome> {
        let (now, ends) = (self.now(), self.engine.provider.day_ends(self.now()));
        self.engine.count_violation();
        if self.is_confirmed(&error.text, now).await? {
            let until = ends + DAY_MARGIN;
            drop(self.engine.throttle.refused(tokens, &error, until).await);
            self.update(ChunkUpdate::Returned).await?;
            return Ok(AttemptOutcome::Pause(Some(until), error.text));
        }
        let hint = error.retry_after.filter(|hint| *hint <= CONFIRM_DELAY_MAX).unwrap_or_default();
        let until = now + hint.max(CONFIRM_DELAY_MIN);
        drop(self.engine.throttle.refused(tokens, &error, until).await);
        self.retry_at(error.text, until, CallUsage::default()).await
    }

    /// Returns whether a chunk of the job was refused for the same reason on the same day, and its retry is due.
    async fn is_confirmed(&self, reason: &str, now: Timestamp) -> Result<bool> {
        let (provider, reason) = (&self.engine.provider, letters(reason));
        let confirms = |chunk: &ChunkRecord| {
            let is_same = chunk.reason.as_deref().is_some_and(|it| letters(it) == reason);
            is_same
                && chunk.due.is_some_and(|due| {
                    due <= now
                        && now.since(due) < CONFIRM_WINDOW
                        && provider.day_ends(due) == provider.day_ends(now)
                })
        };
        Ok(self.engine.store.chunks(&self.claim.job).await?.iter().any(confirms))
    }
}
