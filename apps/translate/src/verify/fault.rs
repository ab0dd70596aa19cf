//! Faults of answers.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::language::Language;

/// A fault of an answer. Segments are numbered as in the chunk, from 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "fault")]
#[non_exhaustive]
pub enum Fault {
    /// The answer reached its maximum length.
    Truncated,
    /// The model did not finish.
    Unfinished {
        /// The provider's reason.
        reason: String,
    },
    /// The answer has no segment.
    NoSegments,
    /// A segment that was not requested.
    Unknown {
        /// The number.
        segment: usize,
    },
    /// A segment occurs more than once.
    Doubled {
        /// Which one.
        segment: usize,
    },
    /// Segments are missing.
    Missing {
        /// Which ones.
        segments: Vec<usize>,
    },
    /// Segments are out of order.
    OutOfOrder {
        /// The first that is out of order.
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
        /// Their number.
        found: usize,
    },
    /// A marker is wrong.
    Marker {
        /// In which segment.
        segment: usize,
        /// Its number; 0 if that is lost.
        marker: usize,
        /// The fault.
        what: MarkerFault,
    },
    /// A segment is implausibly short or long.
    Length {
        /// Which one.
        segment: usize,
        /// Its length.
        characters: u64,
        /// The expected length, roughly.
        expected: u64,
    },
    /// No segment was translated: all have the words of the source.
    Echoed,
    /// A segment has the words of the source.
    Untranslated {
        /// Which one.
        segment: usize,
    },
    /// The text is in another language.
    Language {
        /// Which segment; `None` for all together.
        segment: Option<usize>,
        /// The requested language.
        expected: Language,
        /// The detected language.
        found: Language,
    },
    /// A number of the source is missing from the translation, possibly written in words.
    Number {
        /// In which segment.
        segment: usize,
        /// The number.
        number: String,
    },
}

/// A fault of a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MarkerFault {
    /// It is missing.
    Lost,
    /// It occurs more than once.
    Doubled,
    /// The source has no such marker.
    Invented,
    /// It does not close the marker that was opened last.
    Crossed,
    /// An incomplete marker.
    Damaged,
}

impl Fault {
    /// Returns the segment of the fault; `None` for the whole answer.
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

    /// Describes the fault without the number of the segment.
    #[must_use]
    pub fn without_segment(&self) -> String {
        let what = self.what();
        if self.segment().is_some() { format!("it {what}") } else { what }
    }

    /// Describes the fault: a predicate of the segment, or a sentence about the answer.
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
