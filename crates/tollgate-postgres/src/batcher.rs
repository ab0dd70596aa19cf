//! Batches asks while every connection is busy.
//!
//! Most of the cost of a decision is overhead: a round trip, a transaction, a synced commit, and the set-up of functions per
//! transaction. With a free connection an ask runs alone at once. Otherwise the waiting asks share one statement, so the cost
//! per ask falls with the load.
//!
//! ```text
//! ask ──┬─ free connection ──▶ spend()
//!       └─ none, or its row is busy ──▶ queue ──▶ the next connection takes up to BATCH_ASKS_MAX ──▶ spend_all()
//!                ▲                                             ├─ a row is locked ──▶ row by row, each in a statement
//!                └─────────────────────────────────────────────┘
//!                                                              └─ any other refusal: no effect ──▶ spend() for each
//! ```
//! The statement is one transaction. Its asks are in the order of their rows, which prevents deadlocks, and it waits only
//! briefly for a locked row: then its asks return to the queue and each row gets its own statement, so that only asks on the
//! locked row keep waiting. A row holds at most a quarter of the connections; further asks on it wait in the queue. An ask
//! whose caller is gone is not sent.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_postgres::types::Type;
use tollgate::{Error, ErrorKind, Span};

use crate::call::Spend;
use crate::error::{is_locked, refusal};
use crate::pool::{Pool, Query, Room};
use crate::row_limiter::{RowHash, RowHasher, per_row};

/// The most asks in one statement.
pub const BATCH_ASKS_MAX: usize = 32;

/// How long a batch waits for a locked row before each row gets its own statement.
pub const BATCH_LOCK_TIMEOUT: Span = Span::from_millis(100);

/// Sends asks, alone or in batches.
#[derive(Debug)]
pub(crate) struct Batcher {
    pool: Arc<Pool>,
    one: Query,
    all: Query,
    /// Sent with each call if sessions change between transactions; otherwise it is set on the session.
    lock_timeout: Option<String>,
    hasher: RowHasher,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<QueuedAsk>,
    workers: usize,
    /// Rows with running statements or waiting asks.
    rows: HashMap<RowHash, Busy>,
}

/// A row in use.
#[derive(Debug, Default)]
struct Busy {
    statements: usize,
    waiting: usize,
    /// Whether the last statement found it locked.
    is_locked: bool,
}

#[derive(Debug)]
struct QueuedAsk {
    spend: Spend,
    row: RowHash,
    /// Whether its row may be locked, so that it must not delay others.
    apart: bool,
    reply: oneshot::Sender<Result<Vec<i64>, Error>>,
}

/// The asks that fit into a statement.
enum Wanted {
    Any,
    NotApart,
    Row(RowHash),
}

impl Queue {
    /// Counts a statement on `row`, unless it has `most` already.
    fn enter(&mut self, row: RowHash, most: usize) -> bool {
        let busy = self.rows.entry(row).or_default();
        let enters = busy.statements < most;
        busy.statements += usize::from(enters);
        enters
    }

    /// Counts the first statement on `row`. Later asks would wait for the row in the database anyway, so they are queued and
    /// share a statement and a commit.
    fn enter_first(&mut self, row: RowHash) -> bool {
        !self.rows.contains_key(&row) && self.enter(row, 1)
    }

    fn leave(&mut self, row: RowHash) {
        self.update(row, |busy| busy.statements = busy.statements.saturating_sub(1));
    }

    /// Appends `ask`.
    fn join(&mut self, ask: QueuedAsk) {
        self.rows.entry(ask.row).or_default().waiting += 1;
        self.waiting.push_back(ask);
    }

    /// Prepends `ask`.
    fn rejoin(&mut self, ask: QueuedAsk) {
        self.rows.entry(ask.row).or_default().waiting += 1;
        self.waiting.push_front(ask);
    }

