//! The blocks of this instance, by (policy, subject), in shards and bounded.

use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::HashTable;
use tollgate_core::{Amounts, Permit, Policy};

use super::block::{Block, Moment, Origin};
use super::subject_state::SubjectState;
use crate::internal::sharded::{self, Sharded};

#[derive(Debug)]
pub(super) struct SubjectMap {
    shards: Sharded<Shard>,
    /// The most subjects per shard.
    subjects_max: usize,
    closed: AtomicBool,
}

#[derive(Debug, Default)]
struct Shard {
    subjects: HashTable<Box<SubjectState>>,
    /// The number of subjects at which idle ones are next removed.
    sweep_at: usize,
}

/// The result of settling a local permit.
pub(super) enum Settling {
    /// No block of this instance gave it.
    Unknown,
    /// It was settled before.
    Before,
    /// Settled. Returns the block if it has ended and waited for nothing else.
    Done(Option<Box<Block>>),
    /// This much beyond the estimate must be posted first.
    Post(Amounts),
}

impl SubjectMap {
    pub(super) fn new(subjects_max: usize) -> Self {
        let shards = sharded::shards(usize::MAX);
        Self {
            shards: Sharded::new(shards, Shard::default),
            subjects_max: subjects_max.div_ceil(shards).max(1),
            closed: AtomicBool::new(false),
        }
    }

    /// Runs `work` on the state of `policy` and `subject`, if there is one.
    #[inline]
    pub(super) fn with<T>(
        &self,
        policy: &Policy,
        subject: &str,
        work: impl FnOnce(&mut SubjectState) -> T,
    ) -> Option<T> {
        let hash = self.shards.hash(policy, subject);
        let mut shard = self.shards.lock(hash);
        shard.subjects.find_mut(hash, |state| is(state, policy, subject)).map(|state| work(state))
    }

    /// Runs `work` as [`with`](Self::with) does, inserting a state if there is none. Returns `None` if the map is full or closed.
    pub(super) fn with_new<T>(
        &self,
        policy: &Policy,
        subject: &str,
        now: Moment,
        work: impl FnOnce(&mut SubjectState) -> T,
    ) -> Option<T> {
        let hash = self.shards.hash(policy, subject);
        let mut shard = self.shards.lock(hash);
        // Read under the lock that closing takes too.
        if self.closed.load(Ordering::Relaxed) {
            return None;
        }
        if shard.subjects.find(hash, |state| is(state, policy, subject)).is_none() {
            if shard.sweep_at.min(self.subjects_max) <= shard.subjects.len() {
                shard.subjects.retain(|state| !state.is_idle(now));
                // Twice the busy ones, so that sweeping costs each insertion the same.
                shard.sweep_at = 2 * shard.subjects.len() + 16;
            }
            if self.subjects_max <= shard.subjects.len() {
                return None;
            }
            let state = Box::new(SubjectState::new(policy, subject));
            shard.subjects.insert_unique(hash, state, |state| {
                self.shards.hash(&state.policy, &state.subject)
            });
        }
        shard.subjects.find_mut(hash, |state| is(state, policy, subject)).map(|state| work(state))
    }

    /// Inserts no more states, and stops every block.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.for_each(SubjectState::stop);
    }

    /// Removes every block.
    pub(super) fn drain(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        self.for_each(|state| blocks.append(&mut state.blocks));
        // In an order that does not depend on how they are hashed.
        let key = |block: &Block| {
            let permit = block.permit();
            (permit.policy().name().to_owned(), permit.subject().to_owned(), block.number())
        };
        blocks.sort_by_cached_key(key);
        blocks
    }

    fn for_each(&self, mut work: impl FnMut(&mut SubjectState)) {
        for mut shard in self.shards.iter() {
            shard.subjects.iter_mut().for_each(|state| work(state));
        }
    }

    /// Settles `permit`, which a block gave, for `actual`. Cost beyond the estimate is drawn from a live block if one has
    /// it. Otherwise it must be posted first, and `posted` states that it was.
    pub(super) fn settle(
        &self,
        permit: &Permit,
        actual: &Amounts,
        now: Moment,
        posted: bool,
    ) -> Settling {
        let origin = Origin::from_permit(permit);
        let estimate = *permit.charged().amounts;
        let settle = |state: &mut SubjectState| {
            state.settles |= !estimate.minus(actual).is_zero();
            let Some(index) = state.origin(&origin, permit) else { return Settling::Unknown };
            if state.blocks[index].is_settled(&origin) {
                return Settling::Before;
            }
            let extra = actual.minus(&estimate);
            if !posted && !extra.is_zero() {
                let posting = state.blocks[index].is_posting(&origin);
                let mut live = state.blocks.iter_mut().filter(|block| block.is_live(now));
                if posting || !live.any(|block| block.draw(&extra)) {
                    state.blocks[index].post(&origin);
                    return Settling::Post(extra);
                }
            }
            state.blocks[index].settle_once(&origin, &estimate, actual);
            Settling::Done(state.remove_ended(index, now).map(Box::new))
        };
        self.with(permit.policy(), permit.subject(), settle).unwrap_or(Settling::Unknown)
    }

    /// Runs `work` on the block that gave `permit`, if there is one.
    pub(super) fn with_block<T>(
        &self,
        permit: &Permit,
        work: impl FnOnce(&mut Block) -> T,
    ) -> Option<T> {
        let origin = Origin::from_permit(permit);
        let with_block = |state: &mut SubjectState| {
            let index = state.origin(&origin, permit)?;
            Some(work(&mut state.blocks[index]))
        };
        self.with(permit.policy(), permit.subject(), with_block).flatten()
    }

    /// Takes back `permit`, which a block gave and no caller received. Returns the block if it has ended and waited for
    /// nothing else.
    pub(super) fn unspend(&self, permit: &Permit, is_held: bool, now: Moment) -> Option<Block> {
        let origin = Origin::from_permit(permit);
        let unspend = |state: &mut SubjectState| {
            let index = state.origin(&origin, permit)?;
            let block = &mut state.blocks[index];
            if is_held {
                block.unhold();
            }
            block.unspend(permit.grant().stamp, permit.charged().amounts);
            state.remove_ended(index, now)
        };
        self.with(permit.policy(), permit.subject(), unspend).flatten()
    }
}

#[inline]
fn is(state: &SubjectState, policy: &Policy, subject: &str) -> bool {
    state.policy.is_named_as(policy) && *state.subject == *subject
}
