//! The one thread that writes: a batch, a transaction, a sync.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};

use rusqlite::Connection;
use rusqlite::hooks::Wal;
use tollgate::{Error, ErrorKind};

use crate::database::{Writes, empty_log, fault};
use crate::folder::Turn;
use crate::ids;
use crate::keeper;
use crate::options::Holder;
use crate::pipeline::Batch;
use crate::row;
use crate::shared::Shared;
use crate::sync::lock;
use crate::tally::Tally;

/// From this many pages in the log on, it is copied into the database file: 8 MiB.
const LOG_PAGES_MAX: u32 = 2_048;

/// What the thread owns. It goes in this order when it ends: no connection outlives the turn.
struct Writer {
    shared: Arc<Shared>,
    connection: Connection,
    tally: Tally,
    /// Pages in the log after the last commit.
    log_pages: Arc<AtomicU32>,
    is_server: bool,
    value: Vec<u8>,
    _turn: Turn,
}

/// Starts the thread. It ends when the pipeline is closed and empty, or when a commit fails.
pub(crate) fn spawn(
    shared: Arc<Shared>,
    mut connection: Connection,
    tally: Tally,
    turn: Turn,
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
    let writer =
        Writer { shared, connection, tally, log_pages, is_server, value: Vec::new(), _turn: turn };
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
        // Also when this thread panics nobody waits for ever, and nothing is admitted.
        let _ended = Ended(Arc::clone(&shared));
        let keeper = keeper::spawn(&shared);
        while let Some(batch) = shared.pipeline.take() {
            if let Err(error) = self.commit(&batch) {
                shared.pipeline.fail(&fault("write", &shared.path, error));
                break;
            }
            shared.counters.commits.fetch_add(1, Ordering::Relaxed);
            let rows = u64::try_from(batch.changed.len()).unwrap_or(u64::MAX);
            shared.counters.rows.fetch_add(rows, Ordering::Relaxed);
            shared.pipeline.complete(batch.number);
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
        for changed in &batch.changed {
            let written_at = {
                let mut shard = self.shared.cache.shard(changed.hash);
                let item = shard.find_key(changed.hash, &changed.key);
                item.and_then(|item| {
                    let unwritten = item.ids.take_unwritten(batch.number);
                    ids.extend(unwritten.map(|(id, given)| (ids::key(&changed.key, id), given)));
                    let entry = item.entry.as_ref()?;
                    row::encode(&changed.key, entry, &mut self.value);
                    Some(entry.at())
                })
            };
            match written_at {
                Some(at) => writes.put(&changed.key, &self.value, at)?,
                None => writes.remove(&changed.key)?,
            }
        }
        for (key, given) in &ids {
            writes.id(key, given.as_ref())?;
        }
        if !ids.is_empty() {
            writes.forget_ids(self.shared.time.now(), 2 * ids.len())?;
        }
        writes.count(self.tally.next())?;
        if let Some(clock) = self.shared.time.saved() {
            writes.clock(clock)?;
        }
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        // Before anyone is answered, so that no answer is lost unnoticed.
        self.tally.committed();
        Ok(())
    }

    /// Everything is written and nobody else uses the database.
    fn leave(self) {
        if self.shared.pipeline.check().is_err() {
            return;
        }
        // A short command leaves the log as it is: emptying it takes three syncs. What cannot be tidied now stays in
        // the log, where it is just as durable, and is tidied by whoever comes next.
        let log_pages = self.log_pages.load(Ordering::Relaxed);
        let _ = if self.is_server || LOG_PAGES_MAX <= log_pages {
            empty_log(&self.connection)
        } else {
            keeper::clean_up_sometimes(&self.connection, &self.shared)
        };
        let shared = Arc::clone(&self.shared);
        drop(self);
        shared.pipeline.finish();
    }
}

/// Tells everyone that the thread is gone, however it went.
struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        let text = "the thread that writes ended; open the store again";
        self.0.pipeline.fail(&Error::new(ErrorKind::Unavailable, text));
    }
}
