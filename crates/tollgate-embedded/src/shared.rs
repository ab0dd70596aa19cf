//! State shared by callers, the writer and the maintenance thread, and the decision itself.

use std::hash::BuildHasher;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rusqlite::Connection;
use tollgate::core::{Applied, Change, Entry, IdChange, JoinedOutcome, Known, apply};
use tollgate::entries::Rewrite;
use tollgate::gate::{Operation, Outcome};
use tollgate::observe::{Event, Observer};
use tollgate::{Decision, Error, ErrorKind, Policy, Span, Timestamp};

use crate::cache::{Cache, Item, Shard};
use crate::database::{self, DAMAGED, fault};
use crate::group_commit::{Changed, GroupCommit, closed};
use crate::ids::IdRecord;
use crate::keys::{Bound, Keys};
use crate::maintenance::{Requests, Sweep};
use crate::options::Durability;
use crate::row::Key;
use crate::sync::lock;
use crate::time::Time;

/// Read connections.
const READERS: usize = 4;

/// Counters of a store since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Entries in memory now.
    pub entries_cached: usize,
    /// Keys with an entry now, in memory or on disk.
    pub keys: u64,
    /// Lookups of entries in the database.
    pub loads: u64,
    /// Committed transactions.
    pub commits: u64,
    /// Rows written or removed by them.
    pub rows: u64,
    /// Idle entries removed.
    pub cleaned_up: u64,
}

#[derive(Debug)]
pub(crate) struct Shared {
    /// The database file.
    pub(crate) path: PathBuf,
    pub(crate) time: Time,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) cache: Cache,
    pub(crate) keys: Keys,
    pub(crate) group_commit: GroupCommit,
    pub(crate) requests: Requests,
    /// Held during a commit, and by maintenance for the end of a checkpoint.
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

/// A read connection, opened on first use.
#[derive(Debug, Default)]
enum Reader {
    #[default]
    Unopened,
    Open(Connection),
    Closed,
}

/// An outcome, and the batch that must be durable first; zero for none.
pub(crate) struct Decided {
    pub(crate) outcome: Outcome,
    pub(crate) batch: u64,
}

impl Shared {
    pub(crate) fn new(
        path: PathBuf,
        time: Time,
        observer: Option<Arc<dyn Observer>>,
        durability: Durability,
        cache: Cache,
        keys: Keys,
    ) -> Self {
        Self {
            path,
            time,
            observer,
            cache,
            keys,
            group_commit: GroupCommit::new(durability),
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
            keys: self.keys.total(),
            loads: read(&self.counters.loads),
            commits: read(&self.counters.commits),
            rows: read(&self.counters.rows),
            cleaned_up: read(&self.counters.cleaned_up),
        }
    }

    /// Decides `operation` at `now`. Evicts entries that equal an absent one if there is no room for a new key.
    pub(crate) fn decide(
        &self,
        operation: &Operation<'_>,
        now: Timestamp,
    ) -> Result<Decided, Error> {
        self.group_commit.check_open()?;
        match operation {
            Operation::Acquire(ask) | Operation::Charge(ask) if ask.has_several_charges() => {
                self.decide_joint(operation, ask, now)
            }
            joint if joint.is_joint() => {
                let (mut joined, mut batch) = (JoinedOutcome::default(), 0);
                for part in joint.parts()? {
                    joined.add(self.decide_single(&part.operation(), now).map(|decided| {
                        batch = batch.max(decided.batch);
                        decided.outcome
                    }));
                }
                Ok(Decided { outcome: joined.finish()?, batch })
            }
            single => self.decide_single(single, now),
        }
    }

    fn decide_single(&self, operation: &Operation<'_>, now: Timestamp) -> Result<Decided, Error> {
        match self.decide_once(operation, now) {
            Err(full) if full.kind() == ErrorKind::Full => {
                if self.make_room(&[operation.policy()], now)? {
                    self.decide_once(operation, now)
                } else {
                    Err(full)
                }
            }
            decided => decided,
        }
    }