    /// Takes the next ask.
    fn next(&mut self) -> Option<QueuedAsk> {
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
    fn take(&mut self, most: usize) -> (Vec<QueuedAsk>, Vec<RowHash>) {
        let (mut taken, mut rows, mut left) = (Vec::new(), Vec::new(), Vec::new());
        let mut wanted = Wanted::Any;
        while taken.len() < BATCH_ASKS_MAX
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

impl Batcher {
    pub(crate) fn new(
        pool: Arc<Pool>,
        one: Query,
        all: Query,
        lock_timeout: Option<String>,
    ) -> Self {
        let (hasher, queue) = (RowHasher::default(), Mutex::default());
        Self { pool, one, all, lock_timeout, hasher, queue }
    }

    /// Returns the reply of the function `spend`.
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
        self.queue().join(QueuedAsk { spend, row, apart: false, reply });
        self.wake();
        let lost = |_| Error::new(ErrorKind::Unavailable, "postgres: the runtime is shutting down");
        self.pool.in_time(async { answer.await.map_err(lost)? }).await
    }

    fn enter_first(self: &Arc<Self>, row: RowHash) -> Option<UnderWay> {
        let entered = self.queue().enter_first(row);
        entered.then(|| UnderWay { batcher: Arc::clone(self), rows: vec![row] })
    }

    fn per_row(&self) -> usize {
        per_row(self.pool.options().connections_max)
    }

    /// Starts a worker if asks wait and there are fewer workers than connections.
    fn wake(self: &Arc<Self>) {
        let Ok(runtime) = Handle::try_current() else { return };
        let mut queue = self.queue();
        let needed =
            !queue.waiting.is_empty() && queue.workers < self.pool.options().connections_max;
        queue.workers += usize::from(needed);
        drop(queue);
        if needed {
            runtime.spawn(Worker(Some(Arc::clone(self))).work());
        }
    }

    /// Records whether a statement on `row` alone found it locked.
    fn learn(&self, row: RowHash, failed: Option<&Error>) {
        if let Some(busy) = self.queue().rows.get_mut(&row) {
            busy.is_locked = failed.is_some_and(is_locked);
        }
    }

    async fn alone(&self, room: &Room<'_>, spend: &Spend) -> Result<Vec<i64>, Error> {
        let parameters = spend.parameters(&self.lock_timeout);
        let rows = self.pool.run_in(room, &self.one, &parameters).await?;
        rows.first().map(|row| row.get(0)).ok_or_else(silent)
    }

    async fn answer(&self, room: &Room<'_>, mut asks: Vec<QueuedAsk>, rows: &[RowHash]) {
        let one_row = if let [row] = rows { Some(*row) } else { None };
        if asks.len() > 1 {
            asks.sort_by(|one, other| one.spend.row().cmp(&other.spend.row()));
            let most = self.pool.options().lock_timeout;
            let timeout = if one_row.is_some() { most } else { most.min(BATCH_LOCK_TIMEOUT) };
            let answer = self.batcher(room, &asks, timeout).await;
            if let Some(row) = one_row {
                self.learn(row, answer.as_ref().err());
            }
            match answer {
                Ok(answers) => {
                    for (ask, answer) in asks.into_iter().zip(answers) {
                        // The caller may be gone.
                        let _ = ask.reply.send(Ok(answer));
                    }
                    return;
                }
                Err(error) if is_locked(&error) && one_row.is_none() => {
                    let mut queue = self.queue();
                    for ask in asks.into_iter().rev() {
                        queue.rejoin(QueuedAsk { apart: true, ..ask });
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

    async fn batcher(
        &self,
        room: &Room<'_>,
        asks: &[QueuedAsk],
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
            .run_in(
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

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rows of a running statement, until it is dropped.
struct UnderWay {
    batcher: Arc<Batcher>,
    rows: Vec<RowHash>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut queue = self.batcher.queue();
        self.rows.iter().for_each(|row| queue.leave(*row));
        drop(queue);
        // Asks on the same rows may continue.
        self.batcher.wake();
    }
}

/// Sends queued asks until none can be sent. Counted in the queue, also if its runtime ends first.
struct Worker(Option<Arc<Batcher>>);

impl Worker {
    async fn work(mut self) {
        while let Some(batcher) = self.0.clone() {
            let Ok(room) = batcher.pool.room().await else { return };
            let Some((asks, under_way)) = self.take(&batcher) else { return };
            batcher.answer(&room, asks, &under_way.rows).await;
        }
    }

    /// Takes the next asks; `None` ends this worker.
    fn take(&mut self, batcher: &Arc<Batcher>) -> Option<(Vec<QueuedAsk>, UnderWay)> {
        let mut queue = batcher.queue();
        let (asks, rows) = queue.take(batcher.per_row());
        if asks.is_empty() {
            queue.workers -= 1;
            self.0 = None;
            return None;
        }
        drop(queue);
        Some((asks, UnderWay { batcher: Arc::clone(batcher), rows }))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(batcher) = &self.0 {
            batcher.queue().workers -= 1;
        }
    }
}

fn silent() -> Error {
    Error::new(ErrorKind::Corrupt, "postgres: a statement returned too few rows")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_on_a_busy_row_are_queued() {
        const ROW: RowHash = 7;
        let mut queue = Queue::default();
        assert!(queue.enter_first(ROW));
        assert!(!queue.enter_first(ROW), "a statement is under way");
        queue.rows.entry(ROW).or_default().waiting = 1;
        queue.leave(ROW);
        assert!(!queue.enter_first(ROW), "another ask waits");
        queue.update(ROW, |busy| busy.waiting = 0);
        assert!(queue.enter_first(ROW));
    }
}
