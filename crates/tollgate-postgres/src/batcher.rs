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
//!
//! An ask of several charges has several rows, and is queued if one of them is busy. It is sent by `spend_joint()`, and so is
//! every batch with such an ask: that function locks the rows of the whole batch in order before it charges any.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tollgate::{Error, ErrorKind, Span};

use crate::call::{Columns, Spend, SpendJoint, Statements};
use crate::error::{is_locked, refusal};
use crate::pool::{Parameter, Pool, Query, Room};
use crate::row_limiter::{RowHash, RowHasher, per_row};

/// The most asks in one statement.
pub const BATCH_ASKS_MAX: usize = 32;

/// The most charges in one statement.
pub const BATCH_CHARGES_MAX: usize = 128;

/// How long a batch waits for a locked row before each row gets its own statement.
pub const BATCH_LOCK_TIMEOUT: Span = Span::from_millis(100);

/// Sends asks, alone or in batches.
#[derive(Debug)]
pub(crate) struct Batcher {
    pool: Arc<Pool>,
    one: Query,
    all: Query,
    joint: Query,
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
    charges: Vec<Spend>,
    /// The rows of its charges, sorted.
    rows: Vec<RowHash>,
    /// Whether a row may be locked, so that it must not delay others.
    apart: bool,
    reply: oneshot::Sender<Result<Replies, Error>>,
}

impl QueuedAsk {
    /// The row of its first charge.
    fn key(&self) -> Option<(&str, &str)> {
        self.charges.first().map(Spend::row)
    }
}

/// The reply of each charge.
type Replies = Vec<Vec<i64>>;

/// The asks that fit into a statement.
enum Wanted {
    Any,
    NotApart,
    Rows(Vec<RowHash>),
}

impl Queue {
    /// Counts a statement on `rows` without `known`, unless one of them has `most` already.
    fn enter(&mut self, rows: &[RowHash], known: &[RowHash], most: usize) -> bool {
        let new = || rows.iter().filter(|row| !known.contains(row));
        let is_busy = |row| self.rows.get(row).is_some_and(|busy| most <= busy.statements);
        if new().any(is_busy) {
            return false;
        }
        new().for_each(|row| self.rows.entry(*row).or_default().statements += 1);
        true
    }

    /// Counts the first statement on `rows`. Later asks would wait for a row in the database anyway, so they are queued and
    /// share a statement and a commit.
    fn enter_first(&mut self, rows: &[RowHash]) -> bool {
        !rows.iter().any(|row| self.rows.contains_key(row)) && self.enter(rows, &[], 1)
    }

    fn leave(&mut self, row: RowHash) {
        self.update(row, |busy| busy.statements = busy.statements.saturating_sub(1));
    }

    /// Appends `ask`.
    fn join(&mut self, ask: QueuedAsk) {
        self.count(&ask);
        self.waiting.push_back(ask);
    }

    /// Prepends `ask`.
    fn rejoin(&mut self, ask: QueuedAsk) {
        self.count(&ask);
        self.waiting.push_front(ask);
    }

    fn count(&mut self, ask: &QueuedAsk) {
        ask.rows.iter().for_each(|row| self.rows.entry(*row).or_default().waiting += 1);
    }

