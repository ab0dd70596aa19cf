//! Shards: each a bounded table of entries behind one lock.
//!
//! Entries are adjacent in a vector, one cache line each, and a hash table holds their indexes in four bytes each.
//! With many keys a decision costs its cache misses, so the table is kept small enough for a near cache.

use std::sync::Arc;

use compact_str::CompactString;
use hashbrown::HashTable;
use tollgate_core::{
    Ask, Change, Entry, IdChange, Known, Operation, Outcome, Policy, Span, Timestamp, Verdict,
    acquire, apply,
};

use crate::error::{Error, ErrorKind};
use crate::internal::Ids;

use super::policy_keys::PolicyKeys;

/// A full shard in which nothing can be forgotten is not searched again for this long, so that a flood of new keys
/// cannot make every ask walk the table.
const SEARCH_PAUSE: Span = Span::from_millis(10);

/// How many entries a full shard forgets at once, if it finds them.
const FORGET_BATCH: usize = 16;

/// A key and its entry, on one cache line where the entry is a single bucket and the subject is short.
#[derive(Debug)]
#[repr(align(64))]
struct Item {
    subject: CompactString,
    entry: Entry,
}

impl Item {
    #[inline]
    fn is(&self, policy: &Policy, subject: &str) -> bool {
        self.entry.policy().is_named_as(policy) && *self.subject == *subject
    }
}

/// Hashes a key as the whole store does.
pub(super) trait Rehash: Fn(&Policy, &str) -> u64 {}

impl<F: Fn(&Policy, &str) -> u64> Rehash for F {}

#[derive(Debug)]
pub(super) struct Shard {
    /// The index of each item, by the hash of its key.
    indexes: HashTable<u32>,
    items: Vec<Item>,
    ids: Ids,
    keys_max: usize,
    policies: Arc<PolicyKeys>,
    /// The index at which the next search for idle entries begins.
    hand: usize,
    search_not_before: Timestamp,
}

