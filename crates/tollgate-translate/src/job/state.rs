//! Where jobs and chunks stand, and the words for it in a store.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tollgate::Timestamp;

use crate::error::Error;

/// Where a job stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobState {
    /// Nobody has begun.
    Planned,
    /// Somebody works on it, or will.
    Running,
    /// Nothing goes on until a time, or until somebody resumes it.
    Paused {
        /// When it goes on by itself; nothing if somebody must act first.
        resume_at: Option<Timestamp>,
        /// Why, and what would help.
        why: String,
    },
    /// Every chunk is translated.
    Completed,
    /// Every chunk is translated or was given up.
    CompletedWithErrors,
    /// Somebody does not want it any more.
    Cancelled,
}

impl JobState {
    /// The word for it.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Planned => "planned",
            Self::Running => "running",
            Self::Paused { .. } => "paused",
            Self::Completed => "completed",
            Self::CompletedWithErrors => "completed_with_errors",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether nothing more will happen by itself.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self, Self::Completed | Self::CompletedWithErrors | Self::Cancelled)
    }

    /// The state that a store keeps as `word`, with the time and the reason of a pause.
    ///
    /// # Errors
    /// If `word` is not one of [`word`](Self::word).
    pub fn read(word: &str, resume_at: Option<u64>, why: Option<String>) -> Result<Self, Error> {
        Ok(match word {
            "planned" => Self::Planned,
            "running" => Self::Running,
            "paused" => Self::Paused {
                resume_at: resume_at.map(Timestamp::from_micros),
                why: why.unwrap_or_default(),
            },
            "completed" => Self::Completed,
            "completed_with_errors" => Self::CompletedWithErrors,
            "cancelled" => Self::Cancelled,
            other => return Err(Error::store(format!("{other:?} is no state of a job"))),
        })
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Where a chunk stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChunkState {
    /// Nobody has it.
    Pending,
    /// A worker has it and waits for a permit.
    Reserved,
    /// It is at the provider, and may be paid.
    Sent,
    /// It is to be tried again at a time.
    Again,
    /// Two chunks have taken its place.
    Split,
    /// It is translated.
    Done,
    /// It was given up.
    Failed,
}

impl ChunkState {
    const ALL: [(Self, &'static str); 7] = [
        (Self::Pending, "pending"),
        (Self::Reserved, "reserved"),
        (Self::Sent, "sent"),
        (Self::Again, "again"),
        (Self::Split, "split"),
        (Self::Done, "done"),
        (Self::Failed, "failed"),
    ];

    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        Self::ALL.iter().find(|(state, _)| *state == self).map_or("", |(_, word)| word)
    }
}

impl FromStr for ChunkState {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = Self::ALL.iter().find(|(_, word)| *word == text);
        found
            .map(|(state, _)| *state)
            .ok_or_else(|| Error::store(format!("{text:?} is no state of a chunk")))
    }
}