    /// Evicts entries to make room for a key of each of `policies`. Returns whether there may be room now.
    #[cold]
    pub(crate) fn make_room(&self, policies: &[&Policy], now: Timestamp) -> Result<bool, Error> {
        while let Some((bound, policy)) = self.keys.exceeded(policies) {
            let scope = match bound {
                Bound::Policy(_) => policy.name(),
                Bound::Store(_) => "",
            };
            let is_made: Result<bool, Error> = self.keys.search(scope, |search| {
                if self.keys.exceeded(policies).is_none() {
                    return Ok(true);
                }
                if search.is_paused(now) {
                    return Ok(false);
                }
                let mut sweep = Sweep::within(scope, std::mem::take(&mut search.after));
                let is_made = sweep.evict(self, now)?;
                search.after = sweep.into_position();
                if !is_made {
                    search.pause(now);
                }
                Ok(is_made)
            });
            if !is_made? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Decides `operation` on the cached entry, and loads it first if necessary.
    fn decide_once(&self, operation: &Operation<'_>, now: Timestamp) -> Result<Decided, Error> {
        let (policy, subject) = (operation.policy(), operation.subject());
        let hash = self.hash(policy.name(), subject);
        let mut shard = self.cache.shard(hash);
        if let Some(item) = shard.find(hash, policy.name(), subject) {
            return self.decide_on(item, hash, operation, now);
        }
        let key = Key::new(policy.name(), subject);
        if let Some(entry) = self.load(hash, &key, Some(policy))? {
            let item = self.insert(&mut shard, hash, key, Some(entry), true);
            return self.decide_on(item, hash, operation, now);
        }
        let mut entry = Entry::fresh(policy, now);
        let known = known(self.stored_id(hash, &key, operation)?.as_ref());
        let applied = apply(operation, &mut entry, known, now)?;
        let batch = match (applied.change, applied.id) {
            (Change::Nothing, IdChange::Nothing) => 0,
            (change, id) => {
                let entry = (change == Change::Entry).then_some(entry);
                if entry.is_some() {
                    self.keys.take(&[policy])?;
                }
                let item = self.insert(&mut shard, hash, key, entry, false);
                item.ids.change(operation, id, self.group_commit.durable());
                self.changed(item, hash, now)?
            }
        };
        Ok(Decided { outcome: applied.outcome, batch })
    }

    fn decide_on(
        &self,
        item: &mut Item,
        hash: u64,
        operation: &Operation<'_>,
        now: Timestamp,
    ) -> Result<Decided, Error> {
        let ahead = item.entry.as_ref().and_then(|entry| self.time.beyond(entry.at(), now));
        if let Some(ahead) = ahead {
            if let (Operation::Standing { .. }, Some(entry)) = (operation, &item.entry) {
                // Shows the entry as the next write will replace it.
                let outcome = apply(operation, &mut entry.repaired(now), Known::New, now)?.outcome;
                return Ok(Decided { outcome, batch: 0 });
            }
            self.repair(item, hash, (operation.policy(), operation.subject()), now, ahead)?;
        }
        let known = match operation.id().and_then(|id| item.ids.find(id)) {
            Some(recent) => known(recent),
            None => known(self.stored_id(hash, item.key(), operation)?.as_ref()),
        };
        let Applied { outcome, change, id } = match &mut item.entry {
            Some(entry) => apply(operation, entry, known, now)?,
            // It was just cleaned up.
            none => {
                let mut entry = Entry::fresh(operation.policy(), now);
                let applied = apply(operation, &mut entry, known, now)?;
                if applied.change == Change::Entry {
                    self.keys.take(&[operation.policy()])?;
                    *none = Some(entry);
                }
                applied
            }
        };
        item.ids.change(operation, id, self.group_commit.durable());
        let batch = match (change, id) {
            (Change::Nothing, IdChange::Nothing) if is_independent(&outcome) => 0,
            (Change::Nothing, IdChange::Nothing) => item.changed_in,
            _ => self.changed(item, hash, now)?,
        };
        Ok(Decided { outcome, batch })
    }

    /// Replaces an entry from the future, which a wrong clock wrote: deciding at its time would lock the subject until then.
    #[cold]
    pub(crate) fn repair(
        &self,
        item: &mut Item,
        hash: u64,
        (policy, subject): (&Policy, &str),
        now: Timestamp,
        ahead: Span,
    ) -> Result<(), Error> {
        item.entry = item.entry.as_ref().map(|entry| entry.repaired(now));
        self.changed(item, hash, now)?;
        let name = policy.name();
        tracing::warn!(
            policy = name,
            subject,
            ahead = ahead.humanize(),
            "entry from the future is rewritten as used up"
        );
        if let Some(observer) = &self.observer {
            observer.observe(&Event::Repaired { policy, subject, ahead });
        }
        Ok(())
    }

    /// Replaces the entry of `policy` and `subject` by the result of `rewrite`, and returns the batch of the write.
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
            if item.entry.is_none() {
                self.keys.take_unshared(policy)?;
            }
            item.entry = Some(entry);
            return self.changed(item, hash, now).map(Some);
        }
        let found = self.load(hash, &key, None)?;
        let Some(entry) = rewrite(found.as_ref(), now) else { return Ok(None) };
        if found.is_none() {
            self.keys.take_unshared(policy)?;
        }
        let item = self.insert(&mut shard, hash, key, Some(entry), found.is_some());
        self.changed(item, hash, now).map(Some)
    }

