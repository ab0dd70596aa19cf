//! Whether an answer is a translation of its chunk: the checks, cheap ones first.
//!
//! Nothing here judges quality. Each check finds one way in which answers of models go wrong: segments that are merged,
//! dropped or doubled, markup that is lost, text that is cut short or left as it was. A [`Fault`] says which, and where; the
//! ladder ([`next_step`]) says what to do about it.

mod fault;
mod ladder;
mod text;

pub use fault::{Fault, MarkerFault};
pub use ladder::{ATTEMPTS_SAME, ATTEMPTS_SINGLE, Step, next_step};
pub use text::detect;

use crate::chunk::Chunk;
use crate::document::{Document, Segment};
use crate::language::Language;
use crate::marker::{self, Part};
use crate::prompt::Task;

/// An answer whose segments are all there and whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The translations, in the order of the chunk's segments.
    pub texts: Vec<String>,
    /// What looks wrong and may be right. Worth another try; after that, worth a warning.
    pub doubts: Vec<Fault>,
}

/// Reads the answer for `chunk` and checks it.
///
/// # Errors
/// The first [`Fault`] that is found; segments are numbered in it as in the chunk, from 1.
pub fn verify(
    task: &Task,
    document: &Document,
    chunk: &Chunk,
    answer: &str,
) -> Result<Verified, Fault> {
    let texts = read(answer, chunk.len())?;
    let segments = || document.segments_in(chunk.segments.clone());
    for (place, (segment, text)) in segments().zip(&texts).enumerate() {
        check_markers(place + 1, &segment, text)?;
    }
    let sources: Vec<String> = segments().map(|segment| segment.plain()).collect();
    let plain: Vec<String> = texts.iter().map(|text| without_markers(text)).collect();
    check_lengths(task, &sources, &plain)?;
    if !task.from.is_same_as(&task.to) {
        for (place, (source, text)) in sources.iter().zip(&plain).enumerate() {
            if text::is_untranslated(source, text) {
                return Err(Fault::Untranslated { segment: place + 1 });
            }
        }
        check_language(task, &plain)?;
    }
    let pairs = sources.iter().zip(&plain).enumerate();
    let doubts = pairs.filter_map(|(place, (source, text))| {
        let number = text::missing_number(source, text)?;
        Some(Fault::Number { segment: place + 1, number })
    });
    Ok(Verified { doubts: doubts.collect(), texts })
}

/// The segments of an answer for `count` segments: each once, in order, none empty, none of several paragraphs.
///
/// # Errors
/// The first of these that does not hold.
pub fn read(answer: &str, count: usize) -> Result<Vec<String>, Fault> {
    let answer = answer.trim().trim_end_matches("```");
    let found = marker::numbered(answer);
    if found.is_empty() {
        return Err(Fault::NoSegments);
    }
    let mut seen = vec![false; count];
    for (number, _) in &found {
        match seen.get_mut(number.wrapping_sub(1)) {
            None => return Err(Fault::Unknown { segment: *number }),
            Some(true) => return Err(Fault::Doubled { segment: *number }),
            Some(seen) => *seen = true,
        }
    }
    let missing: Vec<usize> = (1..=count).filter(|number| !seen[number - 1]).collect();
    if !missing.is_empty() {
        return Err(Fault::Missing { segments: missing });
    }
    for (place, (number, text)) in found.iter().enumerate() {
        if *number != place + 1 {
            return Err(Fault::OutOfOrder { segment: *number });
        }
        if text.is_empty() {
            return Err(Fault::Empty { segment: *number });
        }
        let found = paragraphs(text);
        if found != 1 {
            return Err(Fault::Paragraphs { segment: *number, found });
        }
    }
    Ok(found.into_iter().map(|(_, text)| text.to_owned()).collect())
}

fn paragraphs(text: &str) -> usize {
    let mut count = 1;
    let mut empty = false;
    for line in text.lines() {
        match (line.trim().is_empty(), empty) {
            (true, _) => empty = true,
            (false, true) => {
                count += 1;
                empty = false;
            }
            (false, false) => {}
        }
    }
    count
}

/// Every marker once, and pairs around each other as in a well-formed text.
fn check_markers(place: usize, segment: &Segment<'_>, text: &str) -> Result<(), Fault> {
    let markers = segment.markers();
    let fault =
        |marker: usize, what: MarkerFault| Err(Fault::Marker { segment: place, marker, what });
    let mut seen = vec![false; markers.len()];
    let mut open: Vec<usize> = Vec::new();
    for part in marker::parts(text) {
        let number = match part {
            Part::Text(text) if text.contains(['⟦', '⟧']) => {
                return fault(0, MarkerFault::Damaged);
            }
            Part::Text(_) => continue,
            Part::Marker(number) => number,
        };
        match seen.get_mut(number.wrapping_sub(1)) {
            None => return fault(number, MarkerFault::Invented),
            Some(true) => return fault(number, MarkerFault::Doubled),
            Some(seen) => *seen = true,
        }
        if let Some(close) = markers[number - 1].closed_by {
            open.push(close);
        } else if markers.iter().any(|marker| marker.closed_by == Some(number))
            && open.pop() != Some(number)
        {
            return fault(number, MarkerFault::Crossed);
        }
    }
    match seen.iter().position(|seen| !seen) {
        Some(lost) => fault(lost + 1, MarkerFault::Lost),
        None => Ok(()),
    }
}

fn without_markers(text: &str) -> String {
    let texts = marker::parts(text).map(|part| match part {
        Part::Text(text) => text,
        Part::Marker(_) => "",
    });
    texts.collect()
}

/// From how many characters on the length of a segment says something, and how far it may be from what is expected.
const LENGTH_CHARACTERS_MIN: u64 = 60;
const LENGTH_PERCENT: std::ops::RangeInclusive<u64> = 40..=260;

fn check_lengths(task: &Task, sources: &[String], texts: &[String]) -> Result<(), Fault> {
    for (place, (source, text)) in sources.iter().zip(texts).enumerate() {
        let (source, characters) = (text::characters(source), text::characters(text));
        let expected = task.from.characters_in(&task.to, source);
        let plausible = LENGTH_PERCENT.contains(&(characters * 100 / expected.max(1)));
        if LENGTH_CHARACTERS_MIN <= source && !plausible {
            return Err(Fault::Length { segment: place + 1, characters, expected });
        }
    }
    Ok(())
}

/// Long segments one by one, and all of them together.
fn check_language(task: &Task, texts: &[String]) -> Result<(), Fault> {
    let fault = |segment: Option<usize>, found: Language| Fault::Language {
        segment,
        expected: task.to.clone(),
        found,
    };
    for (place, text) in texts.iter().enumerate() {
        if let Some(found) = text::other_language(&task.from, &task.to, text) {
            return Err(fault(Some(place + 1), found));
        }
    }
    match text::other_language(&task.from, &task.to, &texts.join("\n")) {
        Some(found) => Err(fault(None, found)),
        None => Ok(()),
    }
}
