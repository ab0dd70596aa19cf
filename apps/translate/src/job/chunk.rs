//! Chunks: their segments, their claims, and the updates of them.

use std::fmt;

use serde::{Deserialize, Serialize};
use tollgate::Timestamp;

use super::draft::{Drafts, Texts};
use super::state::{ChunkState, JobState};

/// A range of segments: from `first` up to and without `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SegmentRange {
    /// The first segment.
    pub first: u32,
    /// The segment after the last.
    pub end: u32,
}

impl SegmentRange {
    /// Returns the number of segments.
    #[must_use]
    pub const fn len(self) -> u32 {
        self.end - self.first
    }

    /// Returns whether it has no segments, which is invalid for a chunk.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.end <= self.first
    }
}

impl fmt::Display for SegmentRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.first, self.end)
    }
}

/// The progress of a job. Chunks that were split are not counted; their parts are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Chunks without a worker, those to be retried later included.
    pub waiting: u64,
    /// Chunks with a worker.
    pub working: u64,
    /// Translated chunks.
    pub done: u64,
    /// Chunks that were given up.
    pub failed: u64,
    /// Calls to the provider.
    pub calls: u64,
    /// Input tokens that the provider counted.
    pub input_tokens: u64,
    /// Output tokens that the provider counted.
    pub output_tokens: u64,
    /// The cost so far, with the reserved cost of pending calls, in millionths.
    pub cost: u64,
}

impl Counts {
    /// Returns the number of all chunks.
    #[must_use]
    pub const fn all(&self) -> u64 {
        self.waiting + self.working + self.done + self.failed
    }

    /// Adds `number` chunks in `state`.
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

/// A stored chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkRecord {
    /// Its segments.
    pub run: SegmentRange,
    /// Its state.
    pub state: ChunkState,
    /// The translation of each segment, if it is done.
    pub texts: Vec<String>,
    /// Doubts about translations, by the index of the segment in the chunk.
    pub warnings: Vec<(u32, String)>,
    /// The last failure.
    pub reason: Option<String>,
    /// The number of calls.
    pub calls: u32,
    /// When it is retried, if it is in [`ChunkState::Again`].
    pub again_at: Option<Timestamp>,
    /// When it was last due for a retry.
    pub due: Option<Timestamp>,
}

impl ChunkRecord {
    /// Assembles a record from what a store has. `due` is in microseconds, and 0 without a retry.
    #[must_use]
    pub fn new(
        run: SegmentRange,
        state: ChunkState,
        drafts: Option<Drafts>,
        reason: Option<String>,
        calls: u32,
        due: u64,
    ) -> Self {
        let drafts = drafts.filter(|_| state == ChunkState::Done);
        let Texts { texts, warnings } = drafts.and_then(Drafts::whole).unwrap_or_default();
        let due = (due != 0).then(|| Timestamp::from_micros(due));
        let again_at = due.filter(|_| state == ChunkState::Again);
        Self { run, state, texts, warnings, reason, calls, again_at, due }
    }
}

/// A chunk that is reserved for a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Its job.
    pub job: String,
    /// Its segments.
    pub run: SegmentRange,
    /// The number of calls so far.
    pub calls: u32,
    /// The number of answers so far that were bad, wholly or in part.
    pub faults: u32,
    /// The number of consecutive transient failures.
    pub transient: u32,
    /// The fencing token: grows with each claim, so that an expired worker cannot undo what its successor did.
    pub fence: u64,
    /// The cost of the job so far, in millionths. Calls whose outcome is unknown count as paid.
    pub spent: u64,
    /// The reserved cost of pending calls, in millionths.
    pub under_way: u64,
    /// Translations of earlier answers.
    pub drafts: Drafts,
}

/// The outcome of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// This chunk, which is reserved now.
    Chunk(Claim),
    /// No chunk before this time.
    Later(Timestamp),
    /// No chunk any more: every chunk is done or failed.
    Nothing,
    /// No chunk, because the job is paused or over.
    Halted(JobState),
}

impl ClaimOutcome {
    /// Without a ready chunk: `Later`, or `Nothing` without a time in microseconds.
    #[must_use]
    pub fn later(at: Option<u64>) -> Self {
        at.map_or(Self::Nothing, |at| Self::Later(Timestamp::from_micros(at)))
    }
}

/// The usage of one call, added to that of earlier calls of the chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallUsage {
    /// Input tokens.
    pub input: u64,
    /// Output tokens.
    pub output: u64,
    /// The cost, in millionths. Replaces the reserved cost.
    pub cost: u64,
}

/// An update of a claimed chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChunkUpdate {
    /// The request is sent now. Nothing changes if the budget of the job does not suffice.
    Sent {
        /// The cost to reserve, in millionths.
        cost: u64,
        /// The budget of the whole job: paid, reserved and this.
        most: Option<u64>,
    },
    /// The chunk waits as before, and its reserved cost is released.
    Returned,
    /// The chunk is translated.
    Done {
        /// The translation of each segment, all settled.
        drafts: Drafts,
        /// The usage of the call.
        used: CallUsage,
    },
    /// The open segments are requested again later.
    Again {
        /// When.
        at: Timestamp,
        /// Why.
        reason: String,
        /// The settled translations.
        drafts: Drafts,
        /// The usage of the call.
        used: CallUsage,
        /// Whether the answer was bad; otherwise the failure was transient.
        is_fault: bool,
    },
    /// Parts replace the chunk.
    Split {
        /// The parts, in order, without a gap.
        parts: Vec<ChunkPart>,
        /// Why.
        reason: String,
        /// The usage of the call.
        used: CallUsage,
    },
    /// The chunk is given up.
    Failed {
        /// Why.
        reason: String,
        /// The usage of the call.
        used: CallUsage,
    },
}

/// A part of a split chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkPart {
    /// Its segments.
    pub run: SegmentRange,
    /// Its settled translations. A part without an open segment is done.
    pub drafts: Drafts,
    /// Why it is given up, if it is.
    pub failed: Option<String>,
}

impl ChunkPart {
    /// Returns its initial state.
    #[must_use]
    pub fn state(&self) -> ChunkState {
        match &self.failed {
            Some(_) => ChunkState::Failed,
            None if self.drafts.open().is_empty() => ChunkState::Done,
            None => ChunkState::Pending,
        }
    }
}
