//! Streaks of useless answers: if answers fail alike, the text is not the cause, so the job is paused before it pays for more.

use crate::error::Result;
use crate::job::{ChunkState, JobStore};

/// How many consecutive answers that fail alike pause the job.
pub(super) const ALIKE_MAX: usize = 5;

/// An answer without any usable segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UselessAnswer {
    /// Why.
    pub(super) reason: String,
    pub(super) cause: Cause,
    /// Whether the request was for a part of a chunk that was split to find the faulty segment.
    pub(super) is_part: bool,
}

/// The presumed cause of a useless answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The provider refused the request.
    Request,
    /// The model does not translate, or not into the right language.
    Model,
    /// The chunk is too large.
    Size,
}

/// Consecutive useless answers.
#[derive(Debug, Default)]
pub(super) struct FailureStreak {
    last: Option<UselessAnswer>,
    count: usize,
    /// Whether more of the last kind pause the job.
    counts: bool,
    /// Whether this run had a useful answer.
    is_useful: bool,
}

impl FailureStreak {
    /// Records a useful answer.
    pub(super) fn end(&mut self) {
        (self.last, self.count, self.is_useful) = (None, 0, true);
    }

    /// Returns whether a few more useless answers pause the job, so that calls should be made one by one.
    pub(super) const fn is_on(&self) -> bool {
        0 < self.count && self.counts
    }

    /// Counts a useless answer of a job of `chunks` chunks. Returns the reason to pause the job, if there is one. If the model translated
    /// something in this run, the text is the cause of an answer without a translation.
    pub(super) fn add(&mut self, useless: UselessAnswer, chunks: usize) -> Option<String> {
        let is_alike = self.last.as_ref().is_some_and(|last| are_alike(last, &useless));
        self.count = if is_alike { self.count + 1 } else { 1 };
        let most = most(useless.cause, chunks);
        let is_refused = useless.cause == Cause::Request && !useless.is_part;
        self.counts = is_refused || !self.is_useful;
        let why = (self.counts && most <= self.count).then(|| why(self.count, &useless));
        self.last = Some(useless);
        why
    }
}

/// Like [`FailureStreak::add`] for a process that sees a single answer: counts by the stored chunks of the job.
pub(super) async fn pauses(
    store: &dyn JobStore,
    job: &str,
    useless: &UselessAnswer,
    chunks: usize,
) -> Result<Option<String>> {
    let all = store.chunks(job).await?;
    let is_waiting = |state| matches!(state, ChunkState::Again | ChunkState::Failed);
    let is_alike = |reason: &str| letters(reason) == letters(&useless.reason);
    let alike = all
        .iter()
        .filter(|chunk| is_waiting(chunk.state) && chunk.reason.as_deref().is_some_and(is_alike));
    let alike: usize = alike.map(|chunk| chunk.calls as usize).sum();
    let is_useful = all.iter().any(|chunk| chunk.state == ChunkState::Done);
    let pauses = !is_useful && most(useless.cause, chunks) <= alike;
    Ok(pauses.then(|| why(alike, useless)))
}

/// A short document has fewer chunks, and each is requested twice.
fn most(cause: Cause, chunks: usize) -> usize {
    match cause {
        Cause::Request | Cause::Model => ALIKE_MAX.min(2 * chunks),
        Cause::Size => ALIKE_MAX,
    }
}

fn are_alike(one: &UselessAnswer, other: &UselessAnswer) -> bool {
    one.cause == other.cause && letters(&one.reason) == letters(&other.reason)
}

/// Returns the letters of a reason, since equal reasons may differ in numbers.
pub(super) fn letters(reason: &str) -> String {
    reason.chars().filter(|c| c.is_alphabetic()).collect()
}

fn why(count: usize, useless: &UselessAnswer) -> String {
    let reason = useless.reason.trim_end_matches('.');
    match useless.cause {
        Cause::Request => format!("the provider refused {count} requests in a row: {reason}"),
        Cause::Model => format!(
            "{count} answers in a row were useless: {reason}; check the languages and the model before you resume"
        ),
        Cause::Size => format!(
            "{count} answers in a row were useless: {reason}; resume with another model, or make a job of smaller chunks"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn useless(reason: &str, cause: Cause) -> UselessAnswer {
        UselessAnswer { reason: reason.to_owned(), cause, is_part: false }
    }

    #[test]
    fn a_few_that_fail_alike_pause_the_job_and_a_useful_one_begins_anew() {
        let mut streak = FailureStreak::default();
        let refused =
            |number: usize| useless(&format!("{number} tokens are too many."), Cause::Request);
        for number in 1..ALIKE_MAX {
            assert_eq!(streak.add(refused(number), 60), None);
        }
        streak.end();
        assert!(!streak.is_on());
        for number in 1..ALIKE_MAX {
            assert_eq!(streak.add(refused(number), 60), None);
        }
        let why = streak.add(refused(9), 60).unwrap();
        assert_eq!(why, "the provider refused 5 requests in a row: 9 tokens are too many");
    }

    #[test]
    fn others_in_between_or_a_translation_before_are_no_pause() {
        let mut streak = FailureStreak::default();
        for number in 0..20 {
            let reason = if number % 2 == 0 { "no segments" } else { "an echo" };
            assert_eq!(streak.add(useless(reason, Cause::Size), 60), None);
        }
        streak.end();
        for _ in 0..20 {
            assert_eq!(streak.add(useless("an echo", Cause::Model), 60), None);
        }
    }

    #[test]
    fn parts_that_are_refused_after_a_translation_are_about_their_text() {
        let mut streak = FailureStreak::default();
        streak.end();
        for _ in 0..20 {
            let part =
                UselessAnswer { is_part: true, ..useless("an invalid argument", Cause::Request) };
            assert_eq!(streak.add(part, 60), None);
        }
    }

    #[test]
    fn a_document_of_one_chunk_is_asked_for_twice() {
        let mut streak = FailureStreak::default();
        assert_eq!(streak.add(useless("an echo", Cause::Model), 1), None);
        assert!(streak.add(useless("an echo", Cause::Model), 1).unwrap().starts_with("2 answers"));
    }
}
