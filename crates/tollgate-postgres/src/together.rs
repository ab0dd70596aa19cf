//! Asks that find every connection busy travel together on the next one that is free.
//!
//! Most of what a decision costs is not the decision: a round trip, a transaction, a commit that waits for the disk, and
//! functions that the server sets up again in every transaction. While there is a free connection an ask pays for these
//! alone and waits for nobody. When there is none, the asks that wait anyway share one statement, so a gate gets
//! cheaper per ask the more it is asked.
//!
//! ```text
//! ask ──┬─ free connection ──▶ spend()
//!       └─ none, or its row is busy ──▶ line ──▶ the next connection takes up to ASKS_TOGETHER_MAX ──▶ spend_all()
//!                ▲                                             ├─ a row is locked ──▶ row by row, each in a statement
//!                └─────────────────────────────────────────────┘
//!                                                              └─ refused otherwise: nothing happened ──▶ spend() for each
//! ```
//! The statement is one transaction. Its asks are in order of their rows, so two of them never wait for each other in a
//! circle, and it waits only briefly for a row that somebody else holds: then its asks go back to the line and each row
//! gets a statement of its own, so that only those on that row wait on. A row holds at most a quarter of the connections,
//! and the other asks on it wait in the line without one. An ask whose caller has gone is not sent.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_postgres::types::Type;
use tollgate::{Error, ErrorKind, Span};

use crate::call::Spend;
use crate::error::{is_locked, refusal};
use crate::pool::{Pool, Question, Room};
use crate::turns::{RowHash, RowHasher, per_row};

/// The most asks that share one statement.
pub const ASKS_TOGETHER_MAX: usize = 32;

/// How long a statement on several rows waits for one of them; then each row gets a statement of its own.
pub const TOGETHER_LOCK_TIMEOUT: Span = Span::from_millis(100);

/// Sends asks, alone or together.
#[derive(Debug)]
pub(crate) struct Together {
    pool: Arc<Pool>,
    one: Question,
    all: Question,
    /// Said with each call where a session may be another each time; otherwise the session knows it.
    lock_timeout: Option<String>,
    hasher: RowHasher,
    line: Mutex<Line>,
}

#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<Waiting>,
    workers: usize,
    /// The rows that statements are under way on, or that asks wait for.
    rows: HashMap<RowHash, Busy>,
}

/// A row that is being asked for.
#[derive(Debug, Default)]
struct Busy {
    statements: usize,
    waiting: usize,
    /// Whether the last of them found it locked.
    is_locked: bool,
}

#[derive(Debug)]
struct Waiting {
    spend: Spend,
    row: RowHash,
    /// Whether its row may be locked, so that it must not hold others up.
    apart: bool,
    reply: oneshot::Sender<Result<Vec<i64>, Error>>,
}

/// Which asks fit into a statement.
enum Wanted {
    Any,
    NotApart,
    Row(RowHash),
}

impl Line {
    /// Counts a statement on `row`, unless it has as many as it may.
    fn enter(&mut self, row: RowHash, most: usize) -> bool {
        let busy = self.rows.entry(row).or_default();
        let enters = busy.statements < most;
        busy.statements += usize::from(enters);
        enters
    }

    /// The same, if nobody else asks for `row`. Others would wait for the row in the database anyway, so they wait in the
    /// line, where they get a statement and a commit together.
    fn enter_first(&mut self, row: RowHash) -> bool {
        !self.rows.contains_key(&row) && self.enter(row, 1)
    }

    fn leave(&mut self, row: RowHash) {
        self.update(row, |busy| busy.statements = busy.statements.saturating_sub(1));
    }

    /// Puts `ask` behind the others.
    fn join(&mut self, ask: Waiting) {
        self.rows.entry(ask.row).or_default().waiting += 1;
        self.waiting.push_back(ask);
    }

    /// Puts `ask` in front of the others.
    fn rejoin(&mut self, ask: Waiting) {
        self.rows.entry(ask.row).or_default().waiting += 1;
        self.waiting.push_front(ask);
    }

