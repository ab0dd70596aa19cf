//! Background maintenance: checkpoints, and removal of idle entries.
//!
//! A checkpoint inside a commit made one in a hundred commits ten times slower, so it has a thread and a connection of its
//! own. Most of the log is copied while commits continue. The rest is copied with commits blocked, so that the next commit
//! restarts the log; a busy writer would otherwise never allow it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use rusqlite::Connection;
use tollgate::core::Entry;
use tollgate::{Error, Span, Timestamp};

use crate::database::{self, Writes, checkpoint, fault};
use crate::keys::StoredKeys;
use crate::row::Key;
use crate::shared::Shared;
use crate::sync::lock;

/// An entry that equals an absent one is cleaned up when it was not changed for this long.
pub const IDLE_MAX: Span = Span::from_hours(1);

/// Rows per clean-up step.
const STEP_ROWS_MAX: usize = 256;

/// Pause between two steps.
const STEP_EVERY: Span = Span::from_millis(100);

/// Pause after a step that removed most of its rows, and while there is little room for new keys.
const BUSY_STEP_EVERY: Span = Span::from_millis(10);

/// Pause between two sweeps of the whole database.
const SWEEP_EVERY: Span = Span::from_mins(10);

/// Pause between two sweeps while there is little room for new keys.
const BUSY_SWEEP_EVERY: Span = Span::from_secs(1);

/// Rows that clean-up visits for each created one, at once and however fast they are created. With v visits a sweep over n
/// rows ends before another n / v are created, so removable rows are at most 2 / v of the table: a quarter.
const VISITS_PER_CREATED: u64 = 8;

/// The most rows that a caller without room searches for entries to evict.
const SEARCH_STEPS_MAX: usize = 16;

/// Delay of the first sweep: short-lived processes never start one.
const FIRST_STEP_AFTER: Span = Span::from_secs(60);

/// One in so many short commands takes a clean-up step when it ends.
const COMMANDS_PER_STEP: u32 = 64;

/// Requests to the maintenance thread.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    wanted: Mutex<Wanted>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Wanted {
    checkpoint: bool,
    end: bool,
    /// Rows created that no clean-up step has paid for.
    created: u64,
}

/// The work of one turn of the maintenance thread.
#[derive(Clone, Copy, Debug)]
struct Turn {
    checkpoint: bool,
    created: u64,
}

impl Requests {
    /// Requests a checkpoint.
    pub(crate) fn checkpoint(&self) {
        let before = std::mem::replace(&mut lock(&self.wanted).checkpoint, true);
        if !before {
            self.changed.notify_one();
        }
    }

    /// Reports rows that were created.
    pub(crate) fn created(&self, rows: u64) {
        let mut wanted = lock(&self.wanted);
        wanted.created += rows;
        if wanted.is_step_due() {
            self.changed.notify_one();
        }
    }

    /// Stops the thread.
    pub(crate) fn end(&self) {
        lock(&self.wanted).end = true;
        self.changed.notify_one();
    }

    /// Waits for a request for at most `span`; `None` to end the thread.
    fn wait(&self, span: Span) -> Option<Turn> {
        let idle = |wanted: &mut Wanted| !wanted.checkpoint && !wanted.end && !wanted.is_step_due();
        let waited = self.changed.wait_timeout_while(lock(&self.wanted), span.into(), idle);
        let mut wanted = waited.unwrap_or_else(PoisonError::into_inner).0;
        let created = std::mem::take(&mut wanted.created);
        (!wanted.end).then_some(Turn { checkpoint: wanted.checkpoint, created })
    }

    fn checkpointed(&self) {
        lock(&self.wanted).checkpoint = false;
    }
}

impl Wanted {
    const fn is_step_due(&self) -> bool {
        STEP_ROWS_MAX as u64 <= self.created * VISITS_PER_CREATED
    }
}

/// Starts the thread. Without it the log grows until the store is closed.
pub(crate) fn spawn(shared: &Arc<Shared>) -> Option<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    thread::Builder::new().name("tollgate-maintenance".to_owned()).spawn(move || keep(&shared)).ok()
}

fn keep(shared: &Shared) {
    let mut connection = None;
    let mut clean_up = CleanUp::new(shared.time.now());
    while let Some(turn) = shared.requests.wait(clean_up.pause(shared.time.now())) {
        let done = if turn.checkpoint {
            let done = copy_log(shared, &mut connection);
            shared.requests.checkpointed();
            done
        } else {
            Ok(())
        };
        let done = done.and_then(|()| clean_up.turn(shared, turn.created, shared.time.now()));
        if let Err(error) = done {
            // A step that was interrupted by closing is not a failure.
            if shared.group_commit.check_open().is_ok() {
                shared.group_commit.fail(&error);
            }
            return;
        }
    }
}

fn copy_log(shared: &Shared, connection: &mut Option<Connection>) -> Result<(), Error> {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(database::open(&shared.path)?),
    };
    let copy = |connection: &Connection| {
        checkpoint(connection).map_err(|error| fault("copy the log into", &shared.path, error))
    };
    copy(connection)?;
    let _gate = lock(&shared.commit_gate);
    copy(connection)
}

