//! The outbox of an account: the batches of admitted asks, the refunds, and the progress of posting them.
//!
//! Admitted asks gather in the open batch, which is sent as one charge. The store settles a permit once, so the refunds of
//! the asks in a batch are gathered until the last of them is settled, or the instance ends. At a modest rate a batch is a
//! single ask, and its refund is posted at once.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use tokio::sync::Notify;
use tollgate_core::{Amounts, Ask, Costs, Permit};

use crate::error::Error;

/// The most batches of one subject whose permits can still be settled. Beyond it the oldest posts the refunds it has
/// gathered, and the rest of it stays charged, which is the strict side.
const BATCHES_MAX: usize = 256;

/// The next call to the store.
#[derive(Debug)]
pub(super) enum Call {
    /// Charge this ask.
    Post(Ask<'static>),
    /// Settle a posted batch for less.
    Refund(Refund),
}

/// A permit of the store that is to be settled for less.
#[derive(Clone, Debug)]
pub(super) struct Refund {
    pub(super) permit: Permit,
    pub(super) actual: Costs,
}

/// The progress of posting everything that was unposted at some moment.
#[derive(Debug)]
pub(super) enum Flushed {
    Yes,
    /// Not yet: wait for progress.
    NotYet(Arc<Notify>),
    Failed(Error),
}

/// Admitted asks that reach the store as one charge.
#[derive(Debug)]
pub(super) struct Batch {
    /// The numbers of its asks: from `first` up to and without `end`.
    first: u64,
    end: u64,
    /// The charged amounts, fixed once the batch is sent.
    amounts: Amounts,
    /// The charge as it is sent, until it is answered.
    ask: Option<Ask<'static>>,
    /// The store's permit, once it is answered.
    permit: Option<Permit>,
    pub(super) settled: BTreeSet<u64>,
    /// Permits whose extra cost is charged separately.
    pub(super) charging: BTreeSet<u64>,
    /// Gathered refunds.
    less: Amounts,
}

impl Batch {
    fn starting(first: u64) -> Self {
        Self {
            first,
            end: first,
            amounts: Amounts::default(),
            ask: None,
            permit: None,
            settled: BTreeSet::new(),
            charging: BTreeSet::new(),
            less: Amounts::default(),
        }
    }

    pub(super) fn give_back(&mut self, less: &Amounts) {
        self.less = self.less.plus(less);
    }

    /// Returns the refund that is due now: once every ask is settled, or no further one will be.
    fn due(&mut self, is_last: bool) -> Option<Refund> {
        let asks = self.end - self.first;
        let is_due = is_last || usize::try_from(asks).is_ok_and(|asks| asks == self.settled.len());
        if is_due { self.refund() } else { None }
    }

    /// Takes the gathered refund.
    fn refund(&mut self) -> Option<Refund> {
        let permit = self.permit.as_ref()?;
        let less = std::mem::take(&mut self.less);
        let actual = permit.policy().costs(&self.amounts.minus(&less));
        (!less.is_zero()).then(|| Refund { permit: permit.clone(), actual })
    }
}

/// The calls that the store is still to get from one account.
#[derive(Debug)]
pub(super) struct Outbox {
    open: Batch,
    sent: Option<Batch>,
    /// Answered batches, oldest first.
    posted: VecDeque<Batch>,
    refunds: VecDeque<Refund>,
    /// The number of answered batches.
    answered: u64,
    /// Set when the instance is about to end.
    is_ending: bool,
    failure: Option<Error>,
    urgent: Arc<Notify>,
    progress: Arc<Notify>,
}

impl Outbox {
    /// Creates an outbox whose first ask has the number `first`.
    pub(super) fn new(first: u64) -> Self {
        Self {
            open: Batch::starting(first),
            sent: None,
            posted: VecDeque::new(),
            refunds: VecDeque::new(),
            answered: 0,
            is_ending: false,
            failure: None,
            urgent: Arc::default(),
            progress: Arc::default(),
        }
    }

    pub(super) const fn has_sent(&self) -> bool {
        self.sent.is_some()
    }

    pub(super) fn has_refunds(&self) -> bool {
        !self.refunds.is_empty()
    }

