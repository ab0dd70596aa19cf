//! The state of one (policy, subject): its blocks, the waiters for the next one, its planned size, and the last denial of
//! the store. Decides under its shard's lock; everything that takes time happens elsewhere.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;
use tollgate_core::{
    Amounts, Ask, ChargeRecord, Decision, Permit, Policy, REQUESTS, Span, Timestamp,
};

use super::block::{Block, Moment, Origin};
use super::cached_denial::CachedDenial;
use crate::error::{Error, ErrorKind};

/// A block is at most one part in so many of each limit, so that one instance cannot starve the others.
pub(super) const SHARE_PARTS: u64 = 16;

/// If a whole block cannot be had, one part in so many of the remaining amount is taken.
pub(super) const REMAINING_PARTS: u64 = 2;

/// The most blocks that one subject has here, ended ones that wait for settles included.
pub(super) const BLOCKS_MAX: usize = 32;

/// The most asks that wait for one subject's lease.
pub(super) const WAITERS_MAX: usize = 1_024;

/// Of a block that leaves more than one part in so many unspent, the next one is smaller by that.
const UNSPENT_PARTS: u64 = 8;

/// An ask that waits for a lease.
#[derive(Debug)]
struct Waiter {
    amounts: Amounts,
    /// On the monotonic clock.
    since: Span,
    answer: oneshot::Sender<Result<Decision, Error>>,
}

/// A local decision.
#[derive(Debug)]
pub(super) enum Local {
    /// Admitted from the block at `index`. `low` if the next block is due.
    Spent { index: usize, charge: ChargeRecord, low: bool },
    /// Denied by the cached denial.
    Refused,
    /// Only the store can decide.
    Ask,
}

/// The next lease.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) policy: Policy,
    pub(super) subject: Arc<str>,
    /// The block.
    pub(super) amounts: Amounts,
    /// The amounts of the first waiter; `None` if the block is fetched ahead of time.
    pub(super) need: Option<Amounts>,
    pub(super) id: String,
    /// Before the lease was first sent.
    pub(super) sent: Moment,
    /// The earliest promised wait, in the store's time: a pause between leases ends by then.
    pub(super) promised: Option<Timestamp>,
    epoch: u64,
}

#[derive(Debug)]
pub(super) struct SubjectState {
    pub(super) policy: Policy,
    pub(super) subject: Arc<str>,
    pub(super) blocks: Vec<Block>,
    waiters: VecDeque<Waiter>,
    /// Whether a lease is under way, of which there is one at a time.
    pub(super) leasing: bool,
    /// The size of the next block: grows if blocks do not last, shrinks to the spent amount if they do.
    size: Amounts,
    last: Option<(Moment, Amounts)>,
    pub(super) cached_denial: Option<CachedDenial>,
    promised: Option<Timestamp>,
    /// A lease whose answer was lost. It is sent again unchanged.
    unanswered: Option<Plan>,
    /// Until then asks go to the store as they are, because a block would come too late to be spent.
    no_blocks_until: Span,
    /// Whether callers give anything back here, as far as is known: estimates are settled, single requests rarely.
    pub(super) settles: bool,
    /// Counts closings and resets. Blocks of an earlier epoch are not spent.
    epoch: u64,
}

impl SubjectState {
    pub(super) fn new(policy: &Policy, subject: &str) -> Self {
        Self {
            policy: policy.clone(),
            subject: subject.into(),
            blocks: Vec::new(),
            waiters: VecDeque::new(),
            leasing: false,
            size: Amounts::default(),
            last: None,
            cached_denial: None,
            promised: None,
            unanswered: None,
            no_blocks_until: Span::ZERO,
            settles: policy.units().any(|unit| *unit != *REQUESTS),
            epoch: 0,
        }
    }

    /// Returns whether forgetting the state loses nothing but the size of its next block.
    pub(super) fn is_idle(&self, now: Moment) -> bool {
        let recent = |(sent, _): &(Moment, Amounts)| now.since(*sent) < self.policy.block_ttl();
        self.blocks.is_empty()
            && self.waiters.is_empty()
            && !self.leasing
            && !self.last.as_ref().is_some_and(recent)
    }

    /// Decides `ask` locally, if no ask waits and a block has room or a cached denial applies.
    #[inline]
    pub(super) fn answer(&mut self, ask: &Ask<'_>, now: Moment) -> Local {
        self.adopt(ask.policy());
        if self.waiters.is_empty() { self.try_spend(ask.amounts(), now) } else { Local::Ask }
    }

    #[inline]
    fn try_spend(&mut self, amounts: &Amounts, now: Moment) -> Local {
        for (index, block) in self.blocks.iter_mut().enumerate() {
            if let Some(stamp) = block.spend(amounts, now) {
                let low = !self.leasing && is_low(block, amounts) && self.cached_denial.is_none();
                let charge = ChargeRecord { at: block.permit().grant().at, stamp };
                return Local::Spent { index, charge, low: low && !self.has_spare(index, now) };
            }
        }
        match &self.cached_denial {
            Some(cached_denial) if cached_denial.refuses(&self.policy, amounts, now) => {
                Local::Refused
            }
            _ => Local::Ask,
        }
    }

