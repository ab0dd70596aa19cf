//! The interface to a store of jobs: a folder of this machine, or a database that workers share.

use std::fmt::Debug;

use async_trait::async_trait;
use tollgate::{Span, Timestamp};

use super::{ChunkRecord, ChunkUpdate, Claim, ClaimOutcome, Counts, Job, JobState, NewJob};
use crate::error::Result;

/// The exclusive right of one process to work on a job, released on drop.
pub trait JobGuard: Debug + Send + Sync {}

/// The guard of a shared store, which does not exclude other processes: claims expire instead.
impl JobGuard for () {}

/// Stores jobs. Each change is durable when its future resolves.
#[async_trait]
pub trait JobStore: Debug + Send + Sync + 'static {
    /// Stores a new job. Returns `false`, without changing anything, if the id exists.
    async fn create(&self, job: &NewJob, now: Timestamp) -> Result<bool>;

    /// Returns the job `id`.
    async fn job(&self, id: &str) -> Result<Option<Job>>;

    /// Returns all jobs, newest first.
    async fn jobs(&self) -> Result<Vec<Job>>;

    /// Returns the document of a job.
    async fn document(&self, id: &str) -> Result<Option<Vec<u8>>>;

    /// Sets the state of a job. Returns `false` if the job is missing or cancelled.
    async fn set_state(&self, id: &str, state: &JobState, now: Timestamp) -> Result<bool>;

    /// Replaces the settings of a job.
    async fn set_settings(&self, id: &str, settings: &str) -> Result<()>;

    /// Begins to work on a job. A store on one machine admits one process at a time and takes back the chunks of a killed one;
    /// a shared store admits any number, and their claims expire.
    async fn lock(&self, id: &str) -> Result<Box<dyn JobGuard>>;

    /// Returns whether a process works on a job now.
    async fn is_active(&self, id: &str, now: Timestamp) -> Result<bool>;

    /// How long a claim lives without being renewed; `None` if it lives as long as its process.
    fn lease(&self) -> Option<Span>;

    /// Claims the next chunk of a job.
    async fn claim(&self, id: &str, worker: &str, now: Timestamp) -> Result<ClaimOutcome>;

    /// Extends a claim, unless another worker has its chunk.
    async fn renew(&self, claim: &Claim, now: Timestamp) -> Result<()>;

    /// Updates a chunk. Returns `false` if another worker has it or it is finished. A translation is accepted from any
    /// worker, as long as the chunk has none.
    async fn update(&self, claim: &Claim, update: &ChunkUpdate) -> Result<bool>;

    /// Returns how far a job is.
    async fn counts(&self, id: &str) -> Result<Counts>;

    /// Returns the chunks of a job in order, without those that were split.
    async fn chunks(&self, id: &str) -> Result<Vec<ChunkRecord>>;

    /// Makes the failed chunks pending and the job running. Returns the number of those chunks.
    async fn retry_failed(&self, id: &str) -> Result<u64>;

    /// Returns the cached answer to the request with this hash.
    async fn cached(&self, hash: &[u8; 32]) -> Result<Option<Vec<String>>>;

    /// Caches the answer to the request with this hash.
    async fn cache(&self, hash: &[u8; 32], texts: &[String], now: Timestamp) -> Result<()>;
}
