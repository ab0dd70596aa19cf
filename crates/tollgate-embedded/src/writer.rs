//! The writer thread: one transaction and one sync per batch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};

use rusqlite::Connection;
use rusqlite::hooks::Wal;
use tollgate::{Error, ErrorKind};

use crate::commit_counter::CommitCounter;
use crate::database::{Writes, empty_log, fault};
use crate::folder::FolderLock;
use crate::group_commit::Batch;
use crate::ids;
use crate::keys::StoredKeys;
use crate::maintenance;
use crate::options::Holder;
use crate::row;
use crate::shared::Shared;
use crate::sync::lock;

/// A log of more pages is copied into the database file: 8 MiB.
const LOG_PAGES_MAX: u32 = 2_048;

/// The state of the thread, dropped in this order: no connection outlives the lock.
struct Writer {
    shared: Arc<Shared>,
    connection: Connection,
    counter: CommitCounter,
    stored: StoredKeys,
    /// Pages in the log after the last commit.
    log_pages: Arc<AtomicU32>,
    is_server: bool,
    value: Vec<u8>,
    _lock: FolderLock,
}

/// What the thread owns of the data folder.
pub(crate) struct Files {
    pub(crate) connection: Connection,
    pub(crate) counter: CommitCounter,
    pub(crate) stored: StoredKeys,
    pub(crate) lock: FolderLock,
}

/// Starts the thread. It ends when the queue is closed and empty, or when a commit fails.
pub(crate) fn spawn(
    shared: Arc<Shared>,
    Files { mut connection, counter, stored, lock }: Files,
    holder: &Holder,
) -> Result<JoinHandle<()>, Error> {
    let log_pages = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&log_pages);
    let count = move |_: &mut Wal, pages: i32| {
        counted.store(u32::try_from(pages).unwrap_or(0), Ordering::Relaxed);
        Ok(())
    };
    connection.wal_hook(Some(count)).map_err(|error| fault("open", &shared.path, error))?;
    let is_server = matches!(holder, Holder::Server { .. });
    let writer = Writer {
        shared,
        connection,
        counter,
        stored,
        log_pages,
        is_server,
        value: Vec::new(),
        _lock: lock,
    };
    let spawned =
        thread::Builder::new().name("tollgate-writer".to_owned()).spawn(move || writer.run());
    spawned.map_err(|error| {
        let text = "could not start the thread that writes; allow this user more threads";
        Error::new(ErrorKind::Unavailable, text).caused_by(error)
    })
}

impl Writer {
    fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        // Even if this thread panics, no caller waits for ever and nothing is admitted.
        let _ended = Ended(Arc::clone(&shared));
        let keeper = maintenance::spawn(&shared);
        while let Some(batch) = shared.group_commit.take() {
            if let Err(error) = self.commit(&batch) {
                shared.group_commit.fail(&fault("write", &shared.path, error));
                break;
            }
            shared.counters.commits.fetch_add(1, Ordering::Relaxed);
            let rows = u64::try_from(batch.changed.len()).unwrap_or(u64::MAX);
            shared.counters.rows.fetch_add(rows, Ordering::Relaxed);
            shared.group_commit.complete(batch.number);
            if LOG_PAGES_MAX <= self.log_pages.load(Ordering::Relaxed) {
                shared.requests.checkpoint();
            }
        }
        shared.requests.end();
        if let Some(keeper) = keeper {
            let _ = keeper.join();
        }
        shared.close_readers();
        self.leave();
    }

    fn commit(&mut self, batch: &Batch) -> rusqlite::Result<()> {
        let _gate = lock(&self.shared.commit_gate);
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let mut writes = Writes::new(&self.connection)?;
        let mut ids = Vec::new();
        let mut created = 0;
        for changed in &batch.changed {
            let written_at = {
                let mut shard = self.shared.cache.shard(changed.hash);
                let item = shard.find_key(changed.hash, &changed.key);
                item.and_then(|item| {
                    item.encoded_in = batch.number;
                    let pending = item.take_pending(batch.number);
                    let entry =
                        match &pending {
                            Some(pending) => {
                                let unwritten = pending.ids.iter();
                                ids.extend(unwritten.map(|(id, record)| {
                                    (ids::key(&changed.key, id), record.clone())
                                }));
                                pending.entry.as_ref()
                            }
                            None => {
                                let unwritten = item.ids.take_unwritten(batch.number);
                                ids.extend(unwritten.map(|(id, record)| {
                                    (ids::key(&changed.key, id), record.cloned())
                                }));
                                item.entry.as_ref()
                            }
                        };
                    let was_stored = std::mem::replace(&mut item.is_stored, entry.is_some());
                    match (was_stored, item.is_stored) {
                        (false, true) => {
                            self.stored.add(changed.key.policy(), 1);
                            created += 1;
                        }
                        (true, false) => self.stored.add(changed.key.policy(), -1),
                        _ => {}
                    }
                    let entry = entry?;
                    row::encode(&changed.key, entry, &mut self.value);
                    Some(entry.at())
                })
            };
            match written_at {
                Some(at) => writes.put(&changed.key, &self.value, at)?,
                None => writes.remove(&changed.key)?,
            }
        }
        for (key, record) in &ids {
            writes.id(key, record.as_ref())?;
        }
        if !ids.is_empty() {
            writes.forget_ids(self.shared.time.now(), 2 * ids.len())?;
        }
        self.stored.save(&mut writes)?;
        writes.count(self.counter.next())?;
        if let Some(clock) = self.shared.time.saved() {
            writes.clock(clock)?;
        }
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        // Before callers are woken, so that no decision is lost unnoticed.
        self.counter.committed();
        if 0 < created {
            self.shared.requests.created(created);
        }
        Ok(())
    }

    /// Tidies up after the last batch, when no other thread uses the database.
    fn leave(mut self) {
        if self.shared.group_commit.check().is_err() {
            return;
        }
        // A short command leaves the log as it is: emptying it takes three syncs. On an error the log stays, just as
        // durable, for the next process.
        let log_pages = self.log_pages.load(Ordering::Relaxed);
        let _ = if self.is_server || LOG_PAGES_MAX <= log_pages {
            empty_log(&self.connection)
        } else {
            maintenance::clean_up_sometimes(&self.connection, &self.shared, &mut self.stored)
        };
        let shared = Arc::clone(&self.shared);
        drop(self);
        shared.group_commit.finish();
    }
}

/// Fails all waiting callers when the thread ends, however it ends.
struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        let text = "the thread that writes ended; open the store again";
        self.0.group_commit.fail(&Error::new(ErrorKind::Unavailable, text));
    }
}
