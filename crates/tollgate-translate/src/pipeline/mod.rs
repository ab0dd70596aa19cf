//! The pipeline: the chunks of a job, several at once, within the provider's quota, losing nothing.
//!
//! No chunk needs another's result, so they may come in any order and the document is the same byte for byte. What
//! sets the pace is the quota, or the number of chunks at once, and nothing else.

mod alike;
mod amend;
mod answer;
mod attempt;
mod book;
mod calibrated;
mod daily;
mod output;
mod progress;
mod route;
mod run;
mod settle;
mod single;
mod spec;
mod stop;
mod throttle;
mod undecided;
mod worker;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tollgate::{Clock, Span};
use tollgate_telemetry::{Meters, TranslationMeters};

use crate::error::Error;
use crate::estimate::Calibration;
use crate::job::{JobState, JobStore, NewJob};
use crate::provider::Provider;

pub use amend::Amendment;
pub use output::{Failure, Output};
pub use progress::Progress;
pub use route::Route;
pub use run::Ended;
pub use single::Single;
pub use spec::{JobSettings, JobSpec};
pub use stop::{Stop, Stopper};
pub use throttle::{Full, Throttle};
pub use worker::work;

use book::Book;

/// How many chunks are translated at once, unless somebody says otherwise (R003.2).
pub const PARALLEL_DEFAULT: usize = 10;

/// How long an attempt waits in line before its job counts as paused.
pub const PATIENCE_DEFAULT: Span = Span::from_mins(15);

/// How a pipeline works.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many chunks of a job are translated at once.
    pub parallel: usize,
    /// How long an attempt waits for the quota before the whole job is paused until there is room.
    pub patience: Span,
    /// Whether [`Pipeline::run`] waits until a paused job goes on by itself, or returns.
    pub wait_out_pauses: bool,
    /// The name of this worker, different from that of every other worker on the same jobs.
    pub worker: String,
    /// Where translations are counted (R003.9), if anywhere.
    pub meters: Option<Arc<Meters>>,
}

impl Default for Options {
    fn default() -> Self {
        let worker = format!("{}-{:08x}", std::process::id(), tollgate::edge::random());
        Self {
            parallel: PARALLEL_DEFAULT,
            patience: PATIENCE_DEFAULT,
            wait_out_pauses: true,
            worker,
            meters: None,
        }
    }
}

impl JobSpec {
    /// Cuts the document into chunks: the job as a store keeps it. A long document takes a while.
    ///
    /// # Errors
    /// If the document cannot be read, or a setting is wrong.
    pub fn prepare(&self) -> Result<NewJob, Error> {
        let book = Book::new(self)?;
        Ok(NewJob {
            id: self.id.clone(),
            name: self.name.clone(),
            document: self.document.clone(),
            settings: book.settings_json()?,
            chunks: book.chunks(),
        })
    }
}

/// Translates jobs. Clones are the same pipeline.
#[derive(Clone, Debug)]
pub struct Pipeline(Arc<Engine>);

/// What all attempts of a pipeline share.
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
    /// A pipeline that calls `provider` within `throttle` and keeps its jobs in `store`.
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

    /// Keeps a new job. Says whether it is new; one of the same id is left as it is.
    ///
    /// # Errors
    /// If the document cannot be read, a setting is wrong, or the job cannot be kept.
    pub async fn submit(&self, spec: &JobSpec) -> Result<bool, Error> {
        self.0.store.create(&spec.prepare()?, self.0.clock.now()).await
    }

    /// Does not want a job any more. Calls that are under way are finished; nothing new begins.
    ///
    /// # Errors
    /// If there is no such job, or the store fails.
    pub async fn cancel(&self, id: &str) -> Result<(), Error> {
        self.0.job(id).await?;
        self.0.store.set_state(id, &JobState::Cancelled, self.0.clock.now()).await.map(drop)
    }

    /// Makes what was given up wait again; [`run`](Self::run) then redoes only that. Says how many chunks that are.
    ///
    /// # Errors
    /// If there is no such job, or the store fails.
    pub async fn retry_failed(&self, id: &str) -> Result<u64, Error> {
        self.0.job(id).await?;
        self.0.store.retry_failed(id).await
    }

    /// What is known about the jobs that this pipeline runs, as it changes.
    #[must_use]
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.0.progress.subscribe()
    }

    /// The store of the jobs.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn JobStore> {
        &self.0.store
    }

    /// Refusals by the provider of what the quota had admitted.
    #[must_use]
    pub fn violations(&self) -> u64 {
        self.0.violations.load(Ordering::Relaxed)
    }

    /// Calls that failed for a passing reason, violations included.
    #[must_use]
    pub fn passing_failures(&self) -> u64 {
        self.0.failures.load(Ordering::Relaxed)
    }
}

impl Engine {
    async fn job(&self, id: &str) -> Result<crate::job::Job, Error> {
        self.store.job(id).await?.ok_or_else(|| no_job(id))
    }

    fn meters(&self) -> Option<&TranslationMeters> {
        self.options.meters.as_ref().map(|meters| meters.translation())
    }

    fn saw_violation(&self) {
        self.violations.fetch_add(1, Ordering::Relaxed);
        if let Some(meters) = self.meters() {
            meters.violated();
        }
    }

    fn saw_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }
}

fn no_job(id: &str) -> Error {
    Error::invalid(format!("there is no job {id:?}"))
}