    /// Takes the next ask.
    fn next(&mut self) -> Option<QueuedAsk> {
        let ask = self.waiting.pop_front()?;
        for row in &ask.rows {
            self.update(*row, |busy| busy.waiting = busy.waiting.saturating_sub(1));
        }
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

    fn is_locked(&self, rows: &[RowHash]) -> bool {
        rows.iter().any(|row| self.rows.get(row).is_some_and(|busy| busy.is_locked))
    }

    /// The next asks for one statement, on rows that may have another one: all of the same rows that may be locked, or of any
    /// others. Those whose callers have gone are dropped. An ask that waits for one of its rows is not overtaken on the others,
    /// or it might never find all of them free.
    fn take(&mut self, most: usize) -> (Vec<QueuedAsk>, Vec<RowHash>) {
        let (mut taken, mut rows, mut left) = (Vec::new(), Vec::new(), Vec::new());
        let (mut wanted, mut charges, mut awaited) = (Wanted::Any, 0, HashSet::new());
        while taken.len() < BATCH_ASKS_MAX
            && let Some(ask) = self.next()
        {
            if ask.reply.is_closed() {
                continue;
            }
            let is_apart = ask.apart || self.is_locked(&ask.rows);
            let fits = match &wanted {
                Wanted::Any => true,
                Wanted::NotApart => !is_apart,
                Wanted::Rows(rows) => *rows == ask.rows,
            } && charges + ask.charges.len() <= BATCH_CHARGES_MAX;
            if !fits {
                left.push(ask);
                continue;
            }
            let is_awaited = ask.rows.iter().any(|row| awaited.contains(row));
            if is_awaited || !self.enter(&ask.rows, &rows, most) {
                if !is_apart {
                    awaited.extend(ask.rows.iter().copied());
                }
                left.push(ask);
                continue;
            }
            let new = ask.rows.iter().filter(|row| !rows.contains(row)).copied();
            rows.extend(new.collect::<Vec<_>>());
            if let Wanted::Any = wanted {
                wanted = if is_apart { Wanted::Rows(ask.rows.clone()) } else { Wanted::NotApart };
            }
            charges += ask.charges.len();
            taken.push(ask);
        }
        left.into_iter().rev().for_each(|ask| self.rejoin(ask));
        (taken, rows)
    }
}

impl Batcher {
    pub(crate) fn new(
        pool: Arc<Pool>,
        statements: &Statements,
        lock_timeout: Option<String>,
    ) -> Self {
        let Statements { spend: one, spend_all: all, spend_joint: joint, .. } = statements;
        let (one, all, joint) = (one.clone(), all.clone(), joint.clone());
        let (hasher, queue) = (RowHasher::default(), Mutex::default());
        Self { pool, one, all, joint, lock_timeout, hasher, queue }
    }

    /// Returns the replies of the function `spend` for the charges of one ask, of which the first has its id.
    pub(crate) async fn spend(self: &Arc<Self>, charges: Vec<Spend>) -> Result<Replies, Error> {
        let mut rows: Vec<RowHash> =
            charges.iter().map(|charge| self.hasher.hash(charge.row())).collect();
        rows.sort_unstable();
        rows.dedup();
        if let Some(room) = self.pool.free_room()
            && let Some(under_way) = self.enter_first(&rows)
        {
            let answer = self.alone(&room, &charges).await;
            self.learn(&under_way.rows, answer.as_ref().err());
            return answer;
        }
        let (reply, answer) = oneshot::channel();
        self.queue().join(QueuedAsk { charges, rows, apart: false, reply });
        self.wake();
        let lost = |_| Error::new(ErrorKind::Unavailable, "postgres: the runtime is shutting down");
        self.pool.in_time(async { answer.await.map_err(lost)? }).await
    }