    /// Returns the next call. A batch that was sent before goes first, unchanged; then refunds; then the charge that `open`
    /// makes of the open batch, whose last ask has the number before `next`.
    pub(super) fn next_call(
        &mut self,
        next: u64,
        open: impl FnOnce() -> Option<(Amounts, Ask<'static>)>,
    ) -> Option<Call> {
        if let Some(sent) = &self.sent {
            return sent.ask.clone().map(Call::Post);
        }
        if let Some(refund) = self.refunds.front() {
            return Some(Call::Refund(refund.clone()));
        }
        let Some((amounts, ask)) = open() else {
            self.close_batch(next);
            return None;
        };
        let batch = std::mem::replace(&mut self.open, Batch::starting(next));
        self.sent = Some(Batch { end: next, amounts, ask: Some(ask.clone()), ..batch });
        Some(Call::Post(ask))
    }

    /// Begins a new batch if there is nothing to post of the open one, so that it does not grow without bound.
    pub(super) fn close_batch(&mut self, next: u64) {
        if self.open.first < next {
            let batch = std::mem::replace(&mut self.open, Batch::starting(next));
            self.keep(Batch { end: next, ..batch });
        }
    }

    /// Keeps an answered batch for as long as its permits can be settled.
    fn keep(&mut self, batch: Batch) {
        self.posted.push_back(batch);
        if BATCHES_MAX < self.posted.len() {
            let oldest = self.posted.pop_front();
            self.refunds.extend(oldest.and_then(|mut batch| batch.refund()));
        }
    }

    /// Records that the store charged the sent batch under `permit`. Returns its amounts.
    pub(super) fn answered(&mut self, permit: &Permit) -> Option<Amounts> {
        let mut batch = self.sent.take()?;
        let amounts = batch.amounts;
        let mut kept = permit.clone();
        kept.limits.clear();
        batch.permit = Some(kept);
        batch.ask = None;
        self.answered += 1;
        self.refunds.extend(batch.due(self.is_ending));
        self.keep(batch);
        self.succeeded();
        Some(amounts)
    }

    /// Returns the batch of the ask with this number, and whether it is the open one.
    pub(super) fn batch_mut(&mut self, number: u64, next: u64) -> Option<(&mut Batch, bool)> {
        if self.open.first <= number && number < next {
            return Some((&mut self.open, true));
        }
        let mut closed = self.sent.iter_mut().chain(self.posted.iter_mut().rev());
        let batch = closed.find(|batch| batch.first <= number && number < batch.end)?;
        Some((batch, false))
    }

    /// Queues the refund of the batch with this ask, if it is due. Returns whether it is.
    pub(super) fn queue_refund(&mut self, number: u64, next: u64) -> bool {
        let is_ending = self.is_ending;
        let refund = self.batch_mut(number, next).and_then(|(batch, _)| batch.due(is_ending));
        let is_due = refund.is_some();
        self.refunds.extend(refund);
        is_due
    }

    /// Ends settling: the gathered refunds are posted as they are.
    pub(super) fn end(&mut self) {
        self.is_ending = true;
        self.refunds.extend(self.posted.iter_mut().filter_map(Batch::refund));
    }

    /// Drops answered batches and their refunds after a reset.
    pub(super) fn reset(&mut self) {
        self.posted.clear();
        self.refunds.clear();
    }

    /// Removes a refund that was posted or has expired.
    pub(super) fn refunded(&mut self, refund: &Refund) {
        self.refunds.retain(|other| other.permit.grant() != refund.permit.grant());
        self.succeeded();
    }

    fn succeeded(&mut self) {
        self.failure = None;
        self.progress.notify_waiters();
    }

    pub(super) fn failed(&mut self, error: Error) {
        self.failure = Some(error);
        self.progress.notify_waiters();
    }

    /// Returns whether the last call failed.
    pub(super) const fn is_failing(&self) -> bool {
        self.failure.is_some()
    }

    /// Wakes the poster.
    pub(super) fn urge(&self) {
        self.urgent.notify_one();
    }

    pub(super) fn urgent(&self) -> Arc<Notify> {
        Arc::clone(&self.urgent)
    }

    /// Returns the mark up to which `unposted`, everything that is unposted now, will have been posted.
    pub(super) fn mark(&self, unposted: &Amounts) -> u64 {
        let sent = self.sent.as_ref().map_or(Amounts::default(), |batch| batch.amounts);
        self.answered + u64::from(self.has_sent()) + u64::from(*unposted != sent)
    }

    /// Returns whether everything up to `mark` is posted and no refund is left. A failing store is not waited for.
    pub(super) fn flushed(&self, mark: u64, has_unposted: bool) -> Flushed {
        let posted = mark <= self.answered || !has_unposted;
        match &self.failure {
            _ if posted && !self.has_refunds() => Flushed::Yes,
            Some(error) => Flushed::Failed(error.clone()),
            None => Flushed::NotYet(Arc::clone(&self.progress)),
        }
    }
}
