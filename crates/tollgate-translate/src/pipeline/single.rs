//! One chunk of a job, for engines that call a function for each, such as a Map of Step Functions.

use std::sync::Arc;

use tokio::sync::watch;
use tollgate::{Span, Timestamp};

use super::alike::{self, Streak};
use super::attempt::{Attempt, Came, Poor};
use super::book::Book;
use super::run::{Ended, LOOK_EVERY_SHARED, Rounds, halted};
use super::undecided::Undecided;
use super::{Pipeline, Stop};
use crate::error::Error;
use crate::job::Next;

/// How long to wait where the gate did not decide.
const ASK_AGAIN: Span = Span::from_secs(10);

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
    /// chunk.
    ///
    /// # Errors
    /// If there is no such job, its store has no leases, or the store fails.
    pub async fn run_one(&self, id: &str) -> Result<Single, Error> {
        let engine = &self.0;
        if engine.store.lease().is_none() {
            return Err(Error::invalid(
                "single chunks need a store that is shared, such as PostgreSQL or DynamoDB; run the job instead",
            ));
        }
        let book = Arc::new(Book::of(&*engine.store, id).await?);
        engine.take_up(&book).await?;
        let (stop, began_at) = (Stop::never(), engine.clock.now());
        let (streak, retry, undecided) = (Streak::default(), None, Undecided::default());
        let rounds =
            Rounds { engine, id, book, stop, began_at, probes: false, retry, streak, undecided };
        let claim = match rounds.claim().await? {
            Next::Chunk(claim) => claim,
            Next::Later(at) => return Ok(Single::Later(at)),
            Next::Nothing => return Ok(Single::Ended(rounds.over().await?)),
            Next::Halted(state) => return Ok(Single::Ended(halted(state))),
        };
        let halt = watch::Sender::new(false);
        let book = Arc::clone(&rounds.book);
        let attempt = Attempt { engine: Arc::clone(engine), book, claim, halt: halt.subscribe() };
        let (resume_at, why, raise_to) = match attempt.run().await? {
            Came::On | Came::Useful | Came::Again(..) => return Ok(Single::Worked),
            Came::Useless(useless) => {
                let chunks = rounds.book.planned();
                match alike::pauses(&*engine.store, id, &useless, chunks).await? {
                    Some(why) => (None, why, None),
                    None => return Ok(Single::Worked),
                }
            }
            Came::Full(at, why) => (Some(at), why, None),
            Came::Undecided(_) => return Ok(Single::Later(engine.clock.now() + ASK_AGAIN)),
            Came::Poor(Poor { is_contended: true, .. }) => {
                return Ok(Single::Later(engine.clock.now() + LOOK_EVERY_SHARED));
            }
            Came::Poor(Poor { why, raise_to, .. }) => (None, why, Some(raise_to)),
            Came::Pause(resume_at, why) => (resume_at, why, None),
        };
        rounds.pause(resume_at, &why).await?;
        Ok(Single::Ended(Ended::Paused { resume_at, why, raise_to }))
    }
}
