//! The pipeline: translates the chunks of a job concurrently, within the provider's quota.
//!
//! No chunk depends on the result of another, so chunks finish in any order and the document is the same byte for byte. The
//! pace is set by the quota or by the number of concurrent chunks, and by nothing else.

mod answer;
mod attempt;
mod calibration;
mod gate_outage;
mod output;
mod prepared;
mod run;
mod settings;
mod settle;
mod streak;
mod throttle;
mod worker;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tollgate::{Clock, Span};
use tollgate_telemetry::{Meters, TranslationMeters};

use crate::error::Result;
use crate::estimate::Calibration;
use crate::job::{Job, JobState, JobStore, NewJob, no_such_job};
use crate::provider::Provider;

pub use output::{Failure, Output};
pub use run::{ChunkOutcome, Progress, RunOutcome};
pub use settings::{Amendment, JobOptions, JobSpec, Route};
pub use throttle::{ExhaustedLimit, Throttle};
pub use worker::work;

use prepared::PreparedDocument;

/// The default number of concurrent chunks.
pub const PARALLEL_DEFAULT: usize = 10;

/// How long an attempt waits for the quota before its job is paused, by default.
pub const QUOTA_WAIT_DEFAULT: Span = Span::from_mins(15);

/// The options of a pipeline.
#[derive(Clone, Debug)]
pub struct Options {
    /// The number of concurrent chunks of a job.
    pub parallel: usize,
    /// How long an attempt waits for the quota before the whole job is paused until there is room.
    pub quota_wait: Span,
    /// Whether [`Pipeline::run`] waits until a paused job resumes, or returns.
    pub wait_out_pauses: bool,
    /// The name of this worker, unique among the workers on the same jobs.
    pub worker: String,
    /// The metrics to update.
    pub meters: Option<Arc<Meters>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            parallel: PARALLEL_DEFAULT,
            quota_wait: QUOTA_WAIT_DEFAULT,
            wait_out_pauses: true,
            worker: format!("{}-{:08x}", std::process::id(), tollgate::internal::edge::random()),
            meters: None,
        }
    }
}

impl JobSpec {
    /// Cuts the document into chunks and returns the job to store. A long document takes a while.
    ///
    /// # Errors
    /// If the document is unreadable, or a setting is invalid.
    pub fn prepare(&self) -> Result<NewJob> {
        let prepared = PreparedDocument::new(self)?;
        Ok(NewJob {
            id: self.id.clone(),
            name: self.name.clone(),
            document: self.document.clone(),
            settings: prepared.settings.to_json()?,
            chunks: prepared.chunks,
        })
    }
}

/// Translates jobs. Clones share one pipeline.
#[derive(Clone, Debug)]
pub struct Pipeline(Arc<Engine>);

/// The state that all attempts of a pipeline share.
#[derive(Debug)]
struct Engine {
    provider: Arc<dyn Provider>,
    throttle: Arc<Throttle>,
    store: Arc<dyn JobStore>,
    clock: Arc<dyn Clock>,
    options: Options,
    calibration: Mutex<Calibration>,
    violations: AtomicU64,
    failures: AtomicU64,
    progress: watch::Sender<Progress>,
}

impl Pipeline {
    /// Returns a pipeline that calls `provider` within `throttle` and stores its jobs in `store`.
    pub fn new(
        provider: Arc<dyn Provider>,
        throttle: Arc<Throttle>,
        store: Arc<dyn JobStore>,
        clock: Arc<dyn Clock>,
        options: Options,
    ) -> Self {
        let options = Options { parallel: options.parallel.max(1), ..options };
        if let Some(meters) = &options.meters {
            throttle.count_in(meters);
        }
        Self(Arc::new(Engine {
            provider,
            throttle,
            store,
            clock,
            options,
            calibration: Mutex::default(),
            violations: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            progress: watch::Sender::new(Progress::default()),
        }))
    }

    /// Stores a new job. Returns `false`, without changing anything, if the id exists.
    ///
    /// # Errors
    /// If the document is unreadable, a setting is invalid, or the store fails.
    pub async fn submit(&self, spec: &JobSpec) -> Result<bool> {
        self.0.store.create(&spec.prepare()?, self.0.clock.now()).await
    }

    /// Cancels a job. Pending calls are completed; no new call begins.
    ///
    /// # Errors
    /// If there is no such job, or the store fails.
    pub async fn cancel(&self, id: &str) -> Result<()> {
        self.0.job(id).await?;
        self.0.store.set_state(id, &JobState::Cancelled, self.0.clock.now()).await.map(drop)
    }

    /// Makes failed chunks pending, so that [`run`](Self::run) repeats only those. Returns their number.
    ///
    /// # Errors
    /// If there is no such job, or the store fails.
    pub async fn retry_failed(&self, id: &str) -> Result<u64> {
        self.0.job(id).await?;
        self.0.store.retry_failed(id).await
    }

    /// Subscribes to the progress of the jobs that this pipeline runs.
    #[must_use]
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.0.progress.subscribe()
    }

    /// Returns the store of the jobs.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn JobStore> {
        &self.0.store
    }

    /// Returns how many calls the provider refused though the quota had admitted them.
    #[must_use]
    pub fn violations(&self) -> u64 {
        self.0.violations.load(Ordering::Relaxed)
    }

    /// Returns how many calls failed transiently, violations included.
    #[must_use]
    pub fn transient_failures(&self) -> u64 {
        self.0.failures.load(Ordering::Relaxed)
    }
}

impl Engine {
    async fn job(&self, id: &str) -> Result<Job> {
        self.store.job(id).await?.ok_or_else(|| no_such_job(id))
    }

    fn meters(&self) -> Option<&TranslationMeters> {
        self.options.meters.as_ref().map(|meters| meters.translation())
    }

    fn count_violation(&self) {
        self.violations.fetch_add(1, Ordering::Relaxed);
        if let Some(meters) = self.meters() {
            meters.violated();
        }
    }
}
