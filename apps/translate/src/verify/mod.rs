//! Checks of answers, cheap ones first.
//!
//! No check judges quality. Each detects one way in which answers of models go wrong: merged, dropped or doubled segments, lost markup,
//! truncated or untranslated text. Each segment is checked on its own, so that a bad one does not cost the good ones; a [`Fault`]
//! describes the problem, and [`next_step`] selects the reaction.

mod fault;
mod ladder;
mod language;
mod markers;
mod parse;
mod text;
mod unchanged;
mod words;

pub use fault::{Fault, MarkerFault};
pub use ladder::{ATTEMPTS_SAME, ATTEMPTS_SINGLE, NextStep, Tried, next_step};
pub use parse::{Ending, parse_answer};
pub use text::detect;

use crate::chunk::Chunk;
use crate::document::{Document, Segment};
use crate::prompt::Task;

/// The result of checking an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Each requested segment, in order. Faults number them from 1.
    pub findings: Vec<Finding>,
    /// A fault of the whole answer, which makes it unusable.
    pub fault: Option<Fault>,
    /// The number of segments that differ from their source and have no fault.
    pub translated: usize,
}

/// The result of checking a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// A translation.
    Good {
        /// Its text.
        text: String,
        /// A minor doubt.
        warning: Option<Fault>,
    },
    /// A doubtful translation: requested once more, then accepted with a warning.
    Doubtful {
        /// Its text.
        text: String,
        /// The doubt.
        fault: Fault,
    },
    /// Not a translation.
    Bad(Fault),
}

impl Checked {
    /// Returns the result for an unusable answer.
    #[must_use]
    pub fn nothing(fault: Fault, segments: usize) -> Self {
        let findings = vec![Finding::Bad(fault.clone()); segments];
        Self { findings, fault: Some(fault), translated: 0 }
    }

    /// Returns all texts, if all are good.
    ///
    /// # Errors
    /// The first fault or doubt.
    pub fn into_texts(self) -> Result<Vec<String>, Fault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let text = |finding| match finding {
            Finding::Good { text, .. } => Ok(text),
            Finding::Doubtful { fault, .. } | Finding::Bad(fault) => Err(fault),
        };
        self.findings.into_iter().map(text).collect()
    }
}

/// Parses and checks the answer for `chunk`.
#[must_use]
pub fn verify(task: &Task, document: &Document, chunk: &Chunk, answer: &str) -> Checked {
    let segments: Vec<_> = document.segments_in(chunk.segments.clone()).collect();
    verify_segments(task, &segments, answer, Ending::Whole)
}

/// Parses and checks the answer for `segments`, numbered from 1.
#[must_use]
pub fn verify_segments(
    task: &Task,
    segments: &[Segment<'_>],
    answer: &str,
    ending: Ending,
) -> Checked {
    match parse_answer(answer, segments.len(), ending) {
        Ok(texts) => assess(task, segments, texts),
        Err(fault) => Checked::nothing(fault, segments.len()),
    }
}

/// Checks the texts of `segments`.
pub(crate) fn assess(
    task: &Task,
    segments: &[Segment<'_>],
    texts: Vec<Result<String, Fault>>,
) -> Checked {
    let mut checked = Checked { findings: Vec::new(), fault: None, translated: 0 };
    let (mut sources, mut translations) = (String::new(), String::new());
    let mut untranslated = 0;
    for (index, (segment, text)) in segments.iter().zip(texts).enumerate() {
        let (source, plain) = (segment.plain(), text.as_ref().map(|text| markers::without(text)));
        let is_changed =
            plain.as_ref().is_ok_and(|plain| !unchanged::has_same_words(&source, plain));
        if let Ok(plain) = plain
            && is_changed
        {
            sources.extend([source.as_str(), "\n"]);
            translations.extend([plain.as_str(), "\n"]);
        }
        let finding = match text {
            Ok(text) => one(task, index + 1, segment, &source, text),
            Err(fault) => Finding::Bad(fault),
        };
        match &finding {
            Finding::Bad(_) => {}
            Finding::Doubtful { fault: Fault::Untranslated { .. }, .. } => untranslated += 1,
            _ => checked.translated += usize::from(is_changed),
        }
        checked.findings.push(finding);
    }
    // In an answer in another language, or without translations, segments that are too short to be checked are bad as well.
    let is_same = task.from.is_same_as(&task.to);
    if !is_same && let Some(found) = language::answer_language(task, &sources, &translations) {
        let fault = Fault::Language { segment: None, expected: task.to.clone(), found };
        return Checked::nothing(fault, segments.len());
    }
    if checked.translated == 0 && 0 < untranslated && 1 < segments.len() {
        checked.fault = Some(Fault::Echoed);
    }
    checked
}

/// Checks the text of one segment, number `index` of the answer.
fn one(task: &Task, index: usize, segment: &Segment<'_>, source: &str, text: String) -> Finding {
    if let Err(fault) = markers::check(index, segment, &text) {
        return Finding::Bad(fault);
    }
    let plain = markers::without(&text);
    let is_same = task.from.is_same_as(&task.to);
    if !is_same && unchanged::has_same_words(source, &plain) {
        return match unchanged::may_stay(task, source) {
            true => Finding::Good { text, warning: None },
            false => Finding::Doubtful { text, fault: Fault::Untranslated { segment: index } },
        };
    }
    if let Some((characters, expected)) = text::wrong_length(task, source, &plain) {
        return Finding::Bad(Fault::Length { segment: index, characters, expected });
    }
    if !is_same && let Some(found) = language::segment_language(task, source, &plain) {
        let expected = task.to.clone();
        return Finding::Bad(Fault::Language { segment: Some(index), expected, found });
    }
    match text::lost_number(source, &plain) {
        None => Finding::Good { text, warning: None },
        Some(text::Lost { number, is_sure }) => {
            let fault = Fault::Number { segment: index, number };
            match is_sure {
                true => Finding::Doubtful { text, fault },
                false => Finding::Good { text, warning: Some(fault) },
            }
        }
    }
}
