//! Running a job: claims, attempts side by side, pauses, and the end.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tollgate::{Span, Timestamp};
use tollgate_telemetry::TranslationMeters;

use super::alike::Streak;
use super::attempt::{Attempt, Came, Poor};
use super::book::Book;
use super::undecided::Undecided;
use super::{Engine, Pipeline, Progress, Stop};
use crate::error::Error;
use crate::job::{JobState, Next};
use crate::plan::Micros;

/// How long a paused or idle job sleeps before it looks whether somebody changed it.
const LOOK_EVERY: Span = Span::from_secs(60);

/// The same where other workers may have changed it.
pub(super) const LOOK_EVERY_SHARED: Span = Span::from_secs(2);

/// How a run of a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every chunk is translated.
    Completed,
    /// Every chunk is translated or was given up.
    CompletedWithErrors,
    /// Nothing goes on until a time, or until somebody acts.
    Paused {
        /// When it can go on; nothing if somebody must act first.
        resume_at: Option<Timestamp>,
        /// Why, and what would help.
        why: String,
        /// A bound on the cost with which it can go on, if it is the bound that stops it.
        raise_to: Option<Micros>,
    },
    /// It was told to stop, and can be run again.
    Stopped,
    /// Somebody does not want it any more.
    Cancelled,
}

impl Pipeline {
    /// Works on a job until it is over, paused for good, or told to stop. A job that is over is left as it is.
    ///
    /// # Errors
    /// If there is no such job, another process of this machine works on it, or the store fails.
    pub async fn run(&self, id: &str, stop: &Stop) -> Result<Ended, Error> {
        let engine = &self.0;
        let state = engine.job(id).await?.state;
        let probes = matches!(state, JobState::Paused { resume_at: None, .. });
        match state {
            JobState::Completed => return Ok(Ended::Completed),
            JobState::CompletedWithErrors => return Ok(Ended::CompletedWithErrors),
            JobState::Cancelled => return Ok(Ended::Cancelled),
            JobState::Planned | JobState::Running | JobState::Paused { .. } => {}
        }
        let _hold = engine.store.enter(id).await?;
        let book = Arc::new(Book::of(&*engine.store, id).await?);
        engine.take_up(&book).await?;
        let (stop, began_at) = (stop.clone(), engine.clock.now());
        let (streak, retry, undecided) = (Streak::default(), None, Undecided::default());
        let mut rounds =
            Rounds { engine, id, book, stop, began_at, probes, retry, streak, undecided };
        rounds.run().await
    }
}

/// One run of one job: rounds of work with pauses between them.
pub(super) struct Rounds<'a> {
    pub(super) engine: &'a Arc<Engine>,
    pub(super) id: &'a str,
    pub(super) book: Arc<Book>,
    pub(super) stop: Stop,
    pub(super) began_at: Timestamp,
    /// Whether somebody had to act before it goes on: one call shows whether that helped, before many are made.
    pub(super) probes: bool,
    /// When the last call that failed is made again, and why, until one succeeds.
    pub(super) retry: Option<(Timestamp, String)>,
    /// The last answers, if nothing of them could be used.
    pub(super) streak: Streak,
    /// Whether the gate decides.
    pub(super) undecided: Undecided,
}

