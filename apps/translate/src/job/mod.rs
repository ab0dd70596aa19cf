//! Jobs and the stores of their state.
//!
//! A job is a document cut into chunks; a chunk is a range of segments. Each change is stored before anything depends on it, so a
//! process that is killed at any moment leaves a job that another can finish: a finished chunk is never paid again, and an
//! unfinished one is attempted again.
//!
//! ```text
//! chunk: pending → reserved → sent → done            job: planned → running → completed
//!                    ↑          ├→ again (at a time)                  ↕          completed-with-errors
//!                    └──────────┤→ split (parts take over)         paused      cancelled
//!                               └→ failed (why)
//! ```

mod chunk;
mod draft;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
mod embedded;
mod outage;
mod postgres;
mod sql;
mod state;
mod store;

use tollgate::Timestamp;

use crate::error::{Error, Result};

pub use chunk::{
    CallUsage, ChunkPart, ChunkRecord, ChunkUpdate, Claim, ClaimOutcome, Counts, SegmentRange,
};
pub use draft::{Draft, Drafts, Texts, parse_texts};
#[cfg(feature = "dynamodb")]
pub use dynamodb::DynamoDbJobs;
pub use embedded::EmbeddedJobs;
pub use outage::{Outage, OutageMonitor};
pub use postgres::PostgresJobs;
pub use state::{ChunkState, JobState};
pub use store::{JobGuard, JobStore};

/// How long a claim of a shared store lives without being renewed.
pub const LEASE_DEFAULT: tollgate::Span = tollgate::Span::from_secs(60);

/// A job to store.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// Identifies it in the store: 1 to 64 letters, digits, `-`, `_` and `.`.
    pub id: String,
    /// A name for people, such as that of the file.
    pub name: String,
    /// The document as it was read.
    pub document: Vec<u8>,
    /// Everything else that a worker needs, as JSON.
    pub settings: String,
    /// The chunks, in order, without a gap.
    pub chunks: Vec<SegmentRange>,
}

/// A stored job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Identifies it in the store.
    pub id: String,
    /// A name for people.
    pub name: String,
    /// Its state.
    pub state: JobState,
    /// Everything else that a worker needs, as JSON.
    pub settings: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// When work began.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
}

/// The longest id of a job.
pub const JOB_ID_BYTES_MAX: usize = 64;

impl NewJob {
    /// Validates the job.
    ///
    /// # Errors
    /// If the id is invalid, or the chunks leave a gap.
    pub fn check(&self) -> Result<()> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let id = &self.id;
        let is_valid = (1..=JOB_ID_BYTES_MAX).contains(&id.len())
            && id.chars().all(is_part)
            && !id.starts_with('.');
        if !is_valid {
            return Err(Error::invalid(format!(
                "{id:?} is not a valid id of a job; use 1 to {JOB_ID_BYTES_MAX} letters, digits, - and _"
            )));
        }
        let mut next = 0;
        for segments in &self.chunks {
            if segments.first != next || segments.is_empty() {
                return Err(Error::invalid(format!(
                    "chunk {segments} does not follow segment {next}"
                )));
            }
            next = segments.end;
        }
        Ok(())
    }
}

/// The error for an unknown job.
#[must_use]
pub fn no_such_job(id: &str) -> Error {
    Error::invalid(format!("there is no job {id:?}"))
}
