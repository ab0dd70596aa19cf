//! A worker: takes up whatever job there is to work on, for as long as it is let.

use std::collections::HashMap;

use tokio::task::JoinSet;
use tollgate::{Clock, Span, Timestamp};

use super::run::Ended;
use super::{Pipeline, Stop};
use crate::error::Error;
use crate::job::{Job, JobState, JobStore};

/// How often a worker looks for jobs.
const LOOK_EVERY: Span = Span::from_secs(5);

/// How long a job that failed here is left to others.
const LEAVE_FOR: Span = Span::from_mins(1);

impl Pipeline {
    /// Works on every job of the store that is planned, running, or paused until a time that has come, side by side, until it
    /// is told to stop. `ended` hears how each run ended, and what it failed with.
    ///
    /// # Errors
    /// If the list of jobs cannot be read at all.
    pub async fn work(
        &self,
        stop: &Stop,
        ended: impl FnMut(&str, Result<Ended, Error>),
    ) -> Result<(), Error> {
        let (store, clock) = (&self.0.store, &self.0.clock);
        work(&**store, &**clock, stop, |_| Ok(self.clone()), ended).await
    }
}

/// The same for jobs that do not all call the same provider: `pipeline_for` says what a job is worked on with. One that it has no
/// pipeline for is left to others for a while.
///
/// # Errors
/// If the list of jobs cannot be read at all.
pub async fn work(
    store: &dyn JobStore,
    clock: &dyn Clock,
    stop: &Stop,
    mut pipeline_for: impl FnMut(&Job) -> Result<Pipeline, Error>,
    mut ended: impl FnMut(&str, Result<Ended, Error>),
) -> Result<(), Error> {
    let mut runs: JoinSet<(String, Result<Ended, Error>)> = JoinSet::new();
    let mut mine: HashMap<String, Option<Timestamp>> = HashMap::new();
    let mut stop = stop.clone();
    loop {
        let now = clock.now();
        mine.retain(|_, left_until| left_until.is_none_or(|until| now < until));
        if !stop.is_set() {
            for job in store.jobs().await? {
                if !is_due(&job, now) || mine.contains_key(&job.id) {
                    continue;
                }
                match pipeline_for(&job) {
                    Ok(pipeline) => {
                        mine.insert(job.id.clone(), None);
                        let stop = stop.clone();
                        runs.spawn(async move {
                            let ended = pipeline.run(&job.id, &stop).await;
                            (job.id, ended)
                        });
                    }
                    Err(error) => {
                        mine.insert(job.id.clone(), Some(now + LEAVE_FOR));
                        ended(&job.id, Err(error));
                    }
                }
            }
        }
        if stop.is_set() && runs.is_empty() {
            return Ok(());
        }
        tokio::select! {
            biased;
            () = stop.wait(), if !stop.is_set() => {}
            Some(joined) = runs.join_next() => {
                // A run that panicked stays in the list, so it is not taken up here again.
                if let Ok((id, outcome)) = joined {
                    match &outcome {
                        Ok(_) => mine.remove(&id),
                        Err(_) => mine.insert(id.clone(), Some(clock.now() + LEAVE_FOR)),
                    };
                    ended(&id, outcome);
                }
            }
            () = clock.sleep_until(now + LOOK_EVERY) => {}
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
