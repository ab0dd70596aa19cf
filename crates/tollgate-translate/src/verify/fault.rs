//! What can be wrong with an answer.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::language::Language;

/// What is wrong with an answer. Segments are numbered as in the chunk, from 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "fault")]
#[non_exhaustive]
pub enum Fault {
    /// The model wrote until it was cut off.
    Truncated,
    /// The model did not finish, for this reason.
    Unfinished {
        /// In the provider's words.
        reason: String,
    },
    /// There is no segment at all in the answer.
    NoSegments,
    /// A number that was not asked for.
    Unknown {
        /// The number.
        segment: usize,
    },
    /// A segment is there more than once.
    Doubled {
        /// Which one.
        segment: usize,
    },
    /// Segments are not there.
    Missing {
        /// Which ones.
        segments: Vec<usize>,
    },
    /// Segments are in another order.
    OutOfOrder {
        /// The first that is not in its place.
        segment: usize,
    },
    /// A segment has no text.
    Empty {
        /// Which one.
        segment: usize,
    },
    /// A segment became several paragraphs.
    Paragraphs {
        /// Which one.
        segment: usize,
        /// How many it became.
        found: usize,
    },
    /// A marker is wrong.
    Marker {
        /// In which segment.
        segment: usize,
        /// Its number; 0 if it has none any more.
        marker: usize,
        /// In which way.
        what: MarkerFault,
    },
    /// A segment is much shorter or longer than its source makes likely.
    Length {
        /// Which one.
        segment: usize,
        /// Its length.
        characters: u64,
        /// What was expected, roughly.
        expected: u64,
    },
    /// A segment is still in the words of the source.
    Untranslated {
        /// Which one.
        segment: usize,
    },
    /// The text is in another language.
    Language {
        /// Which segment; none if it is all of them together.
        segment: Option<usize>,
        /// The language that was asked for.
        expected: Language,
        /// The language it seems to be.
        found: Language,
    },
    /// A number of the source is not in the translation. It may be written in words there.
    Number {
        /// In which segment.
        segment: usize,
        /// The number.
        number: String,
    },
}

/// What is wrong with a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MarkerFault {
    /// It is not there.
    Lost,
    /// It is there more than once.
    Doubled,
    /// The source has none of this number.
    Invented,
    /// It closes what was not opened last.
    Crossed,
    /// A bracket of a marker without the rest of it.
    Damaged,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("the answer was cut off at its maximum length"),
            Self::Unfinished { reason } => write!(f, "the model did not finish: {reason}"),
            Self::NoSegments => f.write_str("the answer has no numbered segment"),
            Self::Unknown { segment } => write!(f, "segment {segment} was not asked for"),
            Self::Doubled { segment } => write!(f, "segment {segment} is there more than once"),
            Self::Missing { segments } => {
                let numbers: Vec<_> = segments.iter().map(ToString::to_string).collect();
                write!(f, "missing segments: {}", numbers.join(", "))
            }
            Self::OutOfOrder { segment } => write!(f, "segment {segment} is not in its place"),
            Self::Empty { segment } => write!(f, "segment {segment} is empty"),
            Self::Paragraphs { segment, found } => {
                write!(f, "segment {segment} became {found} paragraphs")
            }
            Self::Marker { segment, marker, what } => {
                let what = match what {
                    MarkerFault::Lost => "is lost",
                    MarkerFault::Doubled => "is there more than once",
                    MarkerFault::Invented => "was not in the source",
                    MarkerFault::Crossed => "closes what another one opened",
                    MarkerFault::Damaged => {
                        return write!(f, "segment {segment}: a marker is damaged");
                    }
                };
                write!(f, "segment {segment}: the marker ⟦{marker}⟧ {what}")
            }
            Self::Length { segment, characters, expected } => {
                write!(
                    f,
                    "segment {segment} has {characters} characters where about {expected} are likely"
                )
            }
            Self::Untranslated { segment } => write!(f, "segment {segment} was not translated"),
            Self::Language { segment, expected, found } => {
                let subject =
                    segment.map_or("the answer".to_owned(), |number| format!("segment {number}"));
                write!(f, "{subject} is in {}, not in {}", found.name(), expected.name())
            }
            Self::Number { segment, number } => {
                write!(f, "segment {segment}: the number {number} is not in the translation")
            }
        }
    }
}
