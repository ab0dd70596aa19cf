//! The state of one (policy, subject): its blocks, who waits for the next one, how large that is, and what the store
//! last refused. Decides under its shard's lock; everything that takes time happens elsewhere.

mod cached_denial;
mod plan;

pub(super) use cached_denial::CachedDenial;
pub(super) use plan::Plan;

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;
use tollgate_core::{
    Amounts, Ask, ChargeRecord, Decision, Permit, Policy, REQUESTS, Span, Timestamp,
};

use super::block::{Block, Moment, Origin};
use crate::error::{Error, ErrorKind};

/// A block is at most one part in so many of each limit, so that one instance cannot starve the others.
pub(super) const SHARE_PARTS: u64 = 16;

/// Where a whole block cannot be had, one part in so many of what remains is taken.
pub(super) const REMAINING_PARTS: u64 = 2;

/// The most blocks that one subject has here, ended ones that wait for settles included.
pub(super) const BLOCKS_MAX: usize = 32;

/// The most asks that wait for one subject's lease.
pub(super) const WAITERS_MAX: usize = 1_024;

/// An ask that waits for a lease.
#[derive(Debug)]
struct Waiter {
    amounts: Amounts,
    /// On the monotonic clock.
    since: Span,
    answer: oneshot::Sender<Result<Decision, Error>>,
}

/// How an ask can be answered without the store.
#[derive(Debug)]
pub(super) enum Local {
    /// Out of a block; whether the next one should be fetched by now.
    Spent { place: usize, charge: ChargeRecord, low: bool },
    /// As the store refused not long ago.
    Refused,
    /// Not at all.
    Ask,
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

    /// Whether forgetting the state loses nothing but the size of its next block.
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
        for (place, block) in self.blocks.iter_mut().enumerate() {
            if let Some(stamp) = block.spend(amounts, now) {
                let low = !self.leasing && is_low(block, amounts) && self.cached_denial.is_none();
                let charge = ChargeRecord { at: block.permit().grant().at, stamp };
                return Local::Spent { place, charge, low: low && !self.has_spare(place, now) };
            }
        }
        match &self.cached_denial {
            Some(cached_denial) if cached_denial.refuses(&self.policy, amounts, now) => {
                Local::Refused
            }
            _ => Local::Ask,
        }
    }

    /// Returns whether there is a live block after the one at `place`.
    fn has_spare(&self, place: usize, now: Moment) -> bool {
        self.blocks[place + 1..].iter().any(|block| block.is_live(now))
    }

    /// Returns the permit for tokens spent from the block at `place`.
    pub(super) fn permit(
        &self,
        place: usize,
        stamp: u64,
        amounts: &Amounts,
        now: Moment,
    ) -> Permit {
        let block = &self.blocks[place];
        let mut permit =
            Permit::new(&self.policy, &self.subject, *amounts, block.grant(stamp, now));
        permit.limits.clone_from(&block.permit().limits);
        permit.degraded = block.permit().degraded;
        permit
    }

    /// Whether a block is worth asking for: there is room for it, and the last one did not come too late.
    pub(super) fn takes_blocks(&self, now: Moment) -> bool {
        let live = self.blocks.iter().filter(|block| block.is_live(now)).count();
        live < BLOCKS_MAX && self.no_blocks_until <= now.passed
    }

    /// Joins the end of the line.
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

    /// Answers those who wait, in their order, as far as blocks and refusals go.
    pub(super) fn serve(&mut self, now: Moment) {
        while let Some(first) = self.waiters.front() {
            if first.answer.is_closed() {
                self.waiters.pop_front();
                continue;
            }
            let amounts = first.amounts;
            let (decision, spent) = match self.try_spend(&amounts, now) {
                Local::Spent { place, charge, .. } => {
                    let permit = self.permit(place, charge.stamp, &amounts, now);
                    (Decision::Admitted(permit), Some((place, charge.stamp)))
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
            if let (false, Some((place, stamp))) = (received, spent) {
                self.blocks[place].unspend(stamp, &amounts);
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

    /// The oldest block that can be spent no more, to make room for another.
    pub(super) fn oldest_ended(&self, now: Moment) -> Option<u32> {
        let full = BLOCKS_MAX <= self.blocks.len();
        let ended = self.blocks.iter().find(|block| !block.is_live(now));
        ended.filter(|_| full).map(Block::number)
    }

    /// Keeps a lease without an answer, to be sent again.
    pub(super) fn keep_unanswered(&mut self, plan: Plan) {
        self.unanswered = Some(plan);
    }

    /// Nothing that was leased up to now is spent any more.
    pub(super) fn stop(&mut self) {
        self.epoch += 1;
        self.cached_denial = None;
        self.blocks.iter_mut().for_each(Block::stop);
    }

    /// From now on by the numbers of `policy`.
    #[inline]
    pub(super) fn adopt(&mut self, policy: &Policy) {
        if !self.policy.has_shape_of(policy) {
            self.change_numbers(policy);
        }
    }

    /// From now on by `policy`. Those who wait spoke in other numbers, and ask the store themselves.
    #[cold]
    fn change_numbers(&mut self, policy: &Policy) {
        self.stop();
        self.waiters.clear();
        self.policy = policy.clone();
        self.size = Amounts::default();
        self.last = None;
    }

    /// The block that gave `permit`, by its place.
    pub(super) fn origin(&self, origin: &Origin, permit: &Permit) -> Option<usize> {
        self.blocks.iter().position(|block| block.gave(origin, permit))
    }
}

/// Whether less than a part of `block` is left in a unit that `amounts` has, and it held some asks of that kind.
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
