//! What callers, the writer and the keeper share, and the decision itself.

use std::hash::BuildHasher;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rusqlite::Connection;
use tollgate::core::{Applied, Change, Entry, Known, apply};
use tollgate::entries::Rewrite;
use tollgate::{
    Decision, Error, ErrorKind, Event, Observer, Operation, Outcome, Policy, Span, Timestamp,
};

use crate::cache::{Cache, Item, Shard};
use crate::database::{self, DAMAGED, fault};
use crate::keeper::Requests;
use crate::options::Durability;
use crate::pipeline::{Changed, Pipeline, closed};
use crate::row::Key;
use crate::sync::lock;
use crate::time::Time;

/// How many connections read at once.
const READERS: usize = 4;

/// What a store has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Entries in memory now.
    pub entries_cached: usize,
    /// Entries that were looked for in the database.
    pub loads: u64,
    /// Transactions that were committed.
    pub commits: u64,
    /// Rows that were written or removed by them.
    pub rows: u64,
    /// Idle entries that were cleaned up.
    pub cleaned_up: u64,
}

#[derive(Debug)]
pub(crate) struct Shared {
    /// The database file.
    pub(crate) path: PathBuf,
    pub(crate) time: Time,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) cache: Cache,
    pub(crate) pipeline: Pipeline,
    pub(crate) requests: Requests,
    /// Held during a commit, and by the keeper for the end of a checkpoint.
    pub(crate) commit_gate: Mutex<()>,
    pub(crate) counters: Counters,
    hasher: foldhash::fast::RandomState,
    readers: [Mutex<Reader>; READERS],
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) loads: AtomicU64,
    pub(crate) commits: AtomicU64,
    pub(crate) rows: AtomicU64,
    pub(crate) cleaned_up: AtomicU64,
}

/// A connection for reading, made when it is first needed.
#[derive(Debug, Default)]
enum Reader {
    #[default]
    Unopened,
    Open(Connection),
    Closed,
}

/// An answer, and the batch it relies on; zero if it relies on none.
pub(crate) struct Answer {
    pub(crate) outcome: Outcome,
    pub(crate) batch: u64,
}

impl Shared {
    pub(crate) fn new(
        path: PathBuf,
        time: Time,
        observer: Option<Arc<dyn Observer>>,
        durability: Durability,
        entries_max: usize,
    ) -> Self {
        Self {
            path,
            time,
            observer,
            cache: Cache::new(entries_max),
            pipeline: Pipeline::new(durability),
            requests: Requests::default(),
            commit_gate: Mutex::default(),
            counters: Counters::default(),
            hasher: foldhash::fast::RandomState::default(),
            readers: Default::default(),
        }
    }

    pub(crate) fn hash(&self, policy: &str, subject: &str) -> u64 {
        self.hasher.hash_one((policy, subject))
    }