    fn enter_first(self: &Arc<Self>, rows: &[RowHash]) -> Option<UnderWay> {
        let entered = self.queue().enter_first(rows);
        entered.then(|| UnderWay { batcher: Arc::clone(self), rows: rows.to_vec() })
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

    /// Records whether a statement on one row alone found it locked. Of several rows, any may be.
    fn learn(&self, rows: &[RowHash], failed: Option<&Error>) {
        if let [row] = rows
            && let Some(busy) = self.queue().rows.get_mut(row)
        {
            busy.is_locked = failed.is_some_and(is_locked);
        }
    }

    async fn alone(&self, room: &Room<'_>, charges: &[Spend]) -> Result<Replies, Error> {
        let [spend] = charges else {
            let call = SpendJoint::new(&[charges], &self.lock_timeout);
            return self.replies(room, &self.joint, &call.parameters(), charges.len()).await;
        };
        self.replies(room, &self.one, &spend.parameters(&self.lock_timeout), 1).await
    }

    async fn answer(&self, room: &Room<'_>, mut asks: Vec<QueuedAsk>, rows: &[RowHash]) {
        let is_one_line = asks.iter().all(|ask| ask.rows == asks[0].rows);
        if asks.len() > 1 {
            asks.sort_by(|one, other| one.key().cmp(&other.key()));
            let most = self.pool.options().lock_timeout;
            let timeout = if is_one_line { most } else { most.min(BATCH_LOCK_TIMEOUT) };
            let answer = self.batch(room, &asks, timeout).await;
            self.learn(rows, answer.as_ref().err());
            match answer {
                Ok(answers) => {
                    let mut answers = answers.into_iter();
                    for ask in asks {
                        let answer = answers.by_ref().take(ask.charges.len()).collect();
                        // The caller may be gone.
                        let _ = ask.reply.send(Ok(answer));
                    }
                    return;
                }
                Err(error) if is_locked(&error) && !is_one_line => {
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
                let answer = self.alone(room, &ask.charges).await;
                self.learn(&ask.rows, answer.as_ref().err());
                let _ = ask.reply.send(answer);
            }
        }
    }

    async fn batch(
        &self,
        room: &Room<'_>,
        asks: &[QueuedAsk],
        timeout: Span,
    ) -> Result<Replies, Error> {
        let timeout = format!("{}ms", timeout.as_millis_ceil().max(1));
        let all: Vec<&Spend> = asks.iter().flat_map(|ask| &ask.charges).collect();
        if all.len() == asks.len() {
            let call = Columns::new(&all);
            return self.replies(room, &self.all, &call.parameters(&timeout), all.len()).await;
        }
        let (timeout, charges) = (Some(timeout), asks.iter().map(|ask| &*ask.charges));
        let call = SpendJoint::new(&charges.collect::<Vec<_>>(), &timeout);
        self.replies(room, &self.joint, &call.parameters(), all.len()).await
    }

    async fn replies(
        &self,
        room: &Room<'_>,
        query: &Query,
        parameters: &[Parameter<'_>],
        most: usize,
    ) -> Result<Replies, Error> {
        let rows = self.pool.run_in(room, query, parameters).await?;
        if rows.len() != most {
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
        assert!(queue.enter_first(&[ROW]));
        assert!(!queue.enter_first(&[ROW]), "a statement is under way");
        assert!(!queue.enter_first(&[5, ROW]), "one of the rows is busy");
        assert!(!queue.rows.contains_key(&5), "all rows are entered, or none");
        queue.rows.entry(ROW).or_default().waiting = 1;
        queue.leave(ROW);
        assert!(!queue.enter_first(&[ROW]), "another ask waits");
        queue.update(ROW, |busy| busy.waiting = 0);
        assert!(queue.enter_first(&[5, ROW]));
    }

    #[test]
    fn an_ask_of_several_rows_is_not_overtaken_on_any_of_them() {
        let mut queue = Queue::default();
        assert!(queue.enter_first(&[1]));
        let mut callers = Vec::new();
        for rows in [vec![1, 2], vec![2], vec![3]] {
            let (reply, caller) = oneshot::channel();
            callers.push(caller);
            queue.join(QueuedAsk { charges: Vec::new(), rows, apart: false, reply });
        }
        let rows_of = |asks: &[QueuedAsk]| -> Vec<Vec<RowHash>> {
            asks.iter().map(|ask| ask.rows.clone()).collect()
        };
        let (asks, rows) = queue.take(1);
        assert_eq!((rows_of(&asks), rows), (vec![vec![3]], vec![3]));
        queue.leave(1);
        let (asks, rows) = queue.take(1);
        assert_eq!((rows_of(&asks), rows), (vec![vec![1, 2], vec![2]], vec![1, 2]));
        assert!(queue.waiting.is_empty());
    }
}
