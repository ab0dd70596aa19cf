//! Cached entries, on which decisions are made.
//!
//! A shard is a table behind one lock. An item is *unwritten* until the batch of its last change is durable, and only a
//! written item may be evicted: an entry that is not cached is up to date in the database.

use std::sync::MutexGuard;

use hashbrown::HashTable;
use tollgate::core::Entry;
use tollgate::internal::{LockedShards, Sharded};

use crate::ids::{IdRecord, RecentIds};
use crate::row::Key;

/// The most cached entries, besides unwritten ones.
pub const ENTRIES_CACHED_MAX: usize = 65_536;

const SHARDS: usize = 64;

/// Every shard.
#[derive(Debug)]
pub(crate) struct Cache {
    shards: Sharded<Shard>,
}

#[derive(Debug)]
pub(crate) struct Shard {
    items: HashTable<Item>,
    items_max: usize,
}

/// One key and its entry.
#[derive(Debug)]
pub(crate) struct Item {
    hash: u64,
    key: Key,
    /// The entry; `None` if the database has none, or soon will.
    pub(crate) entry: Option<Entry>,
    /// The batch of the last change; zero if it was only read.
    pub(crate) changed_in: u64,
    /// Whether the database has a row, as of the last batch that the writer took.
    pub(crate) is_stored: bool,
    pub(crate) ids: RecentIds,
    /// The last batch that it was encoded for.
    pub(crate) encoded_in: u64,
    /// What batches that are not encoded yet hold of it, in their order, where the entry has changed since.
    pending: Vec<PendingState>,
    /// Whether it was used since the last eviction.
    used: bool,
}

/// The state of an item for a batch that is not encoded yet.
#[derive(Clone, Debug)]
pub(crate) struct PendingState {
    batch: u64,
    pub(crate) entry: Option<Entry>,
    pub(crate) ids: Vec<(Box<str>, Option<IdRecord>)>,
}

impl Cache {
    pub(crate) fn new(entries_max: usize) -> Self {
        let items_max = entries_max.div_ceil(SHARDS).max(1);
        Self { shards: Sharded::new(SHARDS, || Shard { items: HashTable::new(), items_max }) }
    }

    /// Locks the shard of `hash`.
    pub(crate) fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        self.shards.lock(hash)
    }

    /// Locks the shards of all `hashes`.
    pub(crate) fn lock_all(&self, hashes: &[u64]) -> LockedShards<'_, Shard> {
        self.shards.lock_all(hashes)
    }

    /// Returns the number of cached keys.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.items.len()).sum()
    }
}

impl Shard {
    /// Finds the item of `policy` and `subject`.
    pub(crate) fn find(&mut self, hash: u64, policy: &str, subject: &str) -> Option<&mut Item> {
        let item = self.items.find_mut(hash, |item| item.key.is(policy, subject))?;
        item.used = true;
        Some(item)
    }

    /// Finds the item of `key`.
    pub(crate) fn find_key(&mut self, hash: u64, key: &Key) -> Option<&mut Item> {
        self.items.find_mut(hash, |item| item.key == *key)
    }

    /// Adds an item for a key that is not cached. A full shard first evicts items whose last change is in a batch up to
    /// `durable`.
    pub(crate) fn insert(
        &mut self,
        hash: u64,
        key: Key,
        entry: Option<Entry>,
        is_stored: bool,
        durable: u64,
    ) -> &mut Item {
        if self.items_max <= self.items.len() {
            self.make_room(durable);
        }
        let ids = RecentIds::default();
        let (changed_in, encoded_in, pending, used) = (0, 0, Vec::new(), true);
        let item = Item { hash, key, entry, changed_in, is_stored, ids, encoded_in, pending, used };
        self.items.insert_unique(hash, item, |item| item.hash).into_mut()
    }

    /// Evicts written items that were not used since the last eviction; if there are none, all written items.
    fn make_room(&mut self, durable: u64) {
        let before = self.items.len();
        self.items.retain(|item| durable < item.changed_in || std::mem::take(&mut item.used));
        if self.items.len() == before {
            self.items.retain(|item| durable < item.changed_in);
        }
    }
}

impl Item {
    pub(crate) const fn key(&self) -> &Key {
        &self.key
    }

    /// Enters `batch`, which writes the next change together with those of other keys. An older batch that is not encoded
    /// yet gets a copy of what is there now.
    pub(crate) fn enter(&mut self, batch: u64) {
        let before = self.changed_in;
        if before < batch && self.encoded_in < before {
            let ids = self.ids.take_unwritten(before);
            let ids = ids.map(|(id, record)| (id.into(), record.cloned())).collect();
            self.pending.push(PendingState { batch: before, entry: self.entry.clone(), ids });
        }
        self.changed_in = batch;
    }

    /// Returns what `batch` writes, if that is not the present state.
    pub(crate) fn take_pending(&mut self, batch: u64) -> Option<PendingState> {
        if self.pending.first()?.batch == batch {
            return Some(self.pending.remove(0));
        }
        self.pending.first().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subjects(shard: &Shard) -> Vec<String> {
        let mut subjects: Vec<_> =
            shard.items.iter().map(|item| item.key.subject().to_owned()).collect();
        subjects.sort();
        subjects
    }

    #[test]
    fn a_full_shard_forgets_only_what_is_written() {
        let mut shard = Shard { items: HashTable::new(), items_max: 4 };
        for (number, subject) in (1..).zip(["a", "b", "c", "d"]) {
            shard.insert(number, Key::new("p", subject), None, false, 0).changed_in = number;
        }
        // Batches 1 and 2 are durable, so "a" and "b" may go, and nothing else.
        shard.insert(5, Key::new("p", "e"), None, false, 2);
        assert_eq!(subjects(&shard), ["c", "d", "e"]);
        // All but "e" are unwritten: the shard grows rather than forget.
        shard.insert(6, Key::new("p", "f"), None, false, 2);
        shard.insert(7, Key::new("p", "g"), None, false, 2).changed_in = 7;
        shard.insert(8, Key::new("p", "h"), None, false, 2);
        assert_eq!(subjects(&shard), ["c", "d", "g", "h"]);
    }

    #[test]
    fn what_was_asked_for_lately_stays_longer() {
        let mut shard = Shard { items: HashTable::new(), items_max: 3 };
        for (hash, subject) in (1..).zip(["a", "b", "c"]) {
            shard.insert(hash, Key::new("p", subject), None, false, 0).used = false;
        }
        assert!(shard.find(2, "p", "b").is_some());
        shard.insert(4, Key::new("p", "d"), None, false, 0);
        assert_eq!(subjects(&shard), ["b", "d"]);
    }
}