    /// The next ask, which waits no more.
    fn next(&mut self) -> Option<Waiting> {
        let ask = self.waiting.pop_front()?;
        self.update(ask.row, |busy| busy.waiting = busy.waiting.saturating_sub(1));
        Some(ask)
    }

    fn update(&mut self, row: RowHash, change: impl FnOnce(&mut Busy)) {
        if let Some(busy) = self.rows.get_mut(&row) {
            change(busy);
            if busy.statements == 0 && busy.waiting == 0 {
                self.rows.remove(&row);
            }
        }
    }

    fn is_locked(&self, row: RowHash) -> bool {
        self.rows.get(&row).is_some_and(|busy| busy.is_locked)
    }

    /// The next asks for one statement, on rows that may have another one: all of one row that may be locked, or of any
    /// others. Those whose callers have gone are dropped.
    fn take(&mut self, most: usize) -> (Vec<Waiting>, Vec<RowHash>) {
        let (mut taken, mut rows, mut left) = (Vec::new(), Vec::new(), Vec::new());
        let mut wanted = Wanted::Any;
        while taken.len() < ASKS_TOGETHER_MAX
            && let Some(ask) = self.next()
        {
            if ask.reply.is_closed() {
                continue;
            }
            let is_apart = ask.apart || self.is_locked(ask.row);
            let fits = match wanted {
                Wanted::Any => true,
                Wanted::NotApart => !is_apart,
                Wanted::Row(row) => row == ask.row,
            };
            let is_known = rows.contains(&ask.row);
            if !fits || !(is_known || self.enter(ask.row, most)) {
                left.push(ask);
                continue;
            }
            if !is_known {
                rows.push(ask.row);
            }
            if let Wanted::Any = wanted {
                wanted = if is_apart { Wanted::Row(ask.row) } else { Wanted::NotApart };
            }
            taken.push(ask);
        }
        left.into_iter().rev().for_each(|ask| self.rejoin(ask));
        (taken, rows)
    }
}

impl Together {
    pub(crate) fn new(
        pool: Arc<Pool>,
        one: Question,
        all: Question,
        lock_timeout: Option<String>,
    ) -> Self {
        let (hasher, line) = (RowHasher::default(), Mutex::default());
        Self { pool, one, all, lock_timeout, hasher, line }
    }

    /// What the function `spend` answers.
    pub(crate) async fn spend(self: &Arc<Self>, spend: Spend) -> Result<Vec<i64>, Error> {
        let row = self.hasher.hash(spend.row());
        if let Some(room) = self.pool.free_room()
            && let Some(_under_way) = self.enter_first(row)
        {
            let answer = self.alone(&room, &spend).await;
            self.learn(row, answer.as_ref().err());
            return answer;
        }
        let (reply, answer) = oneshot::channel();
        self.line().join(Waiting { spend, row, apart: false, reply });
        self.wake();
        let lost = |_| Error::new(ErrorKind::Unavailable, "postgres: the runtime is shutting down");
        self.pool.in_time(async { answer.await.map_err(lost)? }).await
    }

    fn enter_first(self: &Arc<Self>, row: RowHash) -> Option<UnderWay> {
        let entered = self.line().enter_first(row);
        entered.then(|| UnderWay { together: Arc::clone(self), rows: vec![row] })
    }

    fn per_row(&self) -> usize {
        per_row(self.pool.options().connections_max)
    }

    /// Starts a worker if somebody waits and there is not one for each connection.
    fn wake(self: &Arc<Self>) {
        let Ok(runtime) = Handle::try_current() else { return };
        let mut line = self.line();
        let needed = !line.waiting.is_empty() && line.workers < self.pool.options().connections_max;
        line.workers += usize::from(needed);
        drop(line);
        if needed {
            runtime.spawn(Worker(Some(Arc::clone(self))).work());
        }
    }

    /// Remembers whether a statement on `row` alone found it locked.
    fn learn(&self, row: RowHash, failed: Option<&Error>) {
        if let Some(busy) = self.line().rows.get_mut(&row) {
            busy.is_locked = failed.is_some_and(is_locked);
        }
    }

