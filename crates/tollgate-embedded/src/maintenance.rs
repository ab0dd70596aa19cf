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
use crate::row::Key;
use crate::shared::Shared;
use crate::sync::lock;

/// An entry that equals an absent one is cleaned up when it was not changed for this long.
pub const IDLE_MAX: Span = Span::from_hours(1);

/// Rows per clean-up step.
const STEP_ROWS_MAX: usize = 256;

/// Pause between two steps.
const STEP_EVERY: Span = Span::from_millis(100);

/// Pause after a step that removed most of its rows: 25,000 rows a second keep up with callers that invent keys.
const BUSY_STEP_EVERY: Span = Span::from_millis(10);

/// Pause between two sweeps of the whole database.
const SWEEP_EVERY: Span = Span::from_mins(10);

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
}

impl Requests {
    /// Requests a checkpoint.
    pub(crate) fn checkpoint(&self) {
        let before = std::mem::replace(&mut lock(&self.wanted).checkpoint, true);
        if !before {
            self.changed.notify_one();
        }
    }

    /// Stops the thread.
    pub(crate) fn end(&self) {
        lock(&self.wanted).end = true;
        self.changed.notify_one();
    }

    /// Waits for a request for at most `span`. Returns whether a checkpoint is wanted; `None` to end the thread.
    fn wait(&self, span: Span) -> Option<bool> {
        let idle = |wanted: &mut Wanted| !wanted.checkpoint && !wanted.end;
        let waited = self.changed.wait_timeout_while(lock(&self.wanted), span.into(), idle);
        let wanted = waited.unwrap_or_else(PoisonError::into_inner).0;
        (!wanted.end).then_some(wanted.checkpoint)
    }

    fn checkpointed(&self) {
        lock(&self.wanted).checkpoint = false;
    }
}

/// Starts the thread. Without it the log grows until the store is closed.
pub(crate) fn spawn(shared: &Arc<Shared>) -> Option<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    thread::Builder::new().name("tollgate-maintenance".to_owned()).spawn(move || keep(&shared)).ok()
}

fn keep(shared: &Shared) {
    let mut connection = None;
    let mut sweep = IdleSweep::default();
    let mut next_step = shared.time.now() + FIRST_STEP_AFTER;
    while let Some(wanted) = shared.requests.wait(next_step.since(shared.time.now())) {
        let done = if wanted {
            let done = copy_log(shared, &mut connection);
            shared.requests.checkpointed();
            done
        } else {
            Ok(())
        };
        let now = shared.time.now();
        let done = done.and_then(|()| {
            if next_step <= now {
                let before = sweep.removed;
                sweep.step(shared, now)?;
                next_step = now + sweep.pause(sweep.removed - before);
            }
            Ok(())
        });
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
        None => connection.insert(database::connect(&shared.path)?),
    };
    let copy = |connection: &Connection| {
        checkpoint(connection).map_err(|error| fault("copy the log into", &shared.path, error))
    };
    copy(connection)?;
    let _gate = lock(&shared.commit_gate);
    copy(connection)
}

/// A sweep over all keys, in steps.
#[derive(Debug, Default)]
pub(crate) struct IdleSweep {
    /// The last key of the previous step.
    after: Vec<u8>,
    /// The last batch with a removal.
    pub(crate) batch: u64,
    /// The number of entries removed.
    pub(crate) removed: u64,
}

impl IdleSweep {
    /// Whether the sweep has reached the last key.
    pub(crate) const fn is_over(&self) -> bool {
        self.after.is_empty()
    }

    /// Returns the pause after a step that removed `removed` rows.
    const fn pause(&self, removed: u64) -> Span {
        match (self.is_over(), STEP_ROWS_MAX as u64 / 2 <= removed) {
            (true, _) => SWEEP_EVERY,
            (false, true) => BUSY_STEP_EVERY,
            (false, false) => STEP_EVERY,
        }
    }

    /// Removes the idle entries among the next rows.
    pub(crate) fn step(&mut self, shared: &Shared, now: Timestamp) -> Result<(), Error> {
        let before = now - IDLE_MAX;
        let rows = shared
            .read(0, |connection| database::page(connection, &self.after, before, STEP_ROWS_MAX))?;
        for row in rows.iter().filter(|row| row.idle) {
            if let Some(key) = Key::from_bytes(&row.key) {
                self.remove_if_idle(shared, key, now)?;
            }
        }
        self.after = match rows.last() {
            Some(last) if rows.len() == STEP_ROWS_MAX => last.key.clone(),
            _ => Vec::new(),
        };
        Ok(())
    }

    /// Checks again under the shard's lock, since the row may have changed.
    fn remove_if_idle(&mut self, shared: &Shared, key: Key, now: Timestamp) -> Result<(), Error> {
        let hash = shared.hash(key.policy(), key.subject());
        let mut shard = shared.cache.shard(hash);
        let item = match shard.find_key(hash, &key) {
            Some(item) => {
                if !item.entry.as_ref().is_some_and(|entry| is_idle(entry, now)) {
                    return Ok(());
                }
                item.entry = None;
                item
            }
            None => match shared.load(hash, &key, None) {
                Ok(Some(entry)) if is_idle(&entry, now) => {
                    shared.insert(&mut shard, hash, key, None)
                }
                // A damaged entry is reported when it is used.
                _ => return Ok(()),
            },
        };
        self.batch = shared.changed(item, hash, now)?;
        self.removed += 1;
        shared.counters.cleaned_up.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

fn is_idle(entry: &Entry, now: Timestamp) -> bool {
    IDLE_MAX <= now.since(entry.at()) && entry.is_absent(now)
}

/// Takes a clean-up step in one of [`COMMANDS_PER_STEP`] short commands, when no other thread uses the database.
pub(crate) fn clean_up_sometimes(connection: &Connection, shared: &Shared) -> rusqlite::Result<()> {
    if tollgate::internal::edge::random().is_multiple_of(COMMANDS_PER_STEP) {
        clean_up_step(connection, shared.time.now())
    } else {
        Ok(())
    }
}

/// Takes one step, from where the last command stopped.
fn clean_up_step(connection: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    let after = database::cursor(connection)?;
    let rows = database::page(connection, &after, now - IDLE_MAX, STEP_ROWS_MAX)?;
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let mut writes = Writes::new(connection)?;
    for key in rows.iter().filter(|row| row.idle).filter_map(|row| Key::from_bytes(&row.key)) {
        let found = database::load(connection, &key, None)?;
        if matches!(&found, Some(Ok(entry)) if is_idle(entry, now)) {
            writes.remove(&key)?;
        }
    }
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
        let mut sweep = IdleSweep::default();
        assert_eq!(sweep.pause(0), SWEEP_EVERY);
        sweep.after = vec![1];
        assert_eq!(
            [0, 127, 128, 256].map(|removed| sweep.pause(removed)),
            [STEP_EVERY, STEP_EVERY, BUSY_STEP_EVERY, BUSY_STEP_EVERY]
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
        let left = |connection: &Connection| -> u32 {
            connection.query_row("SELECT count(*) FROM entries", [], |row| row.get(0)).unwrap()
        };
        for expected in [11, 1, 1] {
            clean_up_step(&connection, now).unwrap();
            assert_eq!(left(&connection), expected);
        }
        clean_up_step(&connection, now + IDLE_MAX).unwrap();
        assert_eq!(left(&connection), 0);
    }
}
