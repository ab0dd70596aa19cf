//! Parsing of answers into numbered segments.
//!
//! A model that merges or splits segments may renumber the rest, so that each text has its neighbour's number. Answers whose numbers
//! leave that possible are rejected.

use super::Fault;
use crate::marker;

/// Why an answer ends where it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The model finished.
    Whole,
    /// The answer was cut off in its last segment.
    CutOff,
}

/// Returns the text or the fault of each of the `count` requested segments. The neighbours of a missing segment are faulty as well,
/// since one of them may have its text.
///
/// # Errors
/// If the whole answer is unusable.
pub fn parse_answer(
    answer: &str,
    count: usize,
    ending: Ending,
) -> Result<Vec<Result<String, Fault>>, Fault> {
    let answer = answer.trim().trim_end_matches("```");
    let mut found = marker::numbered(answer);
    if ending == Ending::CutOff {
        found.pop();
    }
    let Some(last) = found.last().map(|(number, _)| *number) else {
        return Err(match ending {
            Ending::Whole => Fault::NoSegments,
            Ending::CutOff => Fault::Truncated,
        });
    };
    let is_there = check_numbers(&found, count)?;
    let missing: Vec<usize> = (1..=count).filter(|number| !is_there[number - 1]).collect();
    if last < count && ending == Ending::Whole {
        return Err(Fault::Missing { segments: missing });
    }
    let is_gap = |number: usize| (1..last).contains(&number) && !is_there[number - 1];
    let mut texts = found.into_iter().map(|(number, text)| match paragraphs(text) {
        _ if text.is_empty() => Err(Fault::Empty { segment: number }),
        1 => Ok(text.to_owned()),
        found => Err(Fault::Paragraphs { segment: number, found }),
    });
    let text = |number: usize| {
        let text = if is_there[number - 1] { texts.next() } else { None };
        match text {
            _ if last < number => Err(Fault::Truncated),
            Some(text) if !is_gap(number - 1) && !is_gap(number + 1) => text,
            _ => Err(Fault::Missing { segments: missing.clone() }),
        }
    };
    Ok((1..=count).map(text).collect())
}

/// Returns which of the `count` numbers occur. Each must be a requested one, once and in order.
fn check_numbers(found: &[(usize, &str)], count: usize) -> Result<Vec<bool>, Fault> {
    let mut is_there = vec![false; count];
    for (number, _) in found {
        match is_there.get_mut(number.wrapping_sub(1)) {
            None => return Err(Fault::Unknown { segment: *number }),
            Some(true) => return Err(Fault::Doubled { segment: *number }),
            Some(there) => *there = true,
        }
    }
    match found.windows(2).find(|pair| pair[1].0 < pair[0].0) {
        Some(pair) => Err(Fault::OutOfOrder { segment: pair[0].0 }),
        None => Ok(is_there),
    }
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