    /// Looks up the id of `operation` in the database.
    pub(crate) fn stored_id(
        &self,
        hash: u64,
        key: &Key,
        operation: &Operation<'_>,
    ) -> Result<Option<IdRecord>, Error> {
        let Some(id) = operation.id() else { return Ok(None) };
        match self.read(hash, |connection| database::id(connection, key, id))? {
            None => Ok(None),
            Some(Some(record)) => Ok(Some(record)),
            Some(None) => {
                let why = format!("the row of the id {id:?} does not match its checksum");
                Err(database::damaged(&self.path, &why))
            }
        }
    }

    /// Queues the change of `item` for the writer, and returns its batch. Requires the shard's lock.
    pub(crate) fn changed(&self, item: &mut Item, hash: u64, now: Timestamp) -> Result<u64, Error> {
        if !self.group_commit.is_gathering(item.changed_in) {
            let changed = Changed { hash, key: item.key().clone() };
            item.changed_in = self.group_commit.push(now, changed)?;
        }
        Ok(item.changed_in)
    }

    pub(crate) fn insert<'a>(
        &self,
        shard: &'a mut Shard,
        hash: u64,
        key: Key,
        entry: Option<Entry>,
        is_stored: bool,
    ) -> &'a mut Item {
        shard.insert(hash, key, entry, is_stored, self.group_commit.durable())
    }

    /// Loads the entry of `key` from the database. Requires the shard's lock: an entry that is not cached has been written.
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

    /// Describes a row that does not decode.
    pub(crate) fn damaged_by(&self, error: Error) -> Error {
        let path = self.path.display();
        Error::new(ErrorKind::Corrupt, format!("{path} is damaged: {error}; {DAMAGED}"))
            .caused_by(error)
    }

    /// Runs `read` on one of the read connections, chosen by `hash`.
    pub(crate) fn read<T>(
        &self,
        hash: u64,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        let index = usize::try_from(hash >> 32 & 0xffff).unwrap_or(0) % READERS;
        let mut reader = lock(&self.readers[index]);
        if let Reader::Unopened = *reader {
            *reader = Reader::Open(database::open(&self.path)?);
        }
        match &*reader {
            Reader::Open(connection) => {
                read(connection).map_err(|error| fault("read", &self.path, error))
            }
            _ => Err(closed()),
        }
    }

    /// Closes every read connection.
    pub(crate) fn close_readers(&self) {
        for reader in &self.readers {
            *lock(reader) = Reader::Closed;
        }
    }
}

/// What is known of the id of an operation from its record.
pub(crate) fn known(record: Option<&IdRecord>) -> Known {
    record.map_or(Known::New, |record| Known::Before(record.given))
}

/// Whether an outcome without a change need not wait for earlier changes: a read, or an admission that charges
/// nothing. A denial, a repeated ask, and a permit that was settled before rely on those: if their write fails,
/// they never happened.
fn is_independent(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Standings(_) => true,
        Outcome::Decided(Decision::Admitted(permit)) => !permit.is_charged(),
        Outcome::Decided(Decision::Denied(_)) | Outcome::Changed(_) | Outcome::Permitted(_) => {
            false
        }
    }
}
