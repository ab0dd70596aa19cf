//! Running a job: claims, concurrent attempts, pauses, and the end.

use std::sync::Arc;

use serde::Serialize;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tollgate::{Span, Timestamp};
use tollgate_telemetry::TranslationMeters;

use super::attempt::{Attempt, AttemptOutcome, OverBudget};
use super::gate_outage::GateOutage;
use super::prepared::PreparedDocument;
use super::streak::{self, FailureStreak};
use super::{Engine, Pipeline};
use crate::error::{Error, Result};
use crate::job::{Claim, ClaimOutcome, Counts, JobState};
use crate::plan::Micros;

/// How often a paused or idle job polls for changes by an operator.
const POLL_INTERVAL: Span = Span::from_secs(60);

/// How often it polls where other workers may change it.
const POLL_INTERVAL_SHARED: Span = Span::from_secs(2);

/// When [`Pipeline::run_chunk`] is to be called again while the gate cannot decide.
const GATE_RETRY: Span = Span::from_secs(10);

/// How a run of a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// Every chunk is translated.
    Completed,
    /// Every chunk is translated or failed.
    CompletedWithErrors,
    /// The job is paused until a time, or until an operator resumes it.
    Paused {
        /// When it can continue; `None` if an operator must act first.
        resume_at: Option<Timestamp>,
        /// The reason, with a way out.
        why: String,
        /// A budget with which it can continue, if the budget is the reason.
        raise_to: Option<Micros>,
    },
    /// The run was stopped, and can be repeated.
    Stopped,
    /// The job was cancelled.
    Cancelled,
}

impl RunOutcome {
    /// Returns the outcome of a job that has ended.
    #[must_use]
    pub const fn from_ended_state(state: &JobState) -> Option<Self> {
        match state {
            JobState::Completed => Some(Self::Completed),
            JobState::CompletedWithErrors => Some(Self::CompletedWithErrors),
            JobState::Cancelled => Some(Self::Cancelled),
            JobState::Planned | JobState::Running | JobState::Paused { .. } => None,
        }
    }

    /// Returns its name in reports.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::CompletedWithErrors => "completed_with_errors",
            Self::Paused { .. } => "paused",
            Self::Stopped => "stopped",
            Self::Cancelled => "cancelled",
        }
    }

    const fn paused(resume_at: Option<Timestamp>, why: String) -> Self {
        Self::Paused { resume_at, why, raise_to: None }
    }

    /// The outcome of a claim that found the job halted.
    fn halted(state: JobState) -> Self {
        match state {
            JobState::Paused { resume_at, why } => Self::paused(resume_at, why),
            state => Self::from_ended_state(&state).unwrap_or(Self::Stopped),
        }
    }
}

/// The outcome of [`Pipeline::run_chunk`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChunkOutcome {
    /// A chunk was attempted; there may be more.
    Worked,
    /// No chunk is ready before this time: other workers have the rest, or it is retried later.
    Later(Timestamp),
    /// The job is over, paused or cancelled.
    Ended(RunOutcome),
}

/// The progress of a pipeline.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// The job.
    pub job: String,
    /// The progress of its chunks.
    pub counts: Counts,
    /// Chunks of this process that wait for the quota or are at the provider.
    pub under_way: usize,
    /// Attempts of all jobs of this process that wait for the quota.
    pub in_line: usize,
    /// When this run began.
    #[serde(skip)]
    pub began_at: Timestamp,
    /// Why the last call failed, until one succeeds.
    pub retry: Option<String>,
    /// When it is retried.
    #[serde(skip)]
    pub retry_at: Option<Timestamp>,
    /// Why the job is paused, if it is.
    pub paused: Option<String>,
    /// When it resumes.
    #[serde(skip)]
    pub resume_at: Option<Timestamp>,
}

impl Pipeline {
    /// Works on a job until it is over, paused for good, or stopped. A job that is over is left as it is.
    ///
    /// # Errors
    /// If there is no such job, another process of this machine works on it, or the store fails.
    pub async fn run(&self, id: &str, stop: &CancellationToken) -> Result<RunOutcome> {
        let state = self.0.job(id).await?.state;
        if let Some(ended) = RunOutcome::from_ended_state(&state) {
            return Ok(ended);
        }
        let _guard = self.0.store.lock(id).await?;
        let probes = matches!(state, JobState::Paused { resume_at: None, .. });
        JobRun::new(&self.0, id, stop.clone(), probes).await?.run().await
    }

