//! Jobs, and where their state is kept.
//!
//! A job is a document cut into chunks; a chunk is a run of segments. Each change is written before anybody acts on it, so a
//! process that is killed at any moment leaves a job that another can finish: what is done is never paid again, and
//! what was under way is taken up anew.
//!
//! ```text
//! chunk: pending → reserved → sent → done            job: planned → running → completed
//!                    ↑          ├→ again (at a time)                  ↕          completed-with-errors
//!                    └──────────┤→ split (parts take over)         paused      cancelled
//!                               └→ failed (why)
//! ```

mod chunk;
mod draft;
mod embedded;
mod lock;
mod patience;
mod postgres;
mod sqlite;
mod state;
mod store;

use tollgate::Timestamp;

use crate::error::Error;

pub use chunk::{ChunkRecord, Claim, Counts, Next, Part, Run, Step, Used};
pub use draft::{Draft, Drafts, Texts};
pub use embedded::EmbeddedJobs;
pub use patience::{Away, Patience};
pub use postgres::{LEASE_DEFAULT, PostgresJobs};
pub use state::{ChunkState, JobState};
pub use store::{Hold, JobStore};

/// A job to keep.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// What it is called everywhere: 1 to 64 letters, digits, `-`, `_` and `.`.
    pub id: String,
    /// What people call it, such as the name of the file.
    pub name: String,
    /// The document as it was read.
    pub document: Vec<u8>,
    /// Everything else that a worker must know, as JSON.
    pub settings: String,
    /// The chunks, in order, without a gap.
    pub chunks: Vec<Run>,
}

/// A job as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// What it is called everywhere.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// Where it stands.
    pub state: JobState,
    /// Everything else that a worker must know, as JSON.
    pub settings: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// When work began.
    pub started_at: Option<Timestamp>,
    /// When it was over.
    pub ended_at: Option<Timestamp>,
}

/// The longest id of a job.
pub const JOB_ID_BYTES_MAX: usize = 64;

impl NewJob {
    /// Whether it can be kept.
    ///
    /// # Errors
    /// If the id is wrong, or the chunks are not a run of segments without a gap.
    pub fn check(&self) -> Result<(), Error> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let id = &self.id;
        if id.is_empty()
            || JOB_ID_BYTES_MAX < id.len()
            || !id.chars().all(is_part)
            || id.starts_with('.')
        {
            return Err(Error::invalid(format!(
                "{id:?} is no name for a job; use 1 to {JOB_ID_BYTES_MAX} letters, digits, - and _"
            )));
        }
        let mut next = 0;
        for run in &self.chunks {
            if run.first != next || run.is_empty() {
                return Err(Error::invalid(format!("chunk {run} does not follow segment {next}")));
            }
            next = run.end;
        }
        Ok(())
    }
}
