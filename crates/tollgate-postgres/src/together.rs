//! Asks that find every connection busy travel together on the next one that is free.
//!
//! Most of what a decision costs is not the decision: a round trip, a transaction, a commit that waits for the disk, and
//! functions that the server sets up again in every transaction. While there is a free connection an ask pays for these
//! alone and waits for nobody. When there is none, the asks that wait anyway share one statement, so a gate gets
//! cheaper per ask the more it is asked.
//!
//! ```text
//! ask ──┬─ free connection ──▶ spend()
//!       └─ none ──▶ line ──▶ the next connection takes up to ASKS_TOGETHER_MAX ──▶ spend_all()
//!                                      └─ the server refused it: nothing happened ──▶ spend() for each alone
//! ```
//! The statement is one transaction. Its asks are in order of their rows, so two of them never wait for each other in a
//! circle, and it waits only briefly for a row that somebody else holds: then each ask goes alone, and only those on that
//! row wait on. An ask whose caller has gone is not sent.

use std::collections::VecDeque;
use std::error::Error as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio_postgres::types::Type;
use tollgate::{Error, ErrorKind, Span};

use crate::call::Spend;
use crate::pool::{Pool, Question, Room};

/// The most asks that share one statement.
pub const ASKS_TOGETHER_MAX: usize = 32;

/// How long a statement with several asks waits for a row; then they go alone.
pub const TOGETHER_LOCK_TIMEOUT: Span = Span::from_millis(100);

/// Sends asks, alone or together.
#[derive(Debug)]
pub(crate) struct Together {
    pool: Arc<Pool>,
    one: Question,
    all: Question,
    /// Said with each call where a session may be another each time; otherwise the session knows it.
    lock_timeout: Option<String>,
    line: Mutex<Line>,
}

#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<Waiting>,
    workers: usize,
}

#[derive(Debug)]
struct Waiting {
    spend: Spend,
    reply: oneshot::Sender<Result<Vec<i64>, Error>>,
}

impl Together {
    pub(crate) fn new(
        pool: Arc<Pool>,
        one: Question,
        all: Question,
        lock_timeout: Option<String>,
    ) -> Self {
        Self { pool, one, all, lock_timeout, line: Mutex::default() }
    }

    /// What the function `spend` answers.
    pub(crate) async fn spend(self: &Arc<Self>, spend: Spend) -> Result<Vec<i64>, Error> {
        if let Some(room) = self.pool.free_room() {
            return self.alone(&room, &spend).await;
        }
        let (reply, answer) = oneshot::channel();
        if self.wait(Waiting { spend, reply }) {
            tokio::spawn(Worker(Some(Arc::clone(self))).work());
        }
        let lost = |_| Error::new(ErrorKind::Unavailable, "postgres: the runtime is shutting down");
        self.pool.in_time(async { answer.await.map_err(lost)? }).await
    }

    /// Joins the line; whether it needs another worker.
    fn wait(&self, waiting: Waiting) -> bool {
        let mut line = self.line();
        line.waiting.push_back(waiting);
        let needed = line.workers < self.pool.options().connections_max;
        line.workers += usize::from(needed);
        needed
    }

    async fn alone(&self, room: &Room<'_>, spend: &Spend) -> Result<Vec<i64>, Error> {
        let parameters = spend.parameters(&self.lock_timeout);
        let rows = self.pool.ask_in(room, &self.one, &parameters).await?;
        rows.first().map(|row| row.get(0)).ok_or_else(silent)
    }

    async fn answer(&self, room: &Room<'_>, mut asks: Vec<Waiting>) {
        if asks.len() > 1 {
            asks.sort_by(|one, other| one.spend.row().cmp(&other.spend.row()));
            match self.together(room, &asks).await {
                Ok(answers) => {
                    for (ask, answer) in asks.into_iter().zip(answers) {
                        // Nobody listens where the caller has gone meanwhile.
                        let _ = ask.reply.send(Ok(answer));
                    }
                    return;
                }
                Err(error) if !was_refused(&error) => {
                    for ask in asks {
                        let _ = ask.reply.send(Err(error.clone()));
                    }
                    return;
                }
                Err(_) => {}
            }
        }
        for ask in asks {
            if !ask.reply.is_closed() {
                let answer = self.alone(room, &ask.spend).await;
                let _ = ask.reply.send(answer);
            }
        }
    }

