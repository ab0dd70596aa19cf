//! Entries in memory: where decisions are taken.
//!
//! A shard is a table behind one lock. An item is *unwritten* from the moment its entry changes until the batch that
//! contains the change is durable, and only a written item may be forgotten: so what is not here is in the database
//! as it was last changed.

use std::sync::{Mutex, MutexGuard};

use hashbrown::HashTable;
use tollgate::core::Entry;

use crate::ids::RecentIds;
use crate::row::Key;
use crate::sync::lock;

/// How many entries are kept in memory, besides those that are not written yet.
pub const ENTRIES_CACHED_MAX: usize = 65_536;

const SHARDS: usize = 64;

/// Every shard.
#[derive(Debug)]
pub(crate) struct Cache {
    shards: Box<[Padded]>,
}

/// A shard on cache lines of its own, so that two cores on two shards do not disturb each other.
#[derive(Debug)]
#[repr(align(128))]
struct Padded(Mutex<Shard>);

/// Some of the entries.
#[derive(Debug)]
pub(crate) struct Shard {
    items: HashTable<Item>,
    items_max: usize,
}

/// One key and what is known about it.
#[derive(Debug)]
pub(crate) struct Item {
    hash: u64,
    key: Key,
    /// The entry; nothing if the database is known to have none, or soon will.
    pub(crate) entry: Option<Entry>,
    /// The batch that contains the last change; zero if it was only read.
    pub(crate) changed_in: u64,
    pub(crate) ids: RecentIds,
    /// Whether somebody asked for it since the shard was last full.
    used: bool,
}

impl Cache {
    pub(crate) fn new(entries_max: usize) -> Self {
        let items_max = entries_max.div_ceil(SHARDS).max(1);
        let shard = || Padded(Mutex::new(Shard { items: HashTable::new(), items_max }));
        Self { shards: (0..SHARDS).map(|_| shard()).collect() }
    }

    /// The shard that `hash` belongs to.
    pub(crate) fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        lock(&self.shards[Self::place(hash)].0)
    }

    /// The number of the shard that `hash` belongs to. The table uses the lowest and the highest bits of a hash; the
    /// shard takes some from between.
    pub(crate) fn place(hash: u64) -> usize {
        usize::try_from(hash >> 32 & 0xffff).unwrap_or(0) % SHARDS
    }

    /// How many keys are in memory now.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(&shard.0).items.len()).sum()
    }
}

impl Shard {
    /// The item of `policy` and `subject`, if it is in memory.
    pub(crate) fn find(&mut self, hash: u64, policy: &str, subject: &str) -> Option<&mut Item> {
        let item = self.items.find_mut(hash, |item| item.key.is(policy, subject))?;
        item.used = true;
        Some(item)
    }

    /// The item with `key`, if it is in memory.
    pub(crate) fn find_key(&mut self, hash: u64, key: &Key) -> Option<&mut Item> {
        self.items.find_mut(hash, |item| item.key == *key)
    }

    /// Adds an item for a key that is not in memory. Makes room first if there is none, among those whose last change
    /// is in a batch up to `durable`.
    pub(crate) fn insert(
        &mut self,
        hash: u64,
        key: Key,
        entry: Option<Entry>,
        durable: u64,
    ) -> &mut Item {
        if self.items_max <= self.items.len() {
            self.make_room(durable);
        }
        let item = Item { hash, key, entry, changed_in: 0, ids: RecentIds::default(), used: true };
        self.items.insert_unique(hash, item, |item| item.hash).into_mut()
    }

    /// Forgets what nobody asked for since the last time, or if there is nothing such, all that may be forgotten.
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
            shard.insert(number, Key::new("p", subject), None, 0).changed_in = number;
        }
        // Batches 1 and 2 are durable, so "a" and "b" may go, and nothing else.
        shard.insert(5, Key::new("p", "e"), None, 2);
        assert_eq!(subjects(&shard), ["c", "d", "e"]);
        // All but "e" are unwritten: the shard grows rather than forget.
        shard.insert(6, Key::new("p", "f"), None, 2);
        shard.insert(7, Key::new("p", "g"), None, 2).changed_in = 7;
        shard.insert(8, Key::new("p", "h"), None, 2);
        assert_eq!(subjects(&shard), ["c", "d", "g", "h"]);
    }

    #[test]
    fn what_was_asked_for_lately_stays_longer() {
        let mut shard = Shard { items: HashTable::new(), items_max: 3 };
        for (hash, subject) in (1..).zip(["a", "b", "c"]) {
            shard.insert(hash, Key::new("p", subject), None, 0).used = false;
        }
        assert!(shard.find(2, "p", "b").is_some());
        shard.insert(4, Key::new("p", "d"), None, 0);
        assert_eq!(subjects(&shard), ["b", "d"]);
    }
}
