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
    /// No segment was translated: all of them are the source's words.
    Echoed,
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

impl Fault {
    /// The segment it is about; none if it is about the answer.
    #[must_use]
    pub const fn segment(&self) -> Option<usize> {
        match self {
            Self::Empty { segment }
            | Self::Paragraphs { segment, .. }
            | Self::Marker { segment, .. }
            | Self::Length { segment, .. }
            | Self::Untranslated { segment }
            | Self::Number { segment, .. } => Some(*segment),
            Self::Language { segment, .. } => *segment,
            _ => None,
        }
    }

    /// The fault in words, for a text that names the segment itself.
    #[must_use]
    pub fn without_segment(&self) -> String {
        let what = self.what();
        if self.segment().is_some() { format!("it {what}") } else { what }
    }

    /// What is wrong, as said of the segment, or as a sentence if it is about the answer.
    fn what(&self) -> String {
        match self {
            Self::Truncated => "the answer was cut off at its maximum length".to_owned(),
            Self::Unfinished { reason } => format!("the model did not finish: {reason}"),
            Self::NoSegments => "the answer has no numbered segment".to_owned(),
            Self::Unknown { segment } => format!("segment {segment} was not asked for"),
            Self::Doubled { segment } => format!("segment {segment} is there more than once"),
            Self::Missing { segments } => {
                let numbers: Vec<_> = segments.iter().map(ToString::to_string).collect();
                format!("missing segments: {}", numbers.join(", "))
            }
            Self::OutOfOrder { segment } => format!("segment {segment} is not in its place"),
            Self::Empty { .. } => "is empty".to_owned(),
            Self::Paragraphs { found, .. } => format!("became {found} paragraphs"),
            Self::Marker { marker, what, .. } => match what {
                MarkerFault::Lost => format!("lost the marker ⟦{marker}⟧"),
                MarkerFault::Doubled => format!("has the marker ⟦{marker}⟧ more than once"),
                MarkerFault::Invented => {
                    format!("has the marker ⟦{marker}⟧, which the source does not have")
                }
                MarkerFault::Crossed => {
                    format!("has the marker ⟦{marker}⟧ close what another one opened")
                }
                MarkerFault::Damaged => "has a damaged marker".to_owned(),
            },
            Self::Length { characters, expected, .. } => {
                format!("has {characters} characters where about {expected} are likely")
            }
            Self::Echoed => "the answer repeats the source instead of translating it".to_owned(),
            Self::Untranslated { .. } => "was not translated".to_owned(),
            Self::Language { segment, expected, found } => {
                let whole = if segment.is_none() { "the answer " } else { "" };
                format!("{whole}is in {}, not in {}", found.name(), expected.name())
            }
            Self::Number { number, .. } => format!("lacks the number {number}"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.segment() {
            Some(segment) => write!(f, "segment {segment} {}", self.what()),
            None => f.write_str(&self.what()),
        }
    }
}
