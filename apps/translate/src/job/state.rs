//! The states of jobs and chunks, and their stored names.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tollgate::Timestamp;

use crate::error::Error;

/// The state of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobState {
    /// Not begun.
    Planned,
    /// A worker works on it, or will.
    Running,
    /// Suspended until a time, or until it is resumed.
    Paused {
        /// When it resumes automatically; `None` if an operator must resume it.
        resume_at: Option<Timestamp>,
        /// Why, and what would help.
        why: String,
    },
    /// Every chunk is translated.
    Completed,
    /// Every chunk is translated or failed.
    CompletedWithErrors,
    /// Cancelled by an operator.
    Cancelled,
}

impl JobState {
    /// Returns its stored name.
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

    /// Returns whether the job has ended.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self, Self::Completed | Self::CompletedWithErrors | Self::Cancelled)
    }

    /// Returns when and why a pause ends; nothing for another state.
    #[must_use]
    pub fn pause(&self) -> (Option<Timestamp>, Option<&str>) {
        match self {
            Self::Paused { resume_at, why } => (*resume_at, Some(why)),
            _ => (None, None),
        }
    }

    /// Parses a stored state, with the time and the reason of a pause.
    ///
    /// # Errors
    /// If `word` is not a name of a state.
    pub fn parse(word: &str, resume_at: Option<u64>, why: Option<String>) -> Result<Self, Error> {
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
            other => return Err(Error::store(format!("unknown state of a job: {other:?}"))),
        })
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The state of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChunkState {
    /// Without a worker.
    Pending,
    /// Claimed by a worker that waits for a permit.
    Reserved,
    /// At the provider, and possibly paid.
    Sent,
    /// Due for a retry at a time.
    Again,
    /// Replaced by its parts.
    Split,
    /// Translated.
    Done,
    /// Given up.
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

    /// Returns its stored name.
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
            .ok_or_else(|| Error::store(format!("unknown state of a chunk: {text:?}")))
    }
}
