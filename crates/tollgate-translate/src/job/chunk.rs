//! A chunk on its way: its segments, who has it, and the steps that it takes.

use std::fmt;

use serde::{Deserialize, Serialize};
use tollgate::Timestamp;

use super::draft::Drafts;
use super::state::{ChunkState, JobState};

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
    pub const fn add(&mut self, state: ChunkState, number: u64) {
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
    /// What looks wrong in them and may be right, by the place of the segment in the chunk.
    pub warnings: Vec<(u32, String)>,
    /// What went wrong last.
    pub reason: Option<String>,
    /// How often it was sent.
    pub calls: u32,
    /// When it is tried again, if it waits for that.
    pub again_at: Option<Timestamp>,
    /// When it was last to be tried again, if it ever was.
    pub due: Option<Timestamp>,
}

impl ChunkRecord {
    /// When it was last to be tried again, by what a store keeps: 0 for never.
    pub(super) fn due(micros: u64) -> Option<Timestamp> {
        (micros != 0).then(|| Timestamp::from_micros(micros))
    }
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
    /// How often its answer was bad, or a part of it.
    pub faults: u32,
    /// How often the call failed for a passing reason, in a row.
    pub passing: u32,
    /// Grows with each claim, so that a worker that was thought dead cannot undo what its successor did.
    pub fence: u64,
    /// What the job has cost so far, in millionths; calls whose end nobody saw count as paid.
    pub spent: u64,
    /// What calls at the provider may cost besides, in millionths.
    pub under_way: u64,
    /// What earlier answers settled.
    pub drafts: Drafts,
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
    /// It goes to the provider now, and may cost so much, in millionths. Nothing changes if the job has not so much left.
    Sent {
        /// What it may cost.
        cost: u64,
        /// What the whole job may cost: paid, under way and this.
        most: Option<u64>,
    },
    /// Nothing came of it: it waits as before. What it may have cost is given back.
    Back,
    /// It is translated.
    Done {
        /// The translation of each segment, all settled.
        drafts: Drafts,
        /// What the call used.
        used: Used,
    },
    /// What is not settled is asked for again at a time.
    Again {
        /// When.
        at: Timestamp,
        /// Why.
        reason: String,
        /// What is settled by now.
        drafts: Drafts,
        /// What the call used.
        used: Used,
        /// Whether the answer was bad; otherwise the call failed for a passing reason.
        is_fault: bool,
    },
    /// Parts take its place.
    Split {
        /// The parts, in order, without a gap.
        parts: Vec<Part>,
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

/// A part of a chunk that was split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its segments.
    pub run: Run,
    /// What is settled of it. One of which everything is settled is done.
    pub drafts: Drafts,
    /// Why it is given up, if it is.
    pub failed: Option<String>,
}

impl Part {
    /// The state it begins in.
    #[must_use]
    pub fn state(&self) -> ChunkState {
        match &self.failed {
            Some(_) => ChunkState::Failed,
            None if self.drafts.open().is_empty() => ChunkState::Done,
            None => ChunkState::Pending,
        }
    }
}
