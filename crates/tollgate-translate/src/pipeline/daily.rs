//! A refusal for the day: a second look before the job is paused until the provider's midnight.
//!
//! Just after midnight the provider's day may not have begun by its own clock, and a pause would then last a whole day for nothing. What a provider
//! hints is short in that case, but it can be as short on a day that is used up. So a call is made once more, after a short while, and
//! only a second refusal is believed.

use tollgate::{Span, Timestamp};

use super::alike::letters;
use super::attempt::{Attempt, Came};
use super::throttle::DAY_MARGIN;
use crate::error::Error;
use crate::job::{ChunkRecord, Step, Used};
use crate::provider::ProviderError;

/// The second look comes after the provider's hint, within these bounds.
const LOOK_AFTER_MIN: Span = Span::from_secs(10);
const LOOK_AFTER_MAX: Span = Span::from_mins(2);

/// How long a second look is remembered.
const LOOK_KEPT: Span = Span::from_mins(10);

impl Attempt {
    /// Looks again, or pauses the job until the day is over, for everybody who shares the quota.
    pub(super) async fn day_is_over(
        &self,
        error: ProviderError,
        tokens: u64,
    ) -> Result<Came, Error> {
        let (now, ends) = (self.now(), self.engine.provider.day_ends(self.now()));
        self.engine.saw_violation();
        if self.was_looked(&error.text, now).await? {
            let until = ends + DAY_MARGIN;
            drop(self.engine.throttle.refused(tokens, &error, until).await);
            self.record(Step::Back).await?;
            return Ok(Came::Pause(Some(until), error.text));
        }
        let hint = error.retry_after.filter(|hint| *hint <= LOOK_AFTER_MAX).unwrap_or_default();
        let until = now + hint.max(LOOK_AFTER_MIN);
        drop(self.engine.throttle.refused(tokens, &error, until).await);
        self.again_later(error.text, until, Used::default()).await
    }

    /// Whether a chunk of the job was refused for the same reason on the same day, and its second look is due by now.
    async fn was_looked(&self, reason: &str, now: Timestamp) -> Result<bool, Error> {
        let (provider, reason) = (&self.engine.provider, letters(reason));
        let is_look = |chunk: &ChunkRecord| {
            let is_same = chunk.reason.as_deref().is_some_and(|it| letters(it) == reason);
            is_same
                && chunk.due.is_some_and(|due| {
                    due <= now
                        && now.since(due) < LOOK_KEPT
                        && provider.day_ends(due) == provider.day_ends(now)
                })
        };
        Ok(self.engine.store.chunks(&self.claim.job).await?.iter().any(is_look))
    }
}
