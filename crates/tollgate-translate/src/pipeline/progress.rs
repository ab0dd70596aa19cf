//! How far a job is, for whoever watches.

use serde::Serialize;
use tollgate::Timestamp;

use crate::job::Counts;

/// The latest news of a pipeline.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// The job they are about.
    pub job: String,
    /// How many of its chunks stand where.
    pub counts: Counts,
    /// How many chunks are under way here: waiting for the quota or at the provider.
    pub under_way: usize,
    /// How many attempts of all jobs wait for the quota here.
    pub in_line: usize,
    /// When the work of this run began.
    #[serde(skip)]
    pub began_at: Timestamp,
    /// Why the last call failed that is made again, until one succeeds.
    pub retry: Option<String>,
    /// When it is made again.
    #[serde(skip)]
    pub retry_at: Option<Timestamp>,
    /// Why nothing goes on, if that is so.
    pub paused: Option<String>,
    /// When it goes on by itself.
    #[serde(skip)]
    pub resume_at: Option<Timestamp>,
}
