//! Every account of one instance, in shards, bounded.
//!
//! An account is a cache of the store's entry plus what the store does not know yet. One with nothing unposted may be
//! forgotten; the next ask for its subject asks the store and begins a new one, so forgetting admits nothing twice.

use hashbrown::HashTable;
use tollgate_core::{Policy, Span, Timestamp};

use super::account::Account;
use super::post::Key;
use crate::internal::sharded::Sharded;
use crate::sync::MutexGuard;

const SHARDS: usize = 64;

/// An account that was not asked for this long may make room for another subject.
const IDLE_AFTER: Span = Span::from_mins(1);

#[derive(Debug)]
pub(super) struct Ledger {
    shards: Sharded<Shard>,
    shard_max: usize,
}

#[derive(Debug, Default)]
struct Shard {
    accounts: HashTable<Account>,
    /// When a full shard may be searched for idle accounts again.
    search_not_before: Timestamp,
}

impl Ledger {
    pub(super) fn new(subjects_max: usize) -> Self {
        let shards = Sharded::new(SHARDS, Shard::default);
        Self { shards, shard_max: subjects_max.div_ceil(SHARDS) }
    }

    /// Runs `change` on the account of this policy and subject, if there is one.
    #[inline]
    pub(super) fn with<R>(
        &self,
        policy: &Policy,
        subject: &str,
        change: impl FnOnce(&mut Account) -> R,
    ) -> Option<R> {
        let hash = self.shards.hash(policy, subject);
        let mut shard = self.shards.lock(hash);
        shard.accounts.find_mut(hash, |account| account.is(policy, subject)).map(change)
    }

    /// Runs `change` on the account of this policy and subject, which `make` makes if there is room for a new one.
    pub(super) fn with_new<R>(
        &self,
        (policy, subject): (&Policy, &str),
        now: Timestamp,
        make: impl FnOnce() -> Account,
        change: impl FnOnce(&mut Account) -> R,
    ) -> Option<R> {
        let hash = self.shards.hash(policy, subject);
        let mut shard = self.shards.lock(hash);
        if shard.accounts.find(hash, |account| account.is(policy, subject)).is_none() {
            if self.shard_max <= shard.accounts.len() && !shard.forget_idle(now) {
                return None;
            }
            let rehash = |account: &Account| self.shards.hash(account.policy(), &account.subject);
            shard.accounts.insert_unique(hash, make(), rehash);
        }
        shard.accounts.find_mut(hash, |account| account.is(policy, subject)).map(change)
    }

    /// Ends settling in every account.
    pub(super) fn end(&self) {
        for mut shard in self.shards.iter() {
            shard.accounts.iter_mut().for_each(|account| account.outbox_mut().end());
        }
    }

    /// Returns the accounts that still have calls for the store.
    pub(super) fn with_calls(&self) -> Vec<Key> {
        let keys = |shard: MutexGuard<'_, Shard>| {
            let busy = shard.accounts.iter().filter(|account| account.has_calls());
            busy.map(|account| (account.policy().clone(), account.subject.clone())).collect()
        };
        let mut busy: Vec<Key> =
            self.shards.iter().flat_map(|shard| -> Vec<_> { keys(shard) }).collect();
        // In an order that does not depend on how they are hashed.
        busy.sort_by(|(a, one), (b, other)| (a.name(), one).cmp(&(b.name(), other)));
        busy
    }
}

impl Shard {
    fn forget_idle(&mut self, now: Timestamp) -> bool {
        // A search that lies further ahead than a pause is long was set before the clock stepped back.
        if now < self.search_not_before && self.search_not_before <= now + IDLE_AFTER {
            return false;
        }
        let before = self.accounts.len();
        self.accounts.retain(|account| {
            account.posting || account.has_calls() || now < account.view().at() + IDLE_AFTER
        });
        self.search_not_before = now + Span::from_secs(1);
        self.accounts.len() < before
    }
}
