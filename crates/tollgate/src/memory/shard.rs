//! One shard: a bounded table of entries behind one lock.

use compact_str::CompactString;
use hashbrown::HashTable;
use tollgate_core::{
    Ask, Change, Entry, Operation, Outcome, Policy, Span, Timestamp, Verdict, acquire, apply,
};

use crate::error::{Error, ErrorKind};

/// A full shard in which nothing can be forgotten is not searched again for this long, so that a flood of new keys
/// cannot make every ask walk the table.
const SWEEP_PAUSE: Span = Span::from_millis(10);

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

#[derive(Debug)]
pub(super) struct Shard {
    items: HashTable<Item>,
    keys_max: usize,
    sweep_not_before: Timestamp,
}

impl Shard {
    pub(super) const fn new(keys_max: usize) -> Self {
        Self { items: HashTable::new(), keys_max, sweep_not_before: Timestamp::EPOCH }
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    #[inline]
    pub(super) fn acquire(
        &mut self,
        hash: u64,
        now: Timestamp,
        ask: &Ask<'_>,
        rehash: impl Fn(&str, &str) -> u64,
    ) -> Result<Verdict, Error> {
        let (policy, subject) = (ask.policy(), ask.subject());
        if let Some(item) = self.items.find_mut(hash, |item| item.is(policy, subject)) {
            return Ok(acquire(&mut item.entry, now, ask)?);
        }
        let mut entry = Entry::fresh(policy, now);
        let verdict = acquire(&mut entry, now, ask)?;
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
        rehash: impl Fn(&str, &str) -> u64,
    ) -> Result<Outcome, Error> {
        let (policy, subject) = (operation.policy(), operation.subject());
        match self.items.find_entry(hash, |item| item.is(policy, subject)) {
            Ok(mut found) => {
                let (outcome, change) = apply(operation, &mut found.get_mut().entry, now)?;
                if change == Change::Removal {
                    found.remove();
                }
                Ok(outcome)
            }
            Err(_) => {
                let mut entry = Entry::fresh(policy, now);
                let (outcome, change) = apply(operation, &mut entry, now)?;
                match change {
                    Change::Entry => self.insert(hash, now, subject, entry, rehash)?,
                    Change::Removal => return Ok(Outcome::Done(false)),
                    Change::Nothing => {}
                }
                Ok(outcome)
            }
        }
    }

    /// Forgets what equals an absent entry.
    pub(super) fn sweep(&mut self, now: Timestamp) -> usize {
        let before = self.items.len();
        self.items.retain(|item| !item.entry.is_absent(now));
        before - self.items.len()
    }

    fn insert(
        &mut self,
        hash: u64,
        now: Timestamp,
        subject: &str,
        entry: Entry,
        rehash: impl Fn(&str, &str) -> u64,
    ) -> Result<(), Error> {
        if self.keys_max <= self.items.len() && !self.make_room(now) {
            return Err(Error::new(
                ErrorKind::Full,
                format!(
                    "memory: no room for another key, all {} of this shard hold something back; raise keys_max",
                    self.keys_max
                ),
            ));
        }
        let rehash = |item: &Item| rehash(item.entry.policy().name(), &item.subject);
        self.items.insert_unique(hash, Item { subject: subject.into(), entry }, rehash);
        Ok(())
    }

    fn make_room(&mut self, now: Timestamp) -> bool {
        if now < self.sweep_not_before {
            return false;
        }
        let made = 0 < self.sweep(now);
        if !made {
            self.sweep_not_before = now + SWEEP_PAUSE;
        }
        made
    }
}
