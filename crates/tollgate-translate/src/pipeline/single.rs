//! One chunk of a job, for engines that call a function for each, such as a Map of Step Functions.

use std::sync::Arc;

use tokio::sync::watch;
use tollgate::{Span, Timestamp};

use super::attempt::{Attempt, Came};
use super::run::{Ended, Rounds, halted};
use super::{Pipeline, Stop};
use crate::error::Error;
use crate::job::{JobState, Next};

/// What became of a single chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Single {
    /// A chunk was attempted; there may be more.
    Worked,
    /// Nothing can be done before this time: other workers have the rest, or it is to be tried again later.
    Later(Timestamp),
    /// The job is over, paused or cancelled.
    Ended(Ended),
}

impl Pipeline {
    /// Attempts one chunk of a job and returns. Needs a store with leases, since a function that dies must not keep its
    /// chunk; the lease of one that lives is renewed for as long as the attempt takes.
    ///
    /// # Errors
    /// If there is no such job, its store has no leases, or the store fails.
    pub async fn run_one(&self, id: &str) -> Result<Single, Error> {
        let engine = &self.0;
        let Some(lease) = engine.store.lease() else {
            return Err(Error::invalid(
                "single chunks need a store that is shared, such as PostgreSQL; run the job instead",
            ));
        };
        let book = Arc::new(engine.open(id).await?);
        let (stop, began_at) = (Stop::never(), engine.clock.now());
        let rounds = Rounds { engine, id, book, stop, began_at };
        let claim = match rounds.claim().await? {
            Next::Chunk(claim) => claim,
            Next::Later(at) => return Ok(Single::Later(at)),
            Next::Nothing => return Ok(Single::Ended(rounds.over().await?)),
            Next::Halted(state) => return Ok(Single::Ended(halted(state))),
        };
        let halt = watch::Sender::new(false);
        let book = Arc::clone(&rounds.book);
        let attempt = Attempt { engine: Arc::clone(engine), book, claim, halt: halt.subscribe() };
        let (resume_at, why) = match kept(&rounds, lease, attempt).await? {
            Came::On => return Ok(Single::Worked),
            Came::Full(at, why) => (Some(at), why),
            Came::Pause(resume_at, why) => (resume_at, why),
        };
        rounds.set_state(&JobState::Paused { resume_at, why: why.clone() }).await?;
        Ok(Single::Ended(Ended::Paused { resume_at, why }))
    }
}

/// The attempt, with its claim kept alive.
async fn kept(rounds: &Rounds<'_>, lease: Span, attempt: Attempt) -> Result<Came, Error> {
    let clock = &rounds.engine.clock;
    let attempt = attempt.run();
    tokio::pin!(attempt);
    loop {
        let due = clock.now() + Span::from_micros(lease.as_micros() / 3);
        tokio::select! {
            biased;
            came = &mut attempt => return came,
            () = clock.sleep_until(due) => {
                // A store that cannot be reached for a moment is no reason to drop a call that is paid.
                drop(rounds.look_up().await);
            }
        }
    }
}
