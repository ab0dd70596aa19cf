//! Whether an answer is a translation of its segments: the checks, cheap ones first.
//!
//! Nothing here judges quality. Each check finds one way in which answers of models go wrong: segments that are merged,
//! dropped or doubled, markup that is lost, text that is cut short or left as it was. Each segment is judged by itself, so that a bad one does
//! not cost the good ones; a [`Fault`] says what is wrong with it, and the ladder ([`next_step`]) what to do about it.

mod fault;
mod ladder;
mod language;
mod markers;
mod read;
mod text;
mod unchanged;
mod words;

pub use fault::{Fault, MarkerFault};
pub use ladder::{ATTEMPTS_SAME, ATTEMPTS_SINGLE, Step, Tried, next_step};
pub use read::{Ending, read};
pub use text::detect;

use crate::chunk::Chunk;
use crate::document::{Document, Segment};
use crate::prompt::Task;

/// What an answer is worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Each segment that was asked for, in order. Faults number them from 1.
    pub findings: Vec<Finding>,
    /// What is wrong with the answer as a whole. Nothing of it should be used then.
    pub fault: Option<Fault>,
    /// How many segments have other words than their source, and no fault.
    pub translated: usize,
}

/// What a segment of an answer is worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// A translation.
    Good {
        /// Its text.
        text: String,
        /// What looks wrong, and is often right.
        warning: Option<Fault>,
    },
    /// It may be right: worth another try, and after that a warning.
    Doubtful {
        /// Its text.
        text: String,
        /// What looks wrong.
        fault: Fault,
    },
    /// No translation.
    Bad(Fault),
}

impl Checked {
    /// Nothing of the answer can be used.
    #[must_use]
    pub fn nothing(fault: Fault, segments: usize) -> Self {
        let findings = vec![Finding::Bad(fault.clone()); segments];
        Self { findings, fault: Some(fault), translated: 0 }
    }

    /// All texts, if each of them is good.
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

/// Reads the answer for `chunk` and checks it.
#[must_use]
pub fn verify(task: &Task, document: &Document, chunk: &Chunk, answer: &str) -> Checked {
    let segments: Vec<_> = document.segments_in(chunk.segments.clone()).collect();
    verify_segments(task, &segments, answer, Ending::Whole)
}

/// Reads the answer for `segments`, numbered from 1 in it, and checks it.
#[must_use]
pub fn verify_segments(
    task: &Task,
    segments: &[Segment<'_>],
    answer: &str,
    ending: Ending,
) -> Checked {
    match read(answer, segments.len(), ending) {
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
    for (place, (segment, text)) in segments.iter().zip(texts).enumerate() {
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
            Ok(text) => one(task, place + 1, segment, &source, text),
            Err(fault) => Finding::Bad(fault),
        };
        match &finding {
            Finding::Bad(_) => {}
            Finding::Doubtful { fault: Fault::Untranslated { .. }, .. } => untranslated += 1,
            _ => checked.translated += usize::from(is_changed),
        }
        checked.findings.push(finding);
    }
    // Of an answer that is in another language, or translates nothing, the segments that are too short to tell are no better.
    let is_same = task.from.is_same_as(&task.to);
    if !is_same && let Some(found) = language::of_all(task, &sources, &translations) {
        let fault = Fault::Language { segment: None, expected: task.to.clone(), found };
        return Checked::nothing(fault, segments.len());
    }
    if checked.translated == 0 && 0 < untranslated && 1 < segments.len() {
        checked.fault = Some(Fault::Echoed);
    }
    checked
}

/// Checks the text of one segment, number `place` of the answer.
fn one(task: &Task, place: usize, segment: &Segment<'_>, source: &str, text: String) -> Finding {
    if let Err(fault) = markers::check(place, segment, &text) {
        return Finding::Bad(fault);
    }
    let plain = markers::without(&text);
    let is_same = task.from.is_same_as(&task.to);
    if !is_same && unchanged::has_same_words(source, &plain) {
        return match unchanged::may_stay(task, source) {
            true => Finding::Good { text, warning: None },
            false => Finding::Doubtful { text, fault: Fault::Untranslated { segment: place } },
        };
    }
    if let Some((characters, expected)) = text::wrong_length(task, source, &plain) {
        return Finding::Bad(Fault::Length { segment: place, characters, expected });
    }
    if !is_same && let Some(found) = language::of_segment(task, source, &plain) {
        let expected = task.to.clone();
        return Finding::Bad(Fault::Language { segment: Some(place), expected, found });
    }
    match text::lost_number(source, &plain) {
        None => Finding::Good { text, warning: None },
        Some(text::Lost { number, is_sure }) => {
            let fault = Fault::Number { segment: place, number };
            match is_sure {
                true => Finding::Doubtful { text, fault },
                false => Finding::Good { text, warning: Some(fault) },
            }
        }
    }
}