    async fn together(&self, room: &Room<'_>, asks: &[Waiting]) -> Result<Vec<Vec<i64>>, Error> {
        let all: Vec<&Spend> = asks.iter().map(|ask| &ask.spend).collect();
        let lengths = |of: fn(&Spend) -> usize| -> Vec<i32> {
            all.iter().map(|spend| i32::try_from(of(spend)).unwrap_or(i32::MAX)).collect()
        };
        let texts =
            |of: fn(&Spend) -> &str| -> Vec<&str> { all.iter().map(|one| of(one)).collect() };
        let timeout = self.pool.options().lock_timeout.min(TOGETHER_LOCK_TIMEOUT);
        let numbers: Vec<i64> = all.iter().flat_map(|one| &one.numbers).copied().collect();
        let amounts: Vec<i64> = all.iter().flat_map(|one| &one.amounts).copied().collect();
        let shapes: Vec<&[u8]> = all.iter().map(|one| &*one.shape).collect();
        let refundable: Vec<bool> = all.iter().map(|one| one.refundable).collect();
        let ids: Vec<Option<&str>> = all.iter().map(|one| one.id.as_deref()).collect();
        let digests: Vec<i64> = all.iter().map(|one| one.digest).collect();
        let ttls: Vec<i64> = all.iter().map(|one| one.id_ttl).collect();
        let nows: Vec<Option<i64>> = all.iter().map(|one| one.now).collect();
        let decide: Vec<bool> = all.iter().map(|one| one.decide).collect();
        let rows = self
            .pool
            .ask_in(
                room,
                &self.all,
                &[
                    (&texts(|one| &one.policy), Type::TEXT_ARRAY),
                    (&texts(|one| &one.subject), Type::TEXT_ARRAY),
                    (&shapes, Type::BYTEA_ARRAY),
                    (&numbers, Type::INT8_ARRAY),
                    (&lengths(|one| one.numbers.len()), Type::INT4_ARRAY),
                    (&amounts, Type::INT8_ARRAY),
                    (&lengths(|one| one.amounts.len()), Type::INT4_ARRAY),
                    (&refundable, Type::BOOL_ARRAY),
                    (&ids, Type::TEXT_ARRAY),
                    (&digests, Type::INT8_ARRAY),
                    (&ttls, Type::INT8_ARRAY),
                    (&nows, Type::INT8_ARRAY),
                    (&decide, Type::BOOL_ARRAY),
                    (&format!("{}ms", timeout.as_millis_ceil().max(1)), Type::TEXT),
                ],
            )
            .await?;
        if rows.len() != asks.len() {
            return Err(silent());
        }
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes asks from the line until it is empty. Counted in the line, also when its runtime ends before it does.
struct Worker(Option<Arc<Together>>);

impl Worker {
    async fn work(mut self) {
        while let Some(together) = self.0.clone() {
            let Ok(room) = together.pool.room().await else { return };
            let asks = self.take(&together);
            if !asks.is_empty() {
                together.answer(&room, asks).await;
            }
        }
    }

    /// The next asks whose callers are there; with none left, this worker is one no more.
    fn take(&mut self, together: &Together) -> Vec<Waiting> {
        let mut line = together.line();
        let count = line.waiting.len().min(ASKS_TOGETHER_MAX);
        if count == 0 {
            line.workers -= 1;
            self.0 = None;
        }
        line.waiting.drain(..count).filter(|ask| !ask.reply.is_closed()).collect()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(together) = &self.0 {
            together.line().workers -= 1;
        }
    }
}

/// Whether the server answered with an error that undid the whole statement.
fn was_refused(error: &Error) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<tokio_postgres::Error>());
    let refusal = source.and_then(tokio_postgres::Error::as_db_error);
    refusal.is_some_and(|refusal| refusal.severity() == "ERROR")
}

fn silent() -> Error {
    Error::new(ErrorKind::Corrupt, "postgres: a statement answered too few rows")
}
