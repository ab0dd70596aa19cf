//! What happens beside the decisions: checkpoints, and forgetting idle entries.
//!
//! A checkpoint inside a commit made the slowest one in a hundred commits ten times slower than the others, so it has
//! a thread and a connection of its own. Most of the log is copied while commits go on. The rest, what was committed
//! meanwhile, is copied with commits held up, so that the next one starts the log from its beginning again; without
//! that, a busy writer would never let it.

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

/// How many rows one step of cleaning up looks at.
const STEP_ROWS_MAX: usize = 256;

/// The pause between two steps, so that cleaning up is never what the machine is busy with.
const STEP_EVERY: Span = Span::from_millis(100);

/// The pause after a step most of whose rows were removed: 25,000 rows a second keep up with callers that make up keys.
const BUSY_STEP_EVERY: Span = Span::from_millis(10);

/// The pause between two walks over the whole database.
const WALK_EVERY: Span = Span::from_mins(10);

/// A process that ends sooner than this never starts to clean up in the background.
const FIRST_STEP_AFTER: Span = Span::from_secs(60);

/// One in so many short commands cleans up a little when it ends.
const COMMANDS_PER_STEP: u32 = 64;

/// What the keeper is asked to do.
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
    /// The log has grown.
    pub(crate) fn checkpoint(&self) {
        let before = std::mem::replace(&mut lock(&self.wanted).checkpoint, true);
        if !before {
            self.changed.notify_one();
        }
    }

    /// The store is closing.
    pub(crate) fn end(&self) {
        lock(&self.wanted).end = true;
        self.changed.notify_one();
    }

    /// Waits for a request, at most `span`. Nothing if the thread should end, else whether a checkpoint is wanted.
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

/// Starts the thread. If the machine has none to give, the log grows until the store is closed.
pub(crate) fn spawn(shared: &Arc<Shared>) -> Option<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    thread::Builder::new().name("tollgate-keeper".to_owned()).spawn(move || keep(&shared)).ok()
}

fn keep(shared: &Shared) {
    let mut connection = None;
    let mut walk = Walk::default();
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
                let before = walk.removed;
                walk.step(shared, now)?;
                next_step = now + walk.pause(walk.removed - before);
            }
            Ok(())
        });
        if let Err(error) = done {
            // A step that closing cut short is no failure.
            if shared.pipeline.check_open().is_ok() {
                shared.pipeline.fail(&error);
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

/// A walk over all keys, some at a time.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    /// The last key that was looked at.
    after: Vec<u8>,
    /// The last batch with a removal.
    pub(crate) batch: u64,
    /// How many entries were removed.
    pub(crate) removed: u64,
}

impl Walk {
    /// Whether the walk came to the last key, and would begin again.
    pub(crate) const fn is_over(&self) -> bool {
        self.after.is_empty()
    }

    /// The pause after a step that removed so many rows.
    const fn pause(&self, removed: u64) -> Span {
        match (self.is_over(), STEP_ROWS_MAX as u64 / 2 <= removed) {
            (true, _) => WALK_EVERY,
            (false, true) => BUSY_STEP_EVERY,
            (false, false) => STEP_EVERY,
        }
    }

    /// Looks at the next rows and removes what is idle.
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

    /// Looks again under the shard's lock, since the row may have changed.
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
                // A damaged entry is reported to whoever asks for it.
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

/// Where only short commands use a folder, one in [`COMMANDS_PER_STEP`] takes a step of the walk when it ends. Nobody
/// else uses the database then.
pub(crate) fn clean_up_sometimes(connection: &Connection, shared: &Shared) -> rusqlite::Result<()> {
    if tollgate::edge::random().is_multiple_of(COMMANDS_PER_STEP) {
        clean_up_step(connection, shared.time.now())
    } else {
        Ok(())
    }
}

/// One step, from where the last command stopped.
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
        let mut walk = Walk::default();
        assert_eq!(walk.pause(0), WALK_EVERY);
        walk.after = vec![1];
        assert_eq!(
            [0, 127, 128, 256].map(|removed| walk.pause(removed)),
            [STEP_EVERY, STEP_EVERY, BUSY_STEP_EVERY, BUSY_STEP_EVERY]
        );
    }

    /// Commands walk on where the last one stopped, and begin again at the end.
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
