//! A value per shard, each behind its own lock. The hash of (policy, subject) selects the shard.

use std::hash::{BuildHasher, Hasher};

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
        // A hash table uses the lowest and the highest bits, so the shard takes some from between.
        let index = usize::try_from(hash >> 32 & 0xffff).unwrap_or(0) & (self.shards.len() - 1);
        lock(&self.shards[index].0)
    }

    /// Locks one shard after the other.
    pub fn iter(&self) -> impl Iterator<Item = MutexGuard<'_, S>> {
        self.shards.iter().map(|shard| lock(&shard.0))
    }
}
