//! The translated document, in the order of the source.
//!
//! A chunk without a translation leaves its source with a visible mark, never a gap.

use super::Pipeline;
use super::prepared::PreparedDocument;
use crate::error::{Error, Result};
use crate::job::{ChunkState, JobStore, SegmentRange};
use crate::{Filling, Layout};

/// A translated document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The file.
    pub bytes: Vec<u8>,
    /// The chunks that failed.
    pub failures: Vec<Failure>,
    /// The number of segments that are not translated yet.
    pub missing: usize,
    /// Doubts, such as a number that may be written in words.
    pub warnings: Vec<Failure>,
}

/// A failure of, or a doubt about, a range of segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its segments.
    pub run: SegmentRange,
    /// The beginning of its source.
    pub source: String,
    /// The reason.
    pub reason: String,
}

/// How many characters of the source a failure contains.
const SOURCE_CHARS: usize = 60;

impl Pipeline {
    /// Assembles the document of a job as far as it is translated.
    ///
    /// # Errors
    /// If there is no such job, or its chunks are inconsistent.
    pub async fn output(&self, id: &str, layout: Layout) -> Result<Output> {
        Output::assemble(&*self.0.store, id, layout).await
    }
}

impl Output {
    /// Assembles the document of a job in `store` as far as it is translated, without a provider or a quota.
    ///
    /// # Errors
    /// If there is no such job, or its chunks are inconsistent.
    pub async fn assemble(store: &dyn JobStore, id: &str, layout: Layout) -> Result<Self> {
        let prepared = PreparedDocument::load(store, id).await?;
        let document = &prepared.document;
        let mut texts: Vec<Option<String>> = vec![None; document.len()];
        let mut covered = 0;
        let (mut failures, mut warnings, mut missing) = (Vec::new(), Vec::new(), 0);
        for chunk in store.chunks(id).await? {
            let run = chunk.run;
            if run.first != covered || document.len() < run.end as usize {
                return Err(Error::store(format!(
                    "the chunks of the job {id:?} leave a gap at segment {covered}"
                )));
            }
            covered = run.end;
            let failure = |run: SegmentRange, reason: Option<String>| {
                let source = document.segment(run.first as usize).plain();
                let source = source.chars().take(SOURCE_CHARS).collect();
                Failure { run, source, reason: reason.unwrap_or_default() }
            };
            match chunk.state {
                ChunkState::Done if chunk.texts.len() == run.len() as usize => {
                    let indices = texts.iter_mut().skip(run.first as usize);
                    indices.zip(chunk.texts).for_each(|(index, text)| *index = Some(text));
                    // Older versions stored one warning for the whole chunk.
                    warnings.extend(chunk.reason.map(|reason| failure(run, Some(reason))));
                    warnings.extend(chunk.warnings.into_iter().map(|(index, warning)| {
                        let first = run.first + index;
                        failure(SegmentRange { first, end: first + 1 }, Some(warning))
                    }));
                }
                ChunkState::Done => {
                    return Err(Error::store(format!(
                        "the translation of segments {run} of the job {id:?} is incomplete"
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
        let bytes = document.write_in(&prepared.settings.to, layout, |segment| {
            match texts.get(segment) {
                Some(Some(text)) => Filling::Text(text),
                _ => Filling::Failed,
            }
        })?;
        Ok(Self { bytes, failures, missing, warnings })
    }
}
