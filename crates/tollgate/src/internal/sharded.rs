//! A value per shard, each behind its own lock. The hash of (policy, subject) selects the shard.

use std::hash::{BuildHasher, Hasher};

use smallvec::SmallVec;
use tollgate_core::Policy;

use crate::sync::{Mutex, MutexGuard, lock};

/// Shards per core: enough that two cores seldom meet, few enough that the shards themselves stay in the first cache.
const SHARDS_PER_CORE: usize = 4;

/// Values behind one lock each. A hash selects the value.
#[derive(Debug)]
pub struct Sharded<S> {
    /// The shards, a power of two.
    shards: Box<[Padded<S>]>,
    hasher: foldhash::fast::RandomState,
}

/// A shard on cache lines of its own, against false sharing.
#[derive(Debug)]
#[repr(align(128))]
struct Padded<S>(Mutex<S>);

/// Returns the number of shards for at most `shards_max`.
pub(crate) fn shards(shards_max: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    shards_max.min(SHARDS_PER_CORE * cores).next_power_of_two()
}

impl<S> Sharded<S> {
    /// Creates `shards` shards, a power of two.
    pub fn new(shards: usize, shard: impl Fn() -> S) -> Self {
        Self {
            shards: (0..shards).map(|_| Padded(Mutex::new(shard()))).collect(),
            hasher: foldhash::fast::RandomState::default(),
        }
    }

    #[inline]
    pub(crate) fn hash(&self, policy: &Policy, subject: &str) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u64(policy.name_hash());
        hasher.write(subject.as_bytes());
        hasher.finish()
    }

    /// Locks the shard of `hash`.
    #[inline]
    pub fn lock(&self, hash: u64) -> MutexGuard<'_, S> {
        lock(&self.shards[self.index(hash)].0)
    }

    #[inline]
    fn index(&self, hash: u64) -> usize {
        // A hash table uses the lowest and the highest bits, so the shard takes some from between.
        usize::try_from(hash >> 32 & 0xffff).unwrap_or(0) & (self.shards.len() - 1)
    }

    /// Returns whether two hashes have one shard.
    pub(crate) fn is_one(&self, hash: u64, other: u64) -> bool {
        self.index(hash) == self.index(other)
    }

    /// Locks the shards of all `hashes`, in ascending order, so that two callers never wait for each other.
    pub fn lock_all(&self, hashes: &[u64]) -> LockedShards<'_, S> {
        let mut indices: SmallVec<[usize; 8]> =
            hashes.iter().map(|hash| self.index(*hash)).collect();
        indices.sort_unstable();
        indices.dedup();
        let guards =
            indices.into_iter().map(|index| (index, lock(&self.shards[index].0))).collect();
        LockedShards { sharded: self, guards }
    }

    /// Locks one shard after the other.
    pub fn iter(&self) -> impl Iterator<Item = MutexGuard<'_, S>> {
        self.shards.iter().map(|shard| lock(&shard.0))
    }
}

/// Several shards, each locked once.
#[derive(Debug)]
pub struct LockedShards<'a, S> {
    sharded: &'a Sharded<S>,
    guards: SmallVec<[(usize, MutexGuard<'a, S>); 8]>,
}

impl<S> LockedShards<'_, S> {
    /// The shard of `hash`, one of those that were locked.
    ///
    /// # Panics
    /// If the shard is not locked.
    pub fn shard(&mut self, hash: u64) -> &mut S {
        let index = self.sharded.index(hash);
        let guard = self.guards.iter_mut().find(|(locked, _)| *locked == index);
        &mut guard.expect("the shard of every hash is locked").1
    }
}