    /// Attempts one chunk of a job, for orchestrators that call a function for each chunk, such as a Map of Step Functions. Needs a
    /// store with leases, so that a function that dies loses its chunk.
    ///
    /// # Errors
    /// If there is no such job, its store has no leases, or the store fails.
    pub async fn run_chunk(&self, id: &str) -> Result<ChunkOutcome> {
        let engine = &self.0;
        if engine.store.lease().is_none() {
            return Err(Error::invalid(
                "single chunks need a store that is shared, such as PostgreSQL or DynamoDB; run the job instead",
            ));
        }
        let run = JobRun::new(engine, id, CancellationToken::new(), false).await?;
        let claim = match run.claim().await? {
            ClaimOutcome::Chunk(claim) => claim,
            ClaimOutcome::Later(at) => return Ok(ChunkOutcome::Later(at)),
            ClaimOutcome::Nothing => return Ok(ChunkOutcome::Ended(run.complete().await?)),
            ClaimOutcome::Halted(state) => {
                return Ok(ChunkOutcome::Ended(RunOutcome::halted(state)));
            }
        };
        let later = |wait| Ok(ChunkOutcome::Later(engine.clock.now() + wait));
        let halt = CancellationToken::new();
        let (resume_at, why, raise_to) = match run.attempt(claim, &halt).run().await? {
            AttemptOutcome::Continue | AttemptOutcome::Translated | AttemptOutcome::RetryAt(..) => {
                return Ok(ChunkOutcome::Worked);
            }
            AttemptOutcome::Useless(useless) => {
                let chunks = run.prepared.chunks.len();
                match streak::pauses(&*engine.store, id, &useless, chunks).await? {
                    Some(why) => (None, why, None),
                    None => return Ok(ChunkOutcome::Worked),
                }
            }
            AttemptOutcome::QuotaExhausted(at, why) => (Some(at), why, None),
            AttemptOutcome::GateUnavailable(_) => return later(GATE_RETRY),
            AttemptOutcome::OverBudget(OverBudget { is_contended: true, .. }) => {
                return later(POLL_INTERVAL_SHARED);
            }
            AttemptOutcome::OverBudget(OverBudget { why, raise_to, .. }) => {
                (None, why, Some(raise_to))
            }
            AttemptOutcome::Pause(resume_at, why) => (resume_at, why, None),
        };
        run.pause(resume_at, &why).await?;
        Ok(ChunkOutcome::Ended(RunOutcome::Paused { resume_at, why, raise_to }))
    }
}

/// One run of one job: rounds of work with pauses between them.
struct JobRun<'a> {
    engine: &'a Arc<Engine>,
    id: &'a str,
    prepared: Arc<PreparedDocument>,
    stop: CancellationToken,
    began_at: Timestamp,
    /// Whether an operator had to act first: one call shows whether that helped, before many are made.
    probes: bool,
    /// When and why the last failed call is retried, until one succeeds.
    retry: Option<(Timestamp, String)>,
    streak: FailureStreak,
    gate_outage: GateOutage,
}

impl<'a> JobRun<'a> {
    async fn new(
        engine: &'a Arc<Engine>,
        id: &'a str,
        stop: CancellationToken,
        probes: bool,
    ) -> Result<Self> {
        let prepared = Arc::new(PreparedDocument::load(&*engine.store, id).await?);
        engine.load_calibration(&prepared).await?;
        Ok(Self {
            engine,
            id,
            prepared,
            stop,
            began_at: engine.clock.now(),
            probes,
            retry: None,
            streak: FailureStreak::default(),
            gate_outage: GateOutage::default(),
        })
    }

    fn attempt(&self, claim: Claim, halt: &CancellationToken) -> Attempt {
        let (engine, prepared) = (Arc::clone(self.engine), Arc::clone(&self.prepared));
        Attempt { engine, prepared, claim, halt: halt.clone() }
    }