/// Repeated sweeps, paced by the creation of rows.
#[derive(Debug)]
struct CleanUp {
    sweep: Sweep,
    next_step: Timestamp,
    /// Rows to visit for created ones.
    owed: u64,
    /// Whether there was little room for new keys when the sweep began.
    is_pressed: bool,
}

impl CleanUp {
    fn new(now: Timestamp) -> Self {
        let next_step = now + FIRST_STEP_AFTER;
        Self { sweep: Sweep::default(), next_step, owed: 0, is_pressed: false }
    }

    /// Returns how long to wait for the next step.
    fn pause(&self, now: Timestamp) -> Span {
        if self.is_owed() { Span::ZERO } else { self.next_step.since(now) }
    }

    const fn is_owed(&self) -> bool {
        STEP_ROWS_MAX as u64 <= self.owed
    }

    /// Takes a step if it is due, after `created` more rows.
    fn turn(&mut self, shared: &Shared, created: u64, now: Timestamp) -> Result<(), Error> {
        // One sweep over all rows pays for everything.
        self.owed = (self.owed + created * VISITS_PER_CREATED).min(shared.keys.total());
        if !self.is_owed() && now < self.next_step {
            return Ok(());
        }
        if self.sweep.is_over() {
            self.is_pressed = shared.keys.is_pressed();
        }
        let idle = if self.is_pressed { Span::ZERO } else { IDLE_MAX };
        let before = self.sweep.removed;
        let visited = self.sweep.step(shared, now, idle)?;
        self.owed = self.owed.saturating_sub(visited as u64);
        let removed = self.sweep.removed - before;
        self.next_step = now + pause_after(self.sweep.is_over(), self.is_pressed, removed);
        Ok(())
    }
}

/// Returns the pause after a step that removed `removed` rows.
const fn pause_after(is_over: bool, is_pressed: bool, removed: u64) -> Span {
    match (is_over, is_pressed) {
        (true, true) => BUSY_SWEEP_EVERY,
        (true, false) => SWEEP_EVERY,
        (false, false) if removed < STEP_ROWS_MAX as u64 / 2 => STEP_EVERY,
        (false, _) => BUSY_STEP_EVERY,
    }
}

/// A sweep over keys, in steps.
#[derive(Debug)]
pub(crate) struct Sweep {
    /// The end of the keys, exclusive.
    end: Vec<u8>,
    /// The key before the first.
    start: Vec<u8>,
    /// The last key of the previous step; empty at the start.
    after: Vec<u8>,
    /// The last batch with a removal.
    pub(crate) batch: u64,
    /// The number of entries removed.
    pub(crate) removed: u64,
}

impl Default for Sweep {
    /// Over all keys.
    fn default() -> Self {
        Self::within("", Vec::new())
    }
}

impl Sweep {
    /// Over the keys of the policy called `scope`, or over all if it is empty, from the key `after` on.
    pub(crate) fn within(scope: &str, after: Vec<u8>) -> Self {
        let [start, end] = match scope {
            // Keys begin with a policy name, which is UTF-8.
            "" => [Vec::new(), vec![0xff]],
            policy => [0, 1].map(|last| [policy.as_bytes(), &[last]].concat()),
        };
        Self { end, start, after, batch: 0, removed: 0 }
    }

    /// Returns the last key that was visited; empty at the end.
    pub(crate) fn into_position(self) -> Vec<u8> {
        self.after
    }

    /// Removes entries that equal an absent one, from the first step that finds any. Returns whether one did, within
    /// [`SEARCH_STEPS_MAX`] steps or one round.
    pub(crate) fn evict(&mut self, shared: &Shared, now: Timestamp) -> Result<bool, Error> {
        let mut is_last_round = self.is_over();
        for _ in 0..SEARCH_STEPS_MAX {
            self.step(shared, now, Span::ZERO)?;
            if 0 < self.removed {
                return Ok(true);
            }
            if self.is_over() && std::mem::replace(&mut is_last_round, true) {
                break;
            }
        }
        Ok(false)
    }

    /// Whether the sweep has reached the last key.
    pub(crate) const fn is_over(&self) -> bool {
        self.after.is_empty()
    }

    /// Removes the entries among the next rows that equal an absent one and did not change for `idle`. Returns the number of
    /// rows.
    pub(crate) fn step(
        &mut self,
        shared: &Shared,
        now: Timestamp,
        idle: Span,
    ) -> Result<usize, Error> {
        let from = if self.is_over() { &self.start } else { &self.after };
        let range = [from.as_slice(), self.end.as_slice()];
        let rows = shared
            .read(0, |connection| database::page(connection, range, now - idle, STEP_ROWS_MAX))?;
        for row in rows.iter().filter(|row| row.idle) {
            if let Some(key) = Key::from_bytes(&row.key) {
                self.remove_if_idle(shared, key, now, idle)?;
            }
        }
        self.after = match rows.last() {
            Some(last) if rows.len() == STEP_ROWS_MAX => last.key.clone(),
            _ => Vec::new(),
        };
        Ok(rows.len())
    }