    async fn alone(&self, room: &Room<'_>, spend: &Spend) -> Result<Vec<i64>, Error> {
        let parameters = spend.parameters(&self.lock_timeout);
        let rows = self.pool.ask_in(room, &self.one, &parameters).await?;
        rows.first().map(|row| row.get(0)).ok_or_else(silent)
    }

    async fn answer(&self, room: &Room<'_>, mut asks: Vec<Waiting>, rows: &[RowHash]) {
        let one_row = if let [row] = rows { Some(*row) } else { None };
        if asks.len() > 1 {
            asks.sort_by(|one, other| one.spend.row().cmp(&other.spend.row()));
            let most = self.pool.options().lock_timeout;
            let timeout = if one_row.is_some() { most } else { most.min(TOGETHER_LOCK_TIMEOUT) };
            let answer = self.together(room, &asks, timeout).await;
            if let Some(row) = one_row {
                self.learn(row, answer.as_ref().err());
            }
            match answer {
                Ok(answers) => {
                    for (ask, answer) in asks.into_iter().zip(answers) {
                        // Nobody listens where the caller has gone meanwhile.
                        let _ = ask.reply.send(Ok(answer));
                    }
                    return;
                }
                Err(error) if is_locked(&error) && one_row.is_none() => {
                    let mut line = self.line();
                    for ask in asks.into_iter().rev() {
                        line.rejoin(Waiting { apart: true, ..ask });
                    }
                    return;
                }
                Err(error) if is_locked(&error) || refusal(&error).is_none() => {
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
                self.learn(ask.row, answer.as_ref().err());
                let _ = ask.reply.send(answer);
            }
        }
    }

    async fn together(
        &self,
        room: &Room<'_>,
        asks: &[Waiting],
        timeout: Span,
    ) -> Result<Vec<Vec<i64>>, Error> {
        let all: Vec<&Spend> = asks.iter().map(|ask| &ask.spend).collect();
        let lengths = |of: fn(&Spend) -> usize| -> Vec<i32> {
            all.iter().map(|spend| i32::try_from(of(spend)).unwrap_or(i32::MAX)).collect()
        };
        let texts =
            |of: fn(&Spend) -> &str| -> Vec<&str> { all.iter().map(|one| of(one)).collect() };
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

/// Rows that a statement is under way on, until it is dropped.
struct UnderWay {
    together: Arc<Together>,
    rows: Vec<RowHash>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut line = self.together.line();
        self.rows.iter().for_each(|row| line.leave(*row));
        drop(line);
        // Those on the same rows may go on.
        self.together.wake();
    }
}

/// Takes asks from the line until none can be sent. Counted in the line, also when its runtime ends before it does.
struct Worker(Option<Arc<Together>>);

impl Worker {
    async fn work(mut self) {
        while let Some(together) = self.0.clone() {
            let Ok(room) = together.pool.room().await else { return };
            let Some((asks, under_way)) = self.take(&together) else { return };
            together.answer(&room, asks, &under_way.rows).await;
        }
    }

    /// The next asks; with none that can be sent, this worker is one no more.
    fn take(&mut self, together: &Arc<Together>) -> Option<(Vec<Waiting>, UnderWay)> {
        let mut line = together.line();
        let (asks, rows) = line.take(together.per_row());
        if asks.is_empty() {
            line.workers -= 1;
            self.0 = None;
            return None;
        }
        drop(line);
        Some((asks, UnderWay { together: Arc::clone(together), rows }))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(together) = &self.0 {
            together.line().workers -= 1;
        }
    }
}

fn silent() -> Error {
    Error::new(ErrorKind::Corrupt, "postgres: a statement answered too few rows")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_comes_back_to_a_busy_row_joins_the_line() {
        const ROW: RowHash = 7;
        let mut line = Line::default();
        assert!(line.enter_first(ROW));
        assert!(!line.enter_first(ROW), "a statement is under way");
        line.rows.entry(ROW).or_default().waiting = 1;
        line.leave(ROW);
        assert!(!line.enter_first(ROW), "another ask waits");
        line.update(ROW, |busy| busy.waiting = 0);
        assert!(line.enter_first(ROW));
    }
}
