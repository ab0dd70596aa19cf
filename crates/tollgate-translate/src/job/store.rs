//! The seam to whoever keeps jobs: in a folder of this machine, or in a database for workers on many.

use std::fmt::Debug;

use tollgate::{BoxFuture, Span, Timestamp};

use super::{ChunkRecord, Claim, Counts, Job, JobState, NewJob, Next, Step};
use crate::error::Error;

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

    /// Whether a process works on a job now.
    fn is_worked_on<'a>(
        &'a self,
        id: &'a str,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>>;

    /// How long a claim lives without being renewed; nothing if it lives as long as its process.
    fn lease(&self) -> Option<Span>;

    /// Takes the next chunk of a job.
    fn claim<'a>(
        &'a self,
        id: &'a str,
        worker: &'a str,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<Next, Error>>;

    /// Keeps a claim alive, unless another worker has its chunk by now.
    fn renew<'a>(&'a self, claim: &'a Claim, now: Timestamp) -> BoxFuture<'a, Result<(), Error>>;

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
