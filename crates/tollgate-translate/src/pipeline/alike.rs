//! Answers that fail alike: what is wrong with all of them is not the text, so the job is paused before it pays for more.

use crate::error::Error;
use crate::job::{ChunkState, JobStore};

/// So many answers in a row that fail alike pause the job.
pub(super) const ALIKE_MAX: usize = 5;

/// An answer of which nothing could be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Useless {
    /// Why.
    pub(super) reason: String,
    /// What it says about the next one.
    pub(super) blame: Blame,
    /// Whether it was for a part of a chunk that was split to find out what is wrong with it.
    pub(super) is_part: bool,
}

/// What a useless answer says about the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blame {
    /// The provider refused the request.
    Request,
    /// The model does not translate, or not into the right language.
    Model,
    /// A smaller chunk may fare better.
    Size,
}

/// Useless answers in a row.
#[derive(Debug, Default)]
pub(super) struct Streak {
    last: Option<Useless>,
    count: usize,
    /// Whether more of the last kind pause the job.
    counts: bool,
    /// Whether a useful answer came in this run.
    is_useful: bool,
}

impl Streak {
    /// Something was translated.
    pub(super) fn end(&mut self) {
        (self.last, self.count, self.is_useful) = (None, 0, true);
    }

    /// Whether a few more useless answers pause the job, so that no more calls than needed to find out should be made.
    pub(super) const fn is_on(&self) -> bool {
        0 < self.count && self.counts
    }

    /// Counts a useless answer to a job of `chunks` chunks. Returns why the job is to be paused, if it is. Where the model translated something in
    /// this run, an answer that is no translation is about its text.
    pub(super) fn add(&mut self, useless: Useless, chunks: usize) -> Option<String> {
        let is_alike = self.last.as_ref().is_some_and(|last| are_alike(last, &useless));
        self.count = if is_alike { self.count + 1 } else { 1 };
        let most = most(useless.blame, chunks);
        let is_refused = useless.blame == Blame::Request && !useless.is_part;
        self.counts = is_refused || !self.is_useful;
        let why = (self.counts && most <= self.count).then(|| why(self.count, &useless));
        self.last = Some(useless);
        why
    }
}

/// The same for a process that saw one answer only, by what the chunks of the job say.
pub(super) async fn pauses(
    store: &dyn JobStore,
    job: &str,
    useless: &Useless,
    chunks: usize,
) -> Result<Option<String>, Error> {
    let all = store.chunks(job).await?;
    let is_waiting = |state| matches!(state, ChunkState::Again | ChunkState::Failed);
    let is_alike = |reason: &str| letters(reason) == letters(&useless.reason);
    let alike = all
        .iter()
        .filter(|chunk| is_waiting(chunk.state) && chunk.reason.as_deref().is_some_and(is_alike));
    let alike: usize = alike.map(|chunk| chunk.calls as usize).sum();
    let is_useful = all.iter().any(|chunk| chunk.state == ChunkState::Done);
    let pauses = !is_useful && most(useless.blame, chunks) <= alike;
    Ok(pauses.then(|| why(alike, useless)))
}

/// A short document has not so many chunks, and each is asked for twice.
fn most(blame: Blame, chunks: usize) -> usize {
    match blame {
        Blame::Request | Blame::Model => ALIKE_MAX.min(2 * chunks),
        Blame::Size => ALIKE_MAX,
    }
}

fn are_alike(one: &Useless, other: &Useless) -> bool {
    one.blame == other.blame && letters(&one.reason) == letters(&other.reason)
}

/// What a reason says besides numbers, in which reasons differ though they are the same.
pub(super) fn letters(reason: &str) -> String {
    reason.chars().filter(|c| c.is_alphabetic()).collect()
}

fn why(count: usize, useless: &Useless) -> String {
    let reason = useless.reason.trim_end_matches('.');
    match useless.blame {
        Blame::Request => format!("the provider refused {count} requests in a row: {reason}"),
        Blame::Model => format!(
            "{count} answers in a row were useless: {reason}; check the languages and the model before you resume"
        ),
        Blame::Size => format!(
            "{count} answers in a row were useless: {reason}; resume with another model, or make a job of smaller chunks"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn useless(reason: &str, blame: Blame) -> Useless {
        Useless { reason: reason.to_owned(), blame, is_part: false }
    }

    #[test]
    fn a_few_that_fail_alike_pause_the_job_and_a_useful_one_begins_anew() {
        let mut streak = Streak::default();
        let refused =
            |number: usize| useless(&format!("{number} tokens are too many."), Blame::Request);
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
        let mut streak = Streak::default();
        for number in 0..20 {
            let reason = if number % 2 == 0 { "no segments" } else { "an echo" };
            assert_eq!(streak.add(useless(reason, Blame::Size), 60), None);
        }
        streak.end();
        for _ in 0..20 {
            assert_eq!(streak.add(useless("an echo", Blame::Model), 60), None);
        }
    }

    #[test]
    fn parts_that_are_refused_after_a_translation_are_about_their_text() {
        let mut streak = Streak::default();
        streak.end();
        for _ in 0..20 {
            let part = Useless { is_part: true, ..useless("an invalid argument", Blame::Request) };
            assert_eq!(streak.add(part, 60), None);
        }
    }

    #[test]
    fn a_document_of_one_chunk_is_asked_for_twice() {
        let mut streak = Streak::default();
        assert_eq!(streak.add(useless("an echo", Blame::Model), 1), None);
        assert!(streak.add(useless("an echo", Blame::Model), 1).unwrap().starts_with("2 answers"));
    }
}
