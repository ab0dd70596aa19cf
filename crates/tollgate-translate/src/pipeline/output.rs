//! The translated document, in the order of the source.
//!
//! A chunk that was given up, or is not done yet, leaves its source with a visible mark, never a gap.

use super::Pipeline;
use super::book::Book;
use crate::error::Error;
use crate::job::{ChunkState, JobStore, Run};
use crate::{Filling, Layout};

/// A translated document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The file.
    pub bytes: Vec<u8>,
    /// What was given up, and why.
    pub failures: Vec<Failure>,
    /// Segments that are not translated yet; none once the job is over.
    pub missing: usize,
    /// What looks wrong and may be right, such as a number that is written in words.
    pub warnings: Vec<Failure>,
}

/// A run of segments that something is wrong with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its segments.
    pub run: Run,
    /// The beginning of its source, to find it by.
    pub source: String,
    /// What is wrong.
    pub reason: String,
}

/// How much of the source of a failure is shown.
const SOURCE_CHARS: usize = 60;

impl Pipeline {
    /// The document of a job as far as it is translated.
    ///
    /// # Errors
    /// If there is no such job, or what is kept of it does not fit together.
    pub async fn output(&self, id: &str, layout: Layout) -> Result<Output, Error> {
        Output::of(&*self.0.store, id, layout).await
    }
}

impl Output {
    /// The document of a job in `store` as far as it is translated, which takes neither a provider nor a quota.
    ///
    /// # Errors
    /// If there is no such job, or what is kept of it does not fit together.
    pub async fn of(store: &dyn JobStore, id: &str, layout: Layout) -> Result<Self, Error> {
        let book = Book::of(store, id).await?;
        let document = book.document();
        let mut texts: Vec<Option<String>> = vec![None; document.len()];
        let mut covered = 0;
        let (mut failures, mut warnings, mut missing) = (Vec::new(), Vec::new(), 0);
        for chunk in store.chunks(id).await? {
            let run = chunk.run;
            if run.first != covered || document.len() < run.end as usize {
                return Err(Error::store(format!(
                    "the chunks of the job {id:?} do not fit together at segment {covered}"
                )));
            }
            covered = run.end;
            let failure = |run: Run, reason: Option<String>| {
                let source = document.segment(run.first as usize).plain();
                let source = source.chars().take(SOURCE_CHARS).collect();
                Failure { run, source, reason: reason.unwrap_or_default() }
            };
            match chunk.state {
                ChunkState::Done if chunk.texts.len() == run.len() as usize => {
                    let places = texts.iter_mut().skip(run.first as usize);
                    places.zip(chunk.texts).for_each(|(place, text)| *place = Some(text));
                    // Older programs kept one warning for the whole chunk.
                    warnings.extend(chunk.reason.map(|reason| failure(run, Some(reason))));
                    warnings.extend(chunk.warnings.into_iter().map(|(place, warning)| {
                        let first = run.first + place;
                        failure(Run { first, end: first + 1 }, Some(warning))
                    }));
                }
                ChunkState::Done => {
                    return Err(Error::store(format!(
                        "the translation of segments {run} of the job {id:?} is not whole"
                    )));
                }
                ChunkState::Failed => failures.push(failure(run, chunk.reason)),
                _ => missing += run.len() as usize,
            }
        }
        if covered as usize != document.len() {
            return Err(Error::store(format!(
                "the chunks of the job {id:?} end at segment {covered}"
            )));
        }
        let bytes = document.write_in(book.to(), layout, |segment| match texts.get(segment) {
            Some(Some(text)) => Filling::Text(text),
            _ => Filling::Failed,
        })?;
        Ok(Self { bytes, failures, missing, warnings })
    }
}