    /// Checks again under the shard's lock, since the row may have changed.
    fn remove_if_idle(
        &mut self,
        shared: &Shared,
        key: Key,
        now: Timestamp,
        idle: Span,
    ) -> Result<(), Error> {
        let hash = shared.hash(key.policy(), key.subject());
        let mut shard = shared.cache.shard(hash);
        let item = match shard.find_key(hash, &key) {
            Some(item) => {
                if !item.entry.as_ref().is_some_and(|entry| is_idle(entry, now, idle)) {
                    return Ok(());
                }
                item.entry = None;
                item
            }
            None => match shared.load(hash, &key, None) {
                Ok(Some(entry)) if is_idle(&entry, now, idle) => {
                    shared.insert(&mut shard, hash, key, None, true)
                }
                // A damaged entry is reported when it is used.
                _ => return Ok(()),
            },
        };
        shared.keys.give_back(item.key().policy());
        self.batch = shared.changed(item, hash, now)?;
        self.removed += 1;
        shared.counters.cleaned_up.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

fn is_idle(entry: &Entry, now: Timestamp, idle: Span) -> bool {
    idle <= now.since(entry.at()) && entry.is_absent(now)
}

/// Takes a clean-up step in one of [`COMMANDS_PER_STEP`] short commands, when no other thread uses the database.
pub(crate) fn clean_up_sometimes(
    connection: &Connection,
    shared: &Shared,
    stored: &mut StoredKeys,
) -> rusqlite::Result<()> {
    if tollgate::internal::edge::random().is_multiple_of(COMMANDS_PER_STEP) {
        clean_up_step(connection, stored, shared.time.now())
    } else {
        Ok(())
    }
}

/// Takes one step, from where the last command stopped.
fn clean_up_step(
    connection: &Connection,
    stored: &mut StoredKeys,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let Sweep { after, end, .. } = Sweep::within("", database::cursor(connection)?);
    let rows = database::page(connection, [&after, &end], now - IDLE_MAX, STEP_ROWS_MAX)?;
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let mut writes = Writes::new(connection)?;
    for key in rows.iter().filter(|row| row.idle).filter_map(|row| Key::from_bytes(&row.key)) {
        let found = database::load(connection, &key, None)?;
        if matches!(&found, Some(Ok(entry)) if is_idle(entry, now, IDLE_MAX)) {
            writes.remove(&key)?;
            stored.add(key.policy(), -1);
        }
    }
    stored.save(&mut writes)?;
    let is_over = rows.len() < STEP_ROWS_MAX;
    let last = rows.last().filter(|_| !is_over).map(|row| row.key.as_slice());
    database::set_cursor(connection, last.unwrap_or_default())?;
    connection.execute_batch("COMMIT")
}

#[cfg(test)]
mod tests {
    use tollgate::{Limit, Policy, TokenBucket};

    use super::*;
    use crate::row;

    #[test]
    fn steps_that_remove_much_follow_closely() {
        assert_eq!(
            [0, 127, 128, 256].map(|removed| pause_after(false, false, removed)),
            [STEP_EVERY, STEP_EVERY, BUSY_STEP_EVERY, BUSY_STEP_EVERY]
        );
        assert_eq!(pause_after(false, true, 0), BUSY_STEP_EVERY);
        assert_eq!(
            [false, true].map(|is_pressed| pause_after(true, is_pressed, 256)),
            [SWEEP_EVERY, BUSY_SWEEP_EVERY]
        );
    }

    /// Commands sweep on where the last one stopped, and begin again at the end.
    #[test]
    fn commands_clean_up_a_step_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let (connection, _) = database::ensure(folder.path()).unwrap();
        let limit = Limit::new("burst", "requests", TokenBucket::per_second(1));
        let policy = Policy::new("api", [limit]).unwrap();
        let start = Timestamp::from_secs(1_700_000_000);
        let mut value = Vec::new();
        for number in 0..STEP_ROWS_MAX + 10 {
            let key = Key::new("api", &format!("{number:04}"));
            let at = if number == 3 { start + IDLE_MAX } else { start };
            row::encode(&key, &Entry::fresh(&policy, at), &mut value);
            Writes::new(&connection).unwrap().put(&key, &value, at).unwrap();
        }
        let now = start + IDLE_MAX;
        let mut stored = database::key_counts(&connection).unwrap();
        let left = |connection: &Connection| -> u32 {
            connection.query_row("SELECT count(*) FROM entries", [], |row| row.get(0)).unwrap()
        };
        for expected in [11, 1, 1] {
            clean_up_step(&connection, &mut stored, now).unwrap();
            assert_eq!(left(&connection), expected);
            assert_eq!(stored.counts["api"], u64::from(expected));
        }
        clean_up_step(&connection, &mut stored, now + IDLE_MAX).unwrap();
        assert_eq!(left(&connection), 0);
    }
}
