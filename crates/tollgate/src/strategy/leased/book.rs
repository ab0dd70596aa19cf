//! The book of blocks: every desk of this instance, by (policy, subject), sharded like the memory store and bounded.

use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::HashTable;
use tollgate_core::{Amounts, Permit, Policy};

use super::block::{Block, Moment, Origin};
use super::desk::Desk;
use crate::sync::{Mutex, lock};

/// Shards per core, as in the memory store.
const SHARDS_PER_CORE: usize = 4;

#[derive(Debug)]
pub(super) struct Book {
    shards: Box<[Padded]>,
    hasher: foldhash::fast::RandomState,
    desks_max: usize,
    closed: AtomicBool,
}

/// A shard on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Padded(Mutex<Shard>);

#[derive(Debug, Default)]
struct Shard {
    desks: HashTable<Box<Desk>>,
    /// How many desks there are when idle ones are next looked for.
    sweep_at: usize,
}

/// What settling a local permit comes to.
pub(super) enum Settling {
    /// No block here gave it.
    Unknown,
    /// It was settled before.
    Before,
    /// Settled; if that was all a block that has ended waited for, here it is.
    Done(Option<Box<Block>>),
    /// So much more than the estimate has to be posted first.
    Post(Amounts),
}

impl Book {
    pub(super) fn new(subjects_max: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let shards = (SHARDS_PER_CORE * cores).next_power_of_two();
        Self {
            shards: (0..shards).map(|_| Padded(Mutex::new(Shard::default()))).collect(),
            hasher: foldhash::fast::RandomState::default(),
            desks_max: subjects_max.div_ceil(shards).max(1),
            closed: AtomicBool::new(false),
        }
    }

    #[inline]
    fn hash(&self, policy: &Policy, subject: &str) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u64(policy.name_hash());
        hasher.write(subject.as_bytes());
        hasher.finish()
    }

    #[inline]
    fn shard(&self, hash: u64) -> &Mutex<Shard> {
        let index = usize::try_from(hash >> 32 & 0xffff).unwrap_or(0) & (self.shards.len() - 1);
        &self.shards[index].0
    }

    /// Runs `work` on the desk of `policy` and `subject`, if there is one.
    #[inline]
    pub(super) fn with<T>(
        &self,
        policy: &Policy,
        subject: &str,
        work: impl FnOnce(&mut Desk) -> T,
    ) -> Option<T> {
        let hash = self.hash(policy, subject);
        let mut shard = lock(self.shard(hash));
        shard.desks.find_mut(hash, |desk| is(desk, policy, subject)).map(|desk| work(desk))
    }

    /// As [`with`](Self::with), with a new desk where there is none. Nothing if there is no room for one, or if the
    /// book is closed.
    pub(super) fn with_new<T>(
        &self,
        policy: &Policy,
        subject: &str,
        now: Moment,
        work: impl FnOnce(&mut Desk) -> T,
    ) -> Option<T> {
        let hash = self.hash(policy, subject);
        let mut shard = lock(self.shard(hash));
        // Read under the lock that closing takes too.
        if self.closed.load(Ordering::Relaxed) {
            return None;
        }
        if shard.desks.find(hash, |desk| is(desk, policy, subject)).is_none() {
            if shard.sweep_at.min(self.desks_max) <= shard.desks.len() {
                shard.desks.retain(|desk| !desk.is_idle(now));
                // Twice as many as are busy, so that looking for idle ones costs each new desk the same.
                shard.sweep_at = 2 * shard.desks.len() + 16;
            }
            if self.desks_max <= shard.desks.len() {
                return None;
            }
            let desk = Box::new(Desk::new(policy, subject));
            shard.desks.insert_unique(hash, desk, |desk| self.hash(&desk.policy, &desk.subject));
        }
        shard.desks.find_mut(hash, |desk| is(desk, policy, subject)).map(|desk| work(desk))
    }

    /// Makes no new desks from now on, and stops every block.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.for_each(Desk::stop);
    }

    /// Takes every block out.
    pub(super) fn drain(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        self.for_each(|desk| blocks.append(&mut desk.blocks));
        // In an order that does not depend on how they are hashed.
        let key = |block: &Block| {
            let permit = block.permit();
            (permit.policy().name().to_owned(), permit.subject().to_owned(), block.number())
        };
        blocks.sort_by_cached_key(key);
        blocks
    }

    fn for_each(&self, mut work: impl FnMut(&mut Desk)) {
        for shard in &self.shards {
            lock(&shard.0).desks.iter_mut().for_each(|desk| work(desk));
        }
    }

    /// Settles `permit`, which a block gave, for `actual`. What it cost beyond its estimate is drawn from a live block
    /// if one has it; otherwise it must be posted, and `posted` says that it was.
    pub(super) fn settle(
        &self,
        permit: &Permit,
        actual: &Amounts,
        now: Moment,
        posted: bool,
    ) -> Settling {
        let origin = Origin::of(permit);
        let estimate = *permit.charged().amounts;
        let settle = |desk: &mut Desk| {
            desk.settles |= !estimate.minus(actual).is_zero();
            let Some(place) = desk.origin(&origin, permit) else { return Settling::Unknown };
            if desk.blocks[place].is_settled(&origin) {
                return Settling::Before;
            }
            let extra = actual.minus(&estimate);
            if !posted && !extra.is_zero() {
                let posting = desk.blocks[place].is_posting(&origin);
                let mut live = desk.blocks.iter_mut().filter(|block| block.is_live(now));
                if posting || !live.any(|block| block.draw(&extra)) {
                    desk.blocks[place].post(&origin);
                    return Settling::Post(extra);
                }
            }
            let block = &mut desk.blocks[place];
            block.settle_once(&origin, &estimate, actual);
            let done = !block.is_live(now) && !block.awaits_settles();
            let number = block.number();
            Settling::Done(if done { desk.remove(number).map(Box::new) } else { None })
        };
        self.with(permit.policy(), permit.subject(), settle).unwrap_or(Settling::Unknown)
    }
}

#[inline]
fn is(desk: &Desk, policy: &Policy, subject: &str) -> bool {
    desk.policy.is_named_as(policy) && *desk.subject == *subject
}