    pub(crate) fn stats(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            entries_cached: self.cache.len(),
            loads: read(&self.counters.loads),
            commits: read(&self.counters.commits),
            rows: read(&self.counters.rows),
            cleaned_up: read(&self.counters.cleaned_up),
        }
    }

    /// Decides `operation` at `now` on the entry in memory, which is loaded if it is not there.
    pub(crate) fn decide(
        &self,
        operation: &Operation<'_>,
        now: Timestamp,
    ) -> Result<Answer, Error> {
        self.pipeline.check_open()?;
        let (policy, subject) = (operation.policy(), operation.subject());
        let hash = self.hash(policy.name(), subject);
        let mut shard = self.cache.shard(hash);
        if let Some(item) = shard.find(hash, policy.name(), subject) {
            return self.decide_on(item, hash, operation, now);
        }
        let key = Key::new(policy.name(), subject);
        if let Some(entry) = self.load(hash, &key, Some(policy))? {
            let item = self.insert(&mut shard, hash, key, Some(entry));
            return self.decide_on(item, hash, operation, now);
        }
        let mut entry = Entry::fresh(policy, now);
        let known = self.stored_id(hash, &key, operation)?;
        let applied = apply(operation, &mut entry, known, now)?;
        let batch = match applied.change {
            Change::Entry => {
                let item = self.insert(&mut shard, hash, key, Some(entry));
                item.ids.change(operation, applied.id, self.pipeline.durable());
                self.changed(item, hash, now)?
            }
            Change::Nothing => 0,
        };
        Ok(Answer { outcome: applied.outcome, batch })
    }

    fn decide_on(
        &self,
        item: &mut Item,
        hash: u64,
        operation: &Operation<'_>,
        now: Timestamp,
    ) -> Result<Answer, Error> {
        let ahead = item.entry.as_ref().and_then(|entry| self.time.beyond(entry.at(), now));
        if let Some(ahead) = ahead {
            if let (Operation::Standing { .. }, Some(entry)) = (operation, &item.entry) {
                // Shown as the next write will replace it.
                let outcome = apply(operation, &mut entry.mended(now), Known::New, now)?.outcome;
                return Ok(Answer { outcome, batch: 0 });
            }
            self.mend(item, hash, operation, now, ahead)?;
        }
        let known = match operation.id().and_then(|id| item.ids.known(id)) {
            Some(known) => known,
            None => self.stored_id(hash, item.key(), operation)?,
        };
        let Applied { outcome, change, id } = match &mut item.entry {
            Some(entry) => apply(operation, entry, known, now)?,
            // It was cleaned up a moment ago.
            none => {
                let mut entry = Entry::fresh(operation.policy(), now);
                let applied = apply(operation, &mut entry, known, now)?;
                if applied.change == Change::Entry {
                    *none = Some(entry);
                }
                applied
            }
        };
        item.ids.change(operation, id, self.pipeline.durable());
        let batch = match change {
            Change::Nothing if stands_alone(&outcome) => 0,
            Change::Nothing => item.changed_in,
            Change::Entry => self.changed(item, hash, now)?,
        };
        Ok(Answer { outcome, batch })
    }

    /// Replaces an entry that is `ahead` of `now`, since a wrong clock wrote it: to decide at its time would lock the
    /// subject until then.
    #[cold]
    fn mend(
        &self,
        item: &mut Item,
        hash: u64,
        operation: &Operation<'_>,
        now: Timestamp,
        ahead: Span,
    ) -> Result<(), Error> {
        item.entry = item.entry.as_ref().map(|entry| entry.mended(now));
        self.changed(item, hash, now)?;
        let (policy, subject) = (operation.policy(), operation.subject());
        let name = policy.name();
        tracing::warn!(
            policy = name,
            subject,
            ahead = ahead.for_people(),
            "entry from the future is rewritten as used up"
        );
        if let Some(observer) = &self.observer {
            observer.observe(&Event::Mended { policy, subject, ahead });
        }
        Ok(())
    }

    /// Replaces the entry of `policy` and `subject` by what `rewrite` makes of it, and returns the batch in which that is
    /// written.
    pub(crate) fn rewrite(
        &self,
        policy: &str,
        subject: &str,
        rewrite: &Rewrite<'_>,
    ) -> Result<Option<u64>, Error> {
        let (hash, key, now) =
            (self.hash(policy, subject), Key::new(policy, subject), self.time.now());
        let mut shard = self.cache.shard(hash);
        if let Some(item) = shard.find_key(hash, &key) {
            let Some(entry) = rewrite(item.entry.as_ref(), now) else { return Ok(None) };
            item.entry = Some(entry);
            return self.changed(item, hash, now).map(Some);
        }
        let found = self.load(hash, &key, None)?;
        let Some(entry) = rewrite(found.as_ref(), now) else { return Ok(None) };
        let item = self.insert(&mut shard, hash, key, Some(entry));
        self.changed(item, hash, now).map(Some)
    }

    /// What the database knows of the id of `operation`.
    fn stored_id(&self, hash: u64, key: &Key, operation: &Operation<'_>) -> Result<Known, Error> {
        let Some(id) = operation.id() else { return Ok(Known::New) };
        match self.read(hash, |connection| database::id(connection, key, id))? {
            None => Ok(Known::New),
            Some(Some(given)) => Ok(Known::Before(given)),
            Some(None) => {
                let why = format!("the row of the id {id:?} does not match its checksum");
                Err(database::damaged(&self.path, &why))
            }
        }
    }

    /// Hands the change of `item` to the writer and says in which batch it is. Under the shard's lock.
    pub(crate) fn changed(&self, item: &mut Item, hash: u64, now: Timestamp) -> Result<u64, Error> {
        if !self.pipeline.is_gathering(item.changed_in) {
            let changed = Changed { hash, key: item.key().clone() };
            item.changed_in = self.pipeline.push(now, changed)?;
        }
        Ok(item.changed_in)
    }

    pub(crate) fn insert<'a>(
        &self,
        shard: &'a mut Shard,
        hash: u64,
        key: Key,
        entry: Option<Entry>,
    ) -> &'a mut Item {
        shard.insert(hash, key, entry, self.pipeline.durable())
    }

    /// The entry of `key` in the database. Under the shard's lock, so that it is the newest: what is not in memory has
    /// been written.
    pub(crate) fn load(
        &self,
        hash: u64,
        key: &Key,
        policy: Option<&Policy>,
    ) -> Result<Option<Entry>, Error> {
        self.counters.loads.fetch_add(1, Ordering::Relaxed);
        let found = self.read(hash, |connection| database::load(connection, key, policy))?;
        found.transpose().map_err(|error| self.damaged_by(error))
    }

    /// The error of a row that does not decode.
    pub(crate) fn damaged_by(&self, error: Error) -> Error {
        let path = self.path.display();
        Error::new(ErrorKind::Corrupt, format!("{path} is damaged: {error}; {DAMAGED}"))
            .caused_by(error)
    }

    /// Runs `read` on a connection for reading, one of several by `hash`.
    pub(crate) fn read<T>(
        &self,
        hash: u64,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        let mut reader = lock(&self.readers[Cache::place(hash) % READERS]);
        if let Reader::Unopened = *reader {
            *reader = Reader::Open(database::connect(&self.path)?);
        }
        match &*reader {
            Reader::Open(connection) => {
                read(connection).map_err(|error| fault("read", &self.path, error))
            }
            _ => Err(closed()),
        }
    }

    /// Closes every connection for reading.
    pub(crate) fn close_readers(&self) {
        for reader in &self.readers {
            *lock(reader) = Reader::Closed;
        }
    }
}

/// Whether an answer that changed nothing promises nothing either, so that it need not wait for earlier changes: a
/// refusal, or a reading. A repeated ask and a permit that was settled before do rely on those.
fn stands_alone(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Decided(Decision::Denied(_)) | Outcome::Stands(_) => true,
        Outcome::Decided(Decision::Admitted(permit)) => permit.shadow_denied.is_some(),
        Outcome::Settled(_) | Outcome::Permitted(_) | Outcome::Done(_) => false,
    }
}