    /// Returns whether [`answer`](Self::answer) would spend from a block. Changes nothing.
    pub(super) fn has_room(&self, ask: &Ask<'_>, now: Moment) -> bool {
        self.policy.has_shape_of(ask.policy())
            && self.waiters.is_empty()
            && self.blocks.iter().any(|block| block.has_room(ask.amounts(), now))
    }

    /// Notes that `ask` went to the store because no block had room. Returns whether to lease one ahead, and marks the state as
    /// leasing then: two such asks within half the life of a block would have used it.
    pub(super) fn missed(&mut self, ask: &Ask<'_>, now: Moment) -> bool {
        self.adopt(ask.policy());
        let amounts = ask.amounts();
        let is_denied = |denial: &CachedDenial| denial.refuses(&self.policy, amounts, now);
        if self.leasing
            || self.has_room(ask, now)
            || self.cached_denial.as_ref().is_some_and(is_denied)
            || !self.takes_blocks(now)
        {
            return false;
        }
        let half = self.policy.block_ttl().as_micros() / 2;
        self.leasing = self.last.is_some_and(|(sent, _)| now.since(sent).as_micros() < half);
        if !self.leasing {
            self.last = Some((now, *amounts));
        }
        self.size = Amounts::from_fn(|unit| self.size.at(unit).max(amounts.at(unit)));
        self.leasing
    }

    /// Returns whether there is a live block after the one at `index`.
    fn has_spare(&self, index: usize, now: Moment) -> bool {
        self.blocks[index + 1..].iter().any(|block| block.is_live(now))
    }

    /// Returns the permit for tokens spent from the block at `index`.
    pub(super) fn permit(
        &self,
        index: usize,
        stamp: u64,
        amounts: &Amounts,
        now: Moment,
    ) -> Permit {
        let block = &self.blocks[index];
        let mut permit =
            Permit::new(&self.policy, &self.subject, *amounts, block.grant(stamp, now));
        permit.limits.clone_from(&block.permit().limits);
        permit.degraded = block.permit().degraded;
        permit
    }

    /// Returns whether a block is worth asking for: there is room for it, and the last one did not come too late.
    pub(super) fn takes_blocks(&self, now: Moment) -> bool {
        let live = self.blocks.iter().filter(|block| block.is_live(now)).count();
        live < BLOCKS_MAX && self.no_blocks_until <= now.passed
    }

    /// Queues a waiter.
    pub(super) fn wait(
        &mut self,
        amounts: Amounts,
        now: Moment,
    ) -> Result<oneshot::Receiver<Result<Decision, Error>>, Error> {
        self.waiters.retain(|waiter| !waiter.answer.is_closed());
        if WAITERS_MAX <= self.waiters.len() {
            let text = format!("{WAITERS_MAX} asks wait for a block of {:?} already", self.subject);
            return Err(Error::new(ErrorKind::Contended, text));
        }
        let (answer, receiver) = oneshot::channel();
        self.waiters.push_back(Waiter { amounts, since: now.passed, answer });
        Ok(receiver)
    }

    /// Answers the waiters in order, as far as blocks and the cached denial go.
    pub(super) fn serve(&mut self, now: Moment) {
        while let Some(first) = self.waiters.front() {
            if first.answer.is_closed() {
                self.waiters.pop_front();
                continue;
            }
            let amounts = first.amounts;
            let (decision, spent) = match self.try_spend(&amounts, now) {
                Local::Spent { index, charge, .. } => {
                    let permit = self.permit(index, charge.stamp, &amounts, now);
                    (Decision::Admitted(permit), Some((index, charge.stamp)))
                }
                Local::Refused => match &self.cached_denial {
                    Some(cached_denial) => {
                        let denial = cached_denial.denial(&self.policy, &amounts, now);
                        (Decision::Denied(denial), None)
                    }
                    None => return,
                },
                Local::Ask => return,
            };
            let received = self
                .waiters
                .pop_front()
                .is_some_and(|waiter| waiter.answer.send(Ok(decision)).is_ok());
            if let (false, Some((index, stamp))) = (received, spent) {
                self.blocks[index].unspend(stamp, &amounts);
            }
        }
    }

    /// Answers the first waiter, if it is still of the kind that `plan` was made for. Returns whether a waiter
    /// took it.
    pub(super) fn serve_first(&mut self, plan: &Plan, answer: Decision) -> bool {
        let first = self.waiters.front().map(|waiter| waiter.amounts);
        if first != plan.need || !self.policy.has_shape_of(&plan.policy) {
            return false;
        }
        self.waiters.pop_front().is_some_and(|waiter| waiter.answer.send(Ok(answer)).is_ok())
    }