    async fn run(&mut self) -> Result<RunOutcome> {
        while self.set_state(&JobState::Running).await? {
            let outcome = {
                let _running = self.engine.meters().map(TranslationMeters::running);
                self.round().await?
            };
            let RunOutcome::Paused { resume_at, why, .. } = &outcome else { return Ok(outcome) };
            self.pause(*resume_at, why).await?;
            self.report(0, Some((why, *resume_at))).await?;
            match resume_at {
                Some(at) if self.engine.options.wait_out_pauses => {
                    if let Some(outcome) = self.sleep_until(*at).await? {
                        return Ok(outcome);
                    }
                }
                _ => return Ok(outcome),
            }
        }
        Ok(RunOutcome::Cancelled)
    }

    async fn set_state(&self, state: &JobState) -> Result<bool> {
        self.engine.store.set_state(self.id, state, self.engine.clock.now()).await
    }

    /// Pauses the job. Of several workers that find a reason, the first one counts the pause.
    async fn pause(&self, resume_at: Option<Timestamp>, why: &str) -> Result<()> {
        let was_paused = matches!(self.engine.job(self.id).await?.state, JobState::Paused { .. });
        let is_set = self.set_state(&JobState::Paused { resume_at, why: why.to_owned() }).await?;
        if let Some(meters) = self.engine.meters()
            && is_set
            && !was_paused
        {
            meters.paused(resume_at.is_none());
        }
        Ok(())
    }