impl Shard {
    /// A shard of at most `keys_max` keys, itself at most `u32::MAX`, and `ids_max` ask ids.
    pub(super) fn new(keys_max: u32, ids_max: usize, policies: Arc<PolicyKeys>) -> Self {
        Self {
            indexes: HashTable::new(),
            items: Vec::new(),
            ids: Ids::with_max(ids_max),
            keys_max: keys_max as usize,
            policies,
            hand: 0,
            search_not_before: Timestamp::EPOCH,
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.items.len()
    }

    #[inline]
    fn find(&self, hash: u64, policy: &Policy, subject: &str) -> Option<usize> {
        let is = |index: &u32| self.items[*index as usize].is(policy, subject);
        self.indexes.find(hash, is).map(|index| *index as usize)
    }

    #[inline]
    pub(super) fn acquire(
        &mut self,
        hash: u64,
        now: Timestamp,
        ask: &Ask<'_>,
        rehash: impl Rehash,
    ) -> Result<Verdict, Error> {
        if ask.id_text().is_some() {
            return self.acquire_with_id(hash, now, ask, rehash);
        }
        self.acquire_as(hash, now, ask, Known::New, rehash)
    }

    #[inline(never)]
    fn acquire_with_id(
        &mut self,
        hash: u64,
        now: Timestamp,
        ask: &Ask<'_>,
        rehash: impl Rehash,
    ) -> Result<Verdict, Error> {
        let operation = Operation::Acquire(ask);
        let known = self.ids.known(&operation, now);
        let verdict = self.acquire_as(hash, now, ask, known, rehash)?;
        self.ids.carry_out(&operation, IdChange::after(ask, verdict));
        Ok(verdict)
    }

    #[inline(always)]
    fn acquire_as(
        &mut self,
        hash: u64,
        now: Timestamp,
        ask: &Ask<'_>,
        known: Known,
        rehash: impl Rehash,
    ) -> Result<Verdict, Error> {
        let (policy, subject) = (ask.policy(), ask.subject());
        if let Some(index) = self.find(hash, policy, subject) {
            return Ok(acquire(&mut self.items[index].entry, now, ask, known)?);
        }
        let mut entry = Entry::fresh(policy, now);
        let verdict = acquire(&mut entry, now, ask, known)?;
        if matches!(verdict, Verdict::Admitted(_)) {
            self.insert(hash, now, subject, entry, rehash)?;
        }
        Ok(verdict)
    }

    pub(super) fn run(
        &mut self,
        hash: u64,
        now: Timestamp,
        operation: &Operation<'_>,
        rehash: impl Rehash,
    ) -> Result<Outcome, Error> {
        let (policy, subject) = (operation.policy(), operation.subject());
        let known = self.ids.known(operation, now);
        let applied = match self.find(hash, policy, subject) {
            Some(index) => apply(operation, &mut self.items[index].entry, known, now)?,
            None => {
                let mut entry = Entry::fresh(policy, now);
                let applied = apply(operation, &mut entry, known, now)?;
                if applied.change == Change::Entry {
                    self.insert(hash, now, subject, entry, rehash)?;
                }
                applied
            }
        };
        self.ids.carry_out(operation, applied.id);
        Ok(applied.outcome)
    }

    /// Forgets everything that equals an absent entry.
    pub(super) fn sweep(&mut self, now: Timestamp, rehash: impl Rehash) -> usize {
        self.hand = 0;
        self.forget_up_to(usize::MAX, now, rehash)
    }

    /// Returns the entry of `subject`, if there is one.
    pub(super) fn entry(
        &mut self,
        hash: u64,
        policy: &Policy,
        subject: &str,
    ) -> Option<&mut Entry> {
        self.find(hash, policy, subject).map(|place| &mut self.items[place].entry)
    }

    pub(super) const fn ids(&mut self) -> &mut Ids {
        &mut self.ids
    }

    /// Makes room for `keys` more keys, if there is not as much already. Entries that equal an absent one may be forgotten.
    pub(super) fn reserve(
        &mut self,
        keys: usize,
        now: Timestamp,
        rehash: impl Rehash,
    ) -> Result<(), Error> {
        while self.keys_max < self.items.len() + keys {
            if !self.make_room(now, &rehash) {
                return Err(self.full());
            }
        }
        Ok(())
    }

    #[cold]
    fn full(&self) -> Error {
        Error::new(
            ErrorKind::Full,
            format!(
                "memory: no room for another key, all {} of this shard hold something back; raise keys_max of the store",
                self.keys_max
            ),
        )
    }

    #[cold]
    fn insert(
        &mut self,
        hash: u64,
        now: Timestamp,
        subject: &str,
        entry: Entry,
        rehash: impl Rehash,
    ) -> Result<(), Error> {
        self.reserve(1, now, &rehash)?;
        self.policies.take(entry.policy())?;
        self.push(hash, subject, entry, rehash);
        Ok(())
    }

    /// Adds a key that [`reserve`](Self::reserve) made room for and its policy counts already.
    pub(super) fn push(&mut self, hash: u64, subject: &str, entry: Entry, rehash: impl Rehash) {
        let place = u32::try_from(self.items.len()).unwrap_or(u32::MAX);
        self.items.push(Item { subject: subject.into(), entry });
        let items = &self.items;
        self.indexes.insert_unique(hash, place, |index| key_hash(&items[*index as usize], &rehash));
    }

    fn make_room(&mut self, now: Timestamp, rehash: impl Rehash) -> bool {
        // A pause that lies further ahead than it is long was set before the clock stepped back.
        if now < self.search_not_before && self.search_not_before <= now + SEARCH_PAUSE {
            return false;
        }
        let made = 0 < self.forget_up_to(FORGET_BATCH, now, rehash);
        if !made {
            self.search_not_before = now + SEARCH_PAUSE;
        }
        made
    }

    /// Looks at every item once, from the hand on, and forgets up to `most` that equal an absent entry.
    fn forget_up_to(&mut self, most: usize, now: Timestamp, rehash: impl Rehash) -> usize {
        let mut forgotten = 0;
        for _ in 0..self.items.len() {
            if self.items.is_empty() || most <= forgotten {
                break;
            }
            self.hand %= self.items.len();
            if self.items[self.hand].entry.is_absent(now) {
                self.remove(self.hand, &rehash);
                forgotten += 1;
            } else {
                self.hand += 1;
            }
        }
        forgotten
    }

    /// Removes the item at `index`, and moves the last one there.
    fn remove(&mut self, index: usize, rehash: impl Rehash) {
        self.policies.give_back(self.items[index].entry.policy());
        let gone_hash = key_hash(&self.items[index], &rehash);
        if let Ok(gone) = self.indexes.find_entry(gone_hash, |other| *other as usize == index) {
            gone.remove();
        }
        let last = self.items.len() - 1;
        let last_hash = key_hash(&self.items[last], &rehash);
        if let Some(moved) = self.indexes.find_mut(last_hash, |other| *other as usize == last) {
            *moved = u32::try_from(index).unwrap_or(u32::MAX);
        }
        self.items.swap_remove(index);
    }
}

fn key_hash(item: &Item, rehash: impl Rehash) -> u64 {
    rehash(item.entry.policy(), &item.subject)
}
