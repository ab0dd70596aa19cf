//! A worker: runs every job of a store that is due, until it is stopped.

use std::collections::HashMap;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tollgate::{Clock, Span, Timestamp};

use super::Pipeline;
use super::run::RunOutcome;
use crate::error::Result;
use crate::job::{Job, JobState, JobStore};

/// How often a worker polls for jobs.
const POLL_INTERVAL: Span = Span::from_secs(5);

/// How long a worker leaves a job alone after an error.
const ERROR_DELAY: Span = Span::from_mins(1);

impl Pipeline {
    /// Runs every job of the store that is planned, running, or paused until a time that has come, concurrently, until `stop`.
    /// Calls `ended` with the outcome of each run.
    ///
    /// # Errors
    /// If the jobs cannot be listed.
    pub async fn work(
        &self,
        stop: &CancellationToken,
        ended: impl FnMut(&str, Result<RunOutcome>),
    ) -> Result<()> {
        let (store, clock) = (&self.0.store, &self.0.clock);
        work(&**store, &**clock, stop, |_| Ok(self.clone()), ended).await
    }
}

/// Like [`Pipeline::work`] for jobs of different providers: `pipeline_for` selects the pipeline of a job. A job without a pipeline is
/// left to other workers for a while.
///
/// # Errors
/// If the jobs cannot be listed.
pub async fn work(
    store: &dyn JobStore,
    clock: &dyn Clock,
    stop: &CancellationToken,
    mut pipeline_for: impl FnMut(&Job) -> Result<Pipeline>,
    mut ended: impl FnMut(&str, Result<RunOutcome>),
) -> Result<()> {
    let mut runs: JoinSet<(String, Result<RunOutcome>)> = JoinSet::new();
    // Jobs that run here (`None`), or that failed here and are skipped until a time.
    let mut known: HashMap<String, Option<Timestamp>> = HashMap::new();
    loop {
        let now = clock.now();
        known.retain(|_, skipped_until| skipped_until.is_none_or(|until| now < until));
        if !stop.is_cancelled() {
            for job in store.jobs().await? {
                if !is_due(&job, now) || known.contains_key(&job.id) {
                    continue;
                }
                match pipeline_for(&job) {
                    Ok(pipeline) => {
                        known.insert(job.id.clone(), None);
                        let stop = stop.clone();
                        runs.spawn(async move {
                            let outcome = pipeline.run(&job.id, &stop).await;
                            (job.id, outcome)
                        });
                    }
                    Err(error) => {
                        known.insert(job.id.clone(), Some(now + ERROR_DELAY));
                        ended(&job.id, Err(error));
                    }
                }
            }
        }
        if stop.is_cancelled() && runs.is_empty() {
            return Ok(());
        }
        tokio::select! {
            biased;
            () = stop.cancelled(), if !stop.is_cancelled() => {}
            Some(joined) = runs.join_next() => {
                // A run that panicked stays in the list, so it is not repeated here.
                if let Ok((id, outcome)) = joined {
                    match &outcome {
                        Ok(_) => known.remove(&id),
                        Err(_) => known.insert(id.clone(), Some(clock.now() + ERROR_DELAY)),
                    };
                    ended(&id, outcome);
                }
            }
            () = clock.sleep_until(now + POLL_INTERVAL) => {}
        }
    }
}

fn is_due(job: &Job, now: Timestamp) -> bool {
    match job.state {
        JobState::Planned | JobState::Running => true,
        JobState::Paused { resume_at, .. } => resume_at.is_some_and(|at| at <= now),
        JobState::Completed | JobState::CompletedWithErrors | JobState::Cancelled => false,
    }
}
