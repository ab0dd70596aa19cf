//! Plans the next lease. The size of a block follows the spending of the last one.

use std::sync::Arc;

use tollgate_core::{Amounts, Policy, Span, Timestamp};

use super::{SHARE_PARTS, SubjectState, Waiter};
use crate::strategy::leased::block::{Block, Moment};

/// Of a block that leaves more than one part in so many unspent, the next one is smaller by that.
const UNSPENT_PARTS: u64 = 8;

/// What to lease next.
#[derive(Clone, Debug)]
pub(in super::super) struct Plan {
    pub(in super::super) policy: Policy,
    pub(in super::super) subject: Arc<str>,
    /// The block.
    pub(in super::super) amounts: Amounts,
    /// What the first in line needs; nothing if the block is fetched ahead of time.
    pub(in super::super) need: Option<Amounts>,
    pub(in super::super) id: String,
    /// Before the lease was first sent.
    pub(in super::super) sent: Moment,
    /// The earliest promised wait, in the store's time: a pause between leases ends by then.
    pub(in super::super) promised: Option<Timestamp>,
    pub(super) epoch: u64,
}

impl SubjectState {
    /// Returns the lease to send now, if an ask waits or `ahead` is set.
    pub(in super::super) fn plan(&mut self, ahead: bool, id: String, now: Moment) -> Option<Plan> {
        self.serve(now);
        let need = self.waiters.front().map(|waiter| waiter.amounts);
        let ttl = self.policy.block_ttl();
        // A lease may serve one waiter only. A waiter that has waited for a block's life asks the store itself.
        let is_late = |first: &Waiter| first.since.plus(ttl) <= now.passed;
        let late = self.waiters.front().is_some_and(is_late);
        if need.is_none() && !ahead || late || !self.takes_blocks(now) {
            self.abandon();
            return None;
        }
        if let Some(plan) = self.unanswered.take().filter(|plan| {
            now.since(plan.sent).as_micros() < ttl.as_micros() / 2 && plan.epoch == self.epoch
        }) {
            return Some(Plan { need, promised: self.promised, ..plan });
        }
        self.grow(now);
        let waiting = self.waiters.iter().fold(Amounts::default(), |sum, w| sum.plus(&w.amounts));
        let cap = self.policy.block_max(SHARE_PARTS);
        let least = need.unwrap_or_default();
        let amounts = Amounts::from_fn(|unit| {
            let wanted = self.size.at(unit).max(waiting.at(unit)).min(cap.at(unit));
            wanted.max(least.at(unit))
        });
        self.last = Some((now, amounts));
        self.size = amounts;
        Some(Plan {
            policy: self.policy.clone(),
            subject: Arc::clone(&self.subject),
            amounts,
            need,
            id,
            sent: now,
            promised: self.promised,
            epoch: self.epoch,
        })
    }

    /// Twice what was spent of the last block, unit by unit, if it did not last half its time and the store had more to
    /// give. What was not asked for shrinks with it, so that a block runs out in all its units at about the same time.
    fn grow(&mut self, now: Moment) {
        let Some((sent, taken)) = self.last else { return };
        let lasted = now.since(sent).as_micros();
        let ttl = self.policy.block_ttl().as_micros();
        if self.cached_denial.take().is_some() || ttl <= lasted.saturating_mul(2) {
            return;
        }
        let same = |block: &&Block| block.sent().passed == sent.passed;
        let spent = match self.blocks.last().filter(same) {
            Some(block) => block.taken().minus(block.left()),
            None => taken,
        };
        self.size = Amounts::from_fn(|unit| spent.at(unit).saturating_mul(2));
    }

    /// A block that came for `plan`. It serves those who wait, unless something was closed meanwhile.
    pub(in super::super) fn add(&mut self, mut block: Block, plan: &Plan, now: Moment) {
        if plan.epoch != self.epoch || !self.policy.has_shape_of(&plan.policy) {
            block.stop();
        }
        if !block.is_live(now) && plan.epoch == self.epoch {
            // It came too late, or too near to where a rule starts afresh: the next ones would as well.
            let pause = Span::from_micros(self.policy.block_ttl().as_micros() / 2);
            self.no_blocks_until = now.passed.plus(pause);
        }
        self.size = *block.taken();
        self.blocks.push(block);
        self.serve(now);
    }

    /// The block called `number` is over: the next one is no larger than what was spent of it, if a part of it was not.
    /// Returns whether it is better kept a while.
    pub(in super::super) fn end(&mut self, number: u32) -> bool {
        let Some(block) = self.blocks.iter().find(|block| block.number() == number) else {
            return false;
        };
        let (taken, left) = (block.taken(), block.left());
        self.size = Amounts::from_fn(|unit| {
            let (taken, left, size) = (taken.at(unit), left.at(unit), self.size.at(unit));
            if taken / UNSPENT_PARTS < left { size.min(taken.saturating_sub(left)) } else { size }
        });
        self.settles && block.awaits_settles()
    }

    /// The block called `number` leaves.
    pub(in super::super) fn remove(&mut self, number: u32) -> Option<Block> {
        let place = self.blocks.iter().position(|block| block.number() == number)?;
        Some(self.blocks.remove(place))
    }

    /// The block called `number` leaves after it was kept in vain or not, which the next ones learn from.
    pub(in super::super) fn remove_kept(&mut self, number: u32) -> Option<Block> {
        let block = self.remove(number)?;
        self.settles &= block.is_any_settled();
        Some(block)
    }
}
