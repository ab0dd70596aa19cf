//! Jobs, and where their state is kept.
//!
//! A job is a document cut into chunks; a chunk is a run of segments. Each change is written before anybody acts on it, so a
//! process that is killed at any moment leaves a job that another can finish: what is done is never paid again, and
//! what was under way is taken up anew.
//!
//! ```text
//! chunk: pending → reserved → sent → done            job: planned → running → completed
//!                    ↑          ├→ again (at a time)                  ↕          completed-with-errors
//!                    └──────────┤→ split (children take over)      paused      cancelled
//!                               └→ failed (why)
//! ```

mod embedded;
mod postgres;
mod sqlite;

use std::fmt::{self, Debug};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tollgate::{BoxFuture, Span, Timestamp};

use crate::error::Error;

pub use embedded::EmbeddedJobs;
pub use postgres::{LEASE_DEFAULT, PostgresJobs};

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

    fn read(word: &str, resume_at: Option<u64>, why: Option<String>) -> Result<Self, Error> {
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

/// A run of segments: from `first` up to and without `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Run {
    /// The first segment.
    pub first: u32,
    /// The segment after the last.
    pub end: u32,
}

impl Run {
    /// How many segments it has.
    #[must_use]
    pub const fn len(self) -> u32 {
        self.end - self.first
    }

    /// Whether it has none, which no chunk is.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.end <= self.first
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.first, self.end)
    }
}

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

/// How far a job is. Chunks that were split are not counted; their children are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Chunks that wait, also those that are tried again later.
    pub waiting: u64,
    /// Chunks that a worker has.
    pub working: u64,
    /// Chunks that are translated.
    pub done: u64,
    /// Chunks that were given up.
    pub failed: u64,
    /// Calls that were made.
    pub calls: u64,
    /// Input tokens that the provider counted.
    pub input_tokens: u64,
    /// Output tokens that the provider counted.
    pub output_tokens: u64,
    /// What it cost, and what is under way may cost, in millionths.
    pub cost: u64,
}

impl Counts {
    /// All chunks.
    #[must_use]
    pub const fn all(&self) -> u64 {
        self.waiting + self.working + self.done + self.failed
    }

    /// Adds `number` chunks that are in `state`.
    const fn add(&mut self, state: ChunkState, number: u64) {
        match state {
            ChunkState::Pending | ChunkState::Again => self.waiting += number,
            ChunkState::Reserved | ChunkState::Sent => self.working += number,
            ChunkState::Done => self.done += number,
            ChunkState::Failed => self.failed += number,
            ChunkState::Split => {}
        }
    }
}

/// A chunk as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkRecord {
    /// Its segments.
    pub run: Run,
    /// Where it stands.
    pub state: ChunkState,
    /// The translation of each segment, if it is done.
    pub texts: Vec<String>,
    /// What went wrong last; of one that is done, what looks wrong and may be right.
    pub reason: Option<String>,
    /// How often it was sent.
    pub calls: u32,
}

/// A chunk that a worker has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Its job.
    pub job: String,
    /// Its segments.
    pub run: Run,
    /// How often it was sent before.
    pub calls: u32,
    /// How often its answer was bad.
    pub faults: u32,
    /// How often the call failed for a passing reason, in a row.
    pub passing: u32,
    /// Grows with each claim, so that a worker that was thought dead cannot undo what its successor did.
    pub fence: u64,
    /// What the job has cost so far, and what is under way may cost, in millionths.
    pub spent: u64,
}

/// What comes next in a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// This chunk, which is reserved now.
    Chunk(Claim),
    /// Nothing before this time.
    Later(Timestamp),
    /// Nothing any more: every chunk is done or was given up.
    Nothing,
    /// Nothing, because the job is paused, is over or was never made.
    Halted(JobState),
}

/// What a call used, added to what the chunk used before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Input tokens.
    pub input: u64,
    /// Output tokens.
    pub output: u64,
    /// What they cost, in millionths. Takes the place of what was expected.
    pub cost: u64,
}