    /// Sleeps until `at`; returns early if the run is stopped or the job is cancelled.
    async fn sleep_until(&self, at: Timestamp) -> Result<Option<RunOutcome>> {
        while self.engine.clock.now() < at {
            let next = at.min(self.engine.clock.now() + POLL_INTERVAL);
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return Ok(Some(RunOutcome::Stopped)),
                () = self.engine.clock.sleep_until(next) => {}
            }
            if self.engine.job(self.id).await?.state == JobState::Cancelled {
                return Ok(Some(RunOutcome::Cancelled));
            }
        }
        Ok(None)
    }

    /// Works until nothing is left, or something halts the job. Calls at the provider are always awaited, since they are paid.
    async fn round(&mut self) -> Result<RunOutcome> {
        let halt = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let outcome = self.work(&halt, &mut tasks).await;
        halt.cancel();
        let mut failure = None;
        while let Some(ended) = tasks.join_next().await {
            failure = failure.or(joined(ended).err());
        }
        let outcome = outcome?;
        if let Some(error) = failure {
            return Err(error);
        }
        self.report(0, None).await?;
        Ok(outcome)
    }

    async fn work(
        &mut self,
        halt: &CancellationToken,
        tasks: &mut JoinSet<Result<AttemptOutcome>>,
    ) -> Result<RunOutcome> {
        let is_shared = self.engine.store.lease().is_some();
        let poll_interval = if is_shared { POLL_INTERVAL_SHARED } else { POLL_INTERVAL };
        // A denial behind queued attempts may name too late a time, since those may be counted already; and pending calls may cost less
        // than reserved. So all attempts finish, and one asks alone before the job pauses.
        let (mut drains, mut alone) = (false, std::mem::take(&mut self.probes));
        loop {
            let mut later = None;
            // After a useless answer the others are awaited: if they are useless too, the job is paused.
            let is_careful = alone || self.streak.is_on() || self.gate_outage.is_on();
            let most = if is_careful { 1 } else { self.engine.options.parallel };
            let held = self.gate_outage.until(self.engine.clock.now());
            while held.is_none() && !drains && tasks.len() < most && !self.stop.is_cancelled() {
                match self.claim().await? {
                    ClaimOutcome::Chunk(claim) => {
                        tasks.spawn(self.attempt(claim, halt).run());
                    }
                    ClaimOutcome::Later(at) => {
                        later = Some(at);
                        break;
                    }
                    ClaimOutcome::Nothing if tasks.is_empty() => return self.complete().await,
                    ClaimOutcome::Nothing => break,
                    ClaimOutcome::Halted(state) => return Ok(RunOutcome::halted(state)),
                }
            }
            if self.stop.is_cancelled() {
                return Ok(RunOutcome::Stopped);
            }
            if drains && tasks.is_empty() {
                (drains, alone) = (false, true);
                continue;
            }
            self.report(tasks.len(), None).await?;
            let now = self.engine.clock.now();
            // Also polled while all slots are busy, to report the progress of other workers.
            let alarm = later.or(held).unwrap_or(Timestamp::MAX).min(now + poll_interval);
            let outcome = tokio::select! {
                biased;
                () = self.stop.cancelled() => return Ok(RunOutcome::Stopped),
                Some(ended) = tasks.join_next() => joined(ended)?,
                () = self.engine.clock.sleep_until(alarm) => continue,
            };
            if !matches!(
                outcome,
                AttemptOutcome::GateUnavailable(_) | AttemptOutcome::OverBudget(_)
            ) {
                self.gate_outage.end();
            }
            match outcome {
                AttemptOutcome::GateUnavailable(why) => {
                    // An unresponsive store fails an ask late, so the time is read anew.
                    self.retry = Some((self.gate_outage.add(self.engine.clock.now()), why));
                }
                AttemptOutcome::Continue => (alone, self.retry) = (false, None),
                AttemptOutcome::Translated => {
                    (alone, self.retry) = (false, None);
                    self.streak.end();
                }
                AttemptOutcome::Useless(useless) => {
                    (alone, self.retry) = (false, None);
                    if let Some(why) = self.streak.add(useless, self.prepared.chunks.len()) {
                        return Ok(RunOutcome::paused(None, why));
                    }
                }
                AttemptOutcome::RetryAt(at, why) => {
                    (alone, self.retry) = (false, Some((at, why)));
                }
                AttemptOutcome::QuotaExhausted(at, why) if alone => {
                    return Ok(RunOutcome::paused(Some(at), why));
                }
                AttemptOutcome::OverBudget(OverBudget { is_contended: true, .. }) if alone => {
                    tokio::select! {
                        biased;
                        () = self.stop.cancelled() => return Ok(RunOutcome::Stopped),
                        () = self.engine.clock.sleep_until(now + poll_interval) => {}
                    }
                }
                AttemptOutcome::OverBudget(OverBudget { why, raise_to, .. }) if alone => {
                    let raise_to = Some(raise_to);
                    return Ok(RunOutcome::Paused { resume_at: None, why, raise_to });
                }
                AttemptOutcome::QuotaExhausted(..) | AttemptOutcome::OverBudget(..) => {
                    drains = true;
                }
                AttemptOutcome::Pause(resume_at, why) => {
                    return Ok(RunOutcome::paused(resume_at, why));
                }
            }
        }
    }

    async fn claim(&self) -> Result<ClaimOutcome> {
        let (store, options) = (&self.engine.store, &self.engine.options);
        store.claim(self.id, &options.worker, self.engine.clock.now()).await
    }

    /// Ends the job: every chunk is translated or failed.
    async fn complete(&self) -> Result<RunOutcome> {
        let counts = self.engine.store.counts(self.id).await?;
        let (state, outcome) = match counts.failed {
            0 => (JobState::Completed, RunOutcome::Completed),
            _ => (JobState::CompletedWithErrors, RunOutcome::CompletedWithErrors),
        };
        let job = self.engine.job(self.id).await?;
        if !self.set_state(&state).await? {
            return Ok(RunOutcome::Cancelled);
        }
        // Of several workers that find the job over, the first one counts it.
        if let Some(meters) = self.engine.meters()
            && !job.state.is_over()
        {
            let began = job.started_at.unwrap_or(self.began_at);
            meters.ended(self.engine.clock.now().since(began), 0 < counts.failed);
        }
        Ok(outcome)
    }

    /// Publishes the progress.
    async fn report(
        &self,
        under_way: usize,
        paused: Option<(&str, Option<Timestamp>)>,
    ) -> Result<()> {
        let counts = self.engine.store.counts(self.id).await?;
        let (retry_at, retry) = self.retry.clone().unzip();
        self.engine.progress.send_replace(Progress {
            job: self.id.to_owned(),
            counts,
            under_way,
            in_line: self.engine.throttle.waiting(),
            began_at: self.began_at,
            retry,
            retry_at,
            paused: paused.map(|(why, _)| why.to_owned()),
            resume_at: paused.and_then(|(_, resume_at)| resume_at),
        });
        Ok(())
    }
}

fn joined(ended: Result<Result<AttemptOutcome>, tokio::task::JoinError>) -> Result<AttemptOutcome> {
    ended.map_err(|error| {
        Error::store(format!("an attempt at a chunk ended unexpectedly: {error}"))
    })?
}