impl Rounds<'_> {
    async fn run(&mut self) -> Result<Ended, Error> {
        loop {
            let running = self.set_state(&JobState::Running).await?;
            if !running {
                return Ok(Ended::Cancelled);
            }
            let ended = {
                let _running = self.engine.meters().map(TranslationMeters::running);
                self.round().await?
            };
            let (resume_at, why, raise_to) = match ended {
                Ended::Paused { resume_at, why, raise_to } => (resume_at, why, raise_to),
                ended => return Ok(ended),
            };
            self.pause(resume_at, &why).await?;
            self.tell(0, Some((&why, resume_at))).await?;
            match resume_at {
                Some(at) if self.engine.options.wait_out_pauses => {
                    if let Some(ended) = self.rest(at).await? {
                        return Ok(ended);
                    }
                }
                _ => return Ok(Ended::Paused { resume_at, why, raise_to }),
            }
        }
    }

    pub(super) async fn set_state(&self, state: &JobState) -> Result<bool, Error> {
        self.engine.store.set_state(self.id, state, self.engine.clock.now()).await
    }

    /// Pauses the job. Of several workers that find a reason, the first one counts it.
    pub(super) async fn pause(&self, resume_at: Option<Timestamp>, why: &str) -> Result<(), Error> {
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

    /// Sleeps until `at`; ends early if it is told to stop or the job is cancelled.
    async fn rest(&mut self, at: Timestamp) -> Result<Option<Ended>, Error> {
        while self.engine.clock.now() < at {
            let nap = at.min(self.engine.clock.now() + LOOK_EVERY);
            tokio::select! {
                biased;
                () = self.stop.wait() => return Ok(Some(Ended::Stopped)),
                () = self.engine.clock.sleep_until(nap) => {}
            }
            if self.engine.job(self.id).await?.state == JobState::Cancelled {
                return Ok(Some(Ended::Cancelled));
            }
        }
        Ok(None)
    }

    /// Works until nothing is left, or something halts the job. What is at the provider is always waited for.
    async fn round(&mut self) -> Result<Ended, Error> {
        let halt = watch::Sender::new(false);
        let mut tasks = JoinSet::new();
        let outcome = self.work(&halt, &mut tasks).await;
        halt.send_replace(true);
        let mut failure = None;
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = joined(ended) {
                failure.get_or_insert(error);
            }
        }
        let ended = outcome?;
        if let Some(error) = failure {
            return Err(error);
        }
        self.tell(0, None).await?;
        Ok(ended)
    }

    async fn work(
        &mut self,
        halt: &watch::Sender<bool>,
        tasks: &mut JoinSet<Result<Came, Error>>,
    ) -> Result<Ended, Error> {
        let is_shared = self.engine.store.lease().is_some();
        let look = if is_shared { LOOK_EVERY_SHARED } else { LOOK_EVERY };
        // The same goes for money: what is under way may cost less than it might. Those who were told to come back another day, while others were in front, may have been told too early: what is in
        // front may be counted already. So the line empties, and one asks alone before the job is paused.
        let (mut empties, mut alone) = (false, std::mem::take(&mut self.probes));
        loop {
            let mut later = None;
            // After a useless answer the others are waited for: if they are useless too, the job is paused.
            let is_careful = alone || self.streak.is_on() || self.undecided.is_on();
            let most = if is_careful { 1 } else { self.engine.options.parallel };
            let held = self.undecided.until(self.engine.clock.now());
            while held.is_none() && !empties && tasks.len() < most && !self.stop.is_set() {
                match self.claim().await? {
                    Next::Chunk(claim) => {
                        let (engine, book) = (Arc::clone(self.engine), Arc::clone(&self.book));
                        let attempt = Attempt { engine, book, claim, halt: halt.subscribe() };
                        tasks.spawn(attempt.run());
                    }
                    Next::Later(at) => {
                        later = Some(at);
                        break;
                    }
                    Next::Nothing if tasks.is_empty() => return self.over().await,
                    Next::Nothing => break,
                    Next::Halted(state) => return Ok(halted(state)),
                }
            }
            if self.stop.is_set() {
                return Ok(Ended::Stopped);
            }
            if empties && tasks.is_empty() {
                (empties, alone) = (false, true);
                continue;
            }
            self.tell(tasks.len(), None).await?;
            let now = self.engine.clock.now();
            // A full house looks up too, to tell how far others are.
            let alarm = later.or(held).unwrap_or(Timestamp::MAX).min(now + look);
            let came = tokio::select! {
                biased;
                () = self.stop.wait() => return Ok(Ended::Stopped),
                Some(ended) = tasks.join_next() => joined(ended)?,
                () = self.engine.clock.sleep_until(alarm) => continue,
            };
            if !matches!(came, Came::Undecided(_) | Came::Poor(_)) {
                self.undecided.end();
            }
            match came {
                Came::Undecided(why) => {
                    // A store that hangs fails an ask late.
                    self.retry = Some((self.undecided.add(self.engine.clock.now()), why));
                }
                Came::On => (alone, self.retry) = (false, None),
                Came::Useful => {
                    (alone, self.retry) = (false, None);
                    self.streak.end();
                }
                Came::Useless(useless) => {
                    (alone, self.retry) = (false, None);
                    if let Some(why) = self.streak.add(useless, self.book.planned()) {
                        return Ok(paused(None, why));
                    }
                }
                Came::Again(at, why) => (alone, self.retry) = (false, Some((at, why))),
                Came::Full(at, why) if alone => return Ok(paused(Some(at), why)),
                Came::Poor(Poor { is_contended: true, .. }) if alone => {
                    tokio::select! {
                        biased;
                        () = self.stop.wait() => return Ok(Ended::Stopped),
                        () = self.engine.clock.sleep_until(now + look) => {}
                    }
                }
                Came::Poor(Poor { why, raise_to, .. }) if alone => {
                    let raise_to = Some(raise_to);
                    return Ok(Ended::Paused { resume_at: None, why, raise_to });
                }
                Came::Full(..) | Came::Poor(..) => empties = true,
                Came::Pause(resume_at, why) => return Ok(paused(resume_at, why)),
            }
        }
    }

    pub(super) async fn claim(&self) -> Result<Next, Error> {
        let (store, options) = (&self.engine.store, &self.engine.options);
        store.claim(self.id, &options.worker, self.engine.clock.now()).await
    }

    /// Every chunk is done or was given up.
    pub(super) async fn over(&self) -> Result<Ended, Error> {
        let counts = self.engine.store.counts(self.id).await?;
        let (state, ended) = match counts.failed {
            0 => (JobState::Completed, Ended::Completed),
            _ => (JobState::CompletedWithErrors, Ended::CompletedWithErrors),
        };
        let job = self.engine.job(self.id).await?;
        if !self.set_state(&state).await? {
            return Ok(Ended::Cancelled);
        }
        // Of several workers that find the job over, the first one counts it.
        if let Some(meters) = self.engine.meters()
            && !job.state.is_over()
        {
            let began = job.started_at.unwrap_or(self.began_at);
            meters.ended(self.engine.clock.now().since(began), 0 < counts.failed);
        }
        Ok(ended)
    }

    async fn tell(
        &self,
        under_way: usize,
        paused: Option<(&str, Option<Timestamp>)>,
    ) -> Result<(), Error> {
        let counts = self.engine.store.counts(self.id).await?;
        self.engine.progress.send_replace(Progress {
            job: self.id.to_owned(),
            counts,
            under_way,
            in_line: self.engine.throttle.waiting(),
            began_at: self.began_at,
            retry: self.retry.as_ref().map(|(_, why)| why.clone()),
            retry_at: self.retry.as_ref().map(|(at, _)| *at),
            paused: paused.map(|(why, _)| why.to_owned()),
            resume_at: paused.and_then(|(_, resume_at)| resume_at),
        });
        Ok(())
    }
}

const fn paused(resume_at: Option<Timestamp>, why: String) -> Ended {
    Ended::Paused { resume_at, why, raise_to: None }
}

pub(super) fn halted(state: JobState) -> Ended {
    match state {
        JobState::Cancelled => Ended::Cancelled,
        JobState::Completed => Ended::Completed,
        JobState::CompletedWithErrors => Ended::CompletedWithErrors,
        JobState::Paused { resume_at, why } => paused(resume_at, why),
        JobState::Planned | JobState::Running => Ended::Stopped,
    }
}

fn joined(ended: Result<Result<Came, Error>, tokio::task::JoinError>) -> Result<Came, Error> {
    ended.map_err(|error| {
        Error::store(format!("an attempt at a chunk ended unexpectedly: {error}"))
    })?
}