/// A change of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It waits for a permit, and may cost so much, in millionths.
    Expect {
        /// What it may cost.
        cost: u64,
    },
    /// It goes to the provider now, and may cost so much, in millionths.
    Sent {
        /// What it may cost.
        cost: u64,
    },
    /// Nothing came of it: it waits as before. What it may have cost is given back.
    Back,
    /// It is translated.
    Done {
        /// The translation of each segment.
        texts: Vec<String>,
        /// What looks wrong and may be right.
        warning: Option<String>,
        /// What the call used.
        used: Used,
    },
    /// It is tried again at a time.
    Again {
        /// When.
        at: Timestamp,
        /// Why.
        reason: String,
        /// What the call used.
        used: Used,
        /// Whether the answer was bad; otherwise the call failed for a passing reason.
        is_fault: bool,
    },
    /// Two chunks take its place.
    Split {
        /// The first segment of the second.
        at: u32,
        /// Why.
        reason: String,
        /// What the call used.
        used: Used,
    },
    /// It is given up.
    Failed {
        /// Why.
        reason: String,
        /// What the call used.
        used: Used,
    },
}

/// The hold of one process on a job; dropping it lets go.
pub trait Hold: Debug + Send + Sync {}

/// Keeps jobs. Each change is kept when its future resolves.
pub trait JobStore: Debug + Send + Sync + 'static {
    /// Keeps a new job. Says whether it is new; one of the same id is left as it is.
    fn create<'a>(&'a self, job: &'a NewJob, now: Timestamp) -> BoxFuture<'a, Result<bool, Error>>;

    /// A job.
    fn job<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Job>, Error>>;

    /// All jobs, newest first.
    fn jobs(&self) -> BoxFuture<'_, Result<Vec<Job>, Error>>;

    /// The document of a job.
    fn document<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, Error>>;

    /// Sets the state of a job, unless it is cancelled. Says whether it changed.
    fn set_state<'a>(
        &'a self,
        id: &'a str,
        state: &'a JobState,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>>;

    /// Changes the settings of a job.
    fn set_settings<'a>(
        &'a self,
        id: &'a str,
        settings: &'a str,
    ) -> BoxFuture<'a, Result<(), Error>>;

    /// Begins to work on a job. A store on one machine lets one process do so at a time, and takes back what a killed one
    /// had; a shared store lets any number, and their claims end by themselves.
    fn enter<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Box<dyn Hold>, Error>>;

    /// How long a claim lives without being renewed; nothing if it lives as long as its process.
    fn lease(&self) -> Option<Span>;

    /// Takes the next chunk of a job.
    fn claim<'a>(
        &'a self,
        id: &'a str,
        worker: &'a str,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<Next, Error>>;

    /// Keeps the claims of `worker` alive.
    fn renew<'a>(
        &'a self,
        id: &'a str,
        worker: &'a str,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<(), Error>>;

    /// Changes a chunk. Says whether it changed: not if another worker has it by now, or it is over. A translation is
    /// taken from anybody who still has one to give.
    fn record<'a>(&'a self, claim: &'a Claim, step: &'a Step)
    -> BoxFuture<'a, Result<bool, Error>>;

    /// How far a job is.
    fn counts<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Counts, Error>>;

    /// The chunks of a job, in order, without those that were split.
    fn chunks<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Vec<ChunkRecord>, Error>>;

    /// Makes what was given up wait again, and the job run. Says how many chunks that were.
    fn retry_failed<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<u64, Error>>;

    /// What was answered to the request with this hash.
    fn recall<'a>(
        &'a self,
        hash: &'a [u8; 32],
    ) -> BoxFuture<'a, Result<Option<Vec<String>>, Error>>;

    /// Keeps what was answered to the request with this hash.
    fn remember<'a>(
        &'a self,
        hash: &'a [u8; 32],
        texts: &'a [String],
        now: Timestamp,
    ) -> BoxFuture<'a, Result<(), Error>>;
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