    /// Denies the first waiter, if `plan` was made for one, and caches the denial.
    pub(super) fn refuse(&mut self, plan: &Plan, cached_denial: CachedDenial) {
        // Answered here, because a refusal without a lull may be over as soon as it came.
        if let Some(need) = &plan.need {
            let denial = cached_denial.denial(&plan.policy, need, plan.sent);
            let pending = self.promised.filter(|promised| denial.decided_at < *promised);
            self.promised = [pending, denial.reset_at()].into_iter().flatten().min();
            self.serve_first(plan, Decision::Denied(denial));
        }
        self.cached_denial = Some(cached_denial);
    }

    /// Fails every waiter with `error`.
    pub(super) fn fail(&mut self, error: &Error) {
        for waiter in self.waiters.drain(..) {
            drop(waiter.answer.send(Err(error.clone())));
        }
    }

    /// Stops leasing. The waiters ask the store themselves.
    pub(super) fn abandon(&mut self) {
        self.leasing = false;
        self.waiters.clear();
    }

    /// Returns the number of the oldest ended block if another one has no room.
    pub(super) fn oldest_ended(&self, now: Moment) -> Option<u32> {
        let full = BLOCKS_MAX <= self.blocks.len();
        let ended = self.blocks.iter().find(|block| !block.is_live(now));
        ended.filter(|_| full).map(Block::number)
    }

    /// Keeps a lease without an answer, to be sent again.
    pub(super) fn keep_unanswered(&mut self, plan: Plan) {
        self.unanswered = Some(plan);
    }

    /// Stops spending everything that was leased so far.
    pub(super) fn stop(&mut self) {
        self.epoch += 1;
        self.cached_denial = None;
        self.blocks.iter_mut().for_each(Block::stop);
    }

    /// Switches to the numbers of `policy`.
    #[inline]
    pub(super) fn adopt(&mut self, policy: &Policy) {
        if !self.policy.has_shape_of(policy) {
            self.change_numbers(policy);
        }
    }

    /// Switches to `policy`. Waiters asked in the old numbers, so they ask the store themselves.
    #[cold]
    fn change_numbers(&mut self, policy: &Policy) {
        self.stop();
        self.waiters.clear();
        self.policy = policy.clone();
        self.size = Amounts::default();
        self.last = None;
    }

    /// Returns the lease to send now, if an ask waits or `ahead` is set.
    pub(super) fn plan(&mut self, ahead: bool, id: String, now: Moment) -> Option<Plan> {
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

    /// Sets the size to twice what was spent of the last block, unit by unit, if it did not last half its time and the store
    /// had more to give. Unused units shrink with it, so that a block runs out in all its units at about the same time.
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

    /// Adds the block of `plan` and serves the waiters, unless a limit was closed meanwhile.
    pub(super) fn add(&mut self, mut block: Block, plan: &Plan, now: Moment) {
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

    /// Ends the block called `number`. If a part of it was not spent, the next one is no larger than what was. Returns whether
    /// it is better kept a while.
    pub(super) fn end(&mut self, number: u32) -> bool {
        let Some(block) = self.blocks.iter().find(|block| block.number() == number) else {
            return false;
        };
        let (taken, left) = (block.taken(), block.left());
        self.size = Amounts::from_fn(|unit| {
            let (taken, left, size) = (taken.at(unit), left.at(unit), self.size.at(unit));
            if taken / UNSPENT_PARTS < left { size.min(taken.saturating_sub(left)) } else { size }
        });
        self.is_awaited(block)
    }

    /// Returns whether a part of `block` may come back soon. The store takes one return only.
    fn is_awaited(&self, block: &Block) -> bool {
        block.is_held() || self.settles && block.awaits_settles()
    }

    /// Removes the block called `number`.
    pub(super) fn remove(&mut self, number: u32) -> Option<Block> {
        let index = self.blocks.iter().position(|block| block.number() == number)?;
        Some(self.blocks.remove(index))
    }

    /// Removes the block at `index` if it has ended and no part of it may come back soon.
    pub(super) fn remove_ended(&mut self, index: usize, now: Moment) -> Option<Block> {
        let block = &self.blocks[index];
        let is_over = !block.is_live(now) && !self.is_awaited(block);
        is_over.then(|| self.blocks.remove(index))
    }

    /// Removes the block called `number` after it was kept, and learns whether keeping it was worth it.
    pub(super) fn remove_kept(&mut self, number: u32) -> Option<Block> {
        let block = self.remove(number)?;
        self.settles &= block.is_any_settled();
        Some(block)
    }

    /// Returns the index of the block that gave `permit`.
    pub(super) fn origin(&self, origin: &Origin, permit: &Permit) -> Option<usize> {
        self.blocks.iter().position(|block| block.gave(origin, permit))
    }
}

/// Returns whether less than a part of `block` is left in a unit of `amounts`, and it held some asks of that kind.
#[inline]
fn is_low(block: &Block, amounts: &Amounts) -> bool {
    // Most often there is more than the mark of everything.
    if block.left().covers(block.low_mark()) {
        return false;
    }
    let (left, mark) = (block.left(), block.low_mark());
    let low = |unit: usize| {
        let cost = amounts.at(unit);
        0 < cost && left.at(unit) < mark.at(unit) && cost < mark.at(unit)
    };
    (0..tollgate_core::bounds::UNITS_MAX).any(low)
}
