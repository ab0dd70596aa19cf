//! The segments of an answer, by the numbers in front of them.
//!
//! A model that merges two segments or splits one may number the rest anew, so that each text stands under its neighbour's number. Where
//! the numbers leave that possible, nothing of the answer is used.

use super::Fault;
use crate::marker;

/// Why an answer ends where it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The model finished.
    Whole,
    /// The answer was cut off, in the middle of its last segment.
    CutOff,
}

/// The text of each of the `count` segments that were asked for, or what is wrong with it. After a segment that is missing among others,
/// its neighbours are not used either, since one of them may have its text.
///
/// # Errors
/// If nothing of the answer can be used.
pub fn read(
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
    let is_there = numbers_of(&found, count)?;
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

/// Which of the `count` numbers are there. Each must be one that was asked for, once and in order.
fn numbers_of(found: &[(usize, &str)], count: usize) -> Result<Vec<bool>, Fault> {
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
