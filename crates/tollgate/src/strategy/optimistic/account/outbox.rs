//! The outbox of an account: the batch to send, the refunds, and the progress of posting.

use std::sync::Arc;

use tokio::sync::Notify;
use tollgate_core::{Ask, Permit, Span};

use super::super::batch::{Batch, Owed};
use super::super::view;
use super::{Account, BATCHES_MAX, Cold, Sums};
use crate::error::Error;

/// The next call to the store.
#[derive(Debug)]
pub(in super::super) enum Errand {
    /// Charge this ask, which came up under this version.
    Post(Ask<'static>, u64),
    /// Post a refund.
    GiveBack(Owed),
}

/// The progress of posting everything that was unposted at some moment.
#[derive(Debug)]
pub(in super::super) enum Flushed {
    Yes,
    /// Not yet: wait for progress.
    NotYet(Arc<Notify>),
    Failed(Error),
}

impl Account {
    /// The next thing to send: a batch that was sent before goes first, as it was.
    pub(in super::super) fn errand(
        &mut self,
        id: impl FnOnce() -> String,
        ttl: Span,
    ) -> Option<Errand> {
        self.hurried = false;
        let version = self.cold.version;
        if let Some(sent) = &self.cold.sent {
            return sent.ask.clone().map(|ask| Errand::Post(ask, version));
        }
        if let Some(owed) = self.cold.owed.front() {
            return Some(Errand::GiveBack(owed.clone()));
        }
        let sums = self.unposted();
        if sums == Sums::default() {
            self.close_batch();
            return None;
        }
        let ask = view::ask_for(self.view.policy(), &self.subject, &sums);
        let ask = ask.id_for(id(), ttl).into_owned();
        let mut batch = std::mem::replace(&mut self.cold.open, Batch::starting(self.next));
        batch.end = self.next;
        batch.sums = sums;
        batch.ask = Some(ask.clone());
        self.cold.sent = Some(batch);
        Some(Errand::Post(ask, version))
    }

    /// Begins a new batch where there is nothing to post of the open one, so that it does not grow for ever.
    pub(super) fn close_batch(&mut self) {
        if self.cold.open.first < self.next {
            let mut batch = std::mem::replace(&mut self.cold.open, Batch::starting(self.next));
            batch.end = self.next;
            self.keep(batch);
        }
    }

    /// Keeps an answered batch for as long as its permits can be settled.
    fn keep(&mut self, batch: Batch) {
        self.cold.posted.push_back(batch);
        if BATCHES_MAX < self.cold.posted.len() {
            let oldest = self.cold.posted.pop_front();
            self.cold.owed.extend(oldest.and_then(|mut batch| batch.owed()));
        }
    }

    /// The sent batch was charged, under `permit`.
    pub(in super::super) fn answered(&mut self, permit: &Permit) {
        let Some(mut batch) = self.cold.sent.take() else { return };
        self.allow(&batch.sums);
        let mut kept = permit.clone();
        kept.limits.clear();
        batch.permit = Some(kept);
        batch.ask = None;
        self.cold.answered += 1;
        self.cold.owed.extend(batch.due(self.cold.is_ending));
        self.keep(batch);
        self.succeeded();
    }

    /// Ends settling: the refunds that were gathered are posted as they are.
    pub(in super::super) fn end(&mut self) {
        self.cold.is_ending = true;
        let Cold { posted, owed, .. } = &mut *self.cold;
        owed.extend(posted.iter_mut().filter_map(Batch::owed));
    }

    /// Removes a refund that was posted or has expired.
    pub(in super::super) fn given_back(&mut self, owed: &Owed) {
        self.cold.owed.retain(|other| other.permit.grant() != owed.permit.grant());
        self.cold.denied = None;
        self.succeeded();
    }

    fn succeeded(&mut self) {
        self.cold.failure = None;
        self.cold.progress.notify_waiters();
    }

    pub(in super::super) fn failed(&mut self, error: Error) {
        self.cold.failure = Some(error);
        self.cold.progress.notify_waiters();
    }

    /// Whether the last try to tell the store something failed.
    pub(in super::super) const fn is_failing(&self) -> bool {
        self.cold.failure.is_some()
    }

    /// Wakes the poster.
    pub(in super::super) fn urge(&self) {
        self.cold.urgent.notify_one();
    }

    pub(in super::super) fn urgent(&self) -> Arc<Notify> {
        Arc::clone(&self.cold.urgent)
    }

    /// The mark up to which everything that is unposted now will have been posted.
    pub(in super::super) fn mark(&self) -> u64 {
        let batches = u64::from(self.cold.sent.is_some()) + u64::from(self.open_holds());
        self.cold.answered + batches
    }

    fn open_holds(&self) -> bool {
        let sent = self.cold.sent.as_ref().map_or(Sums::default(), |batch| batch.sums);
        self.unposted() != sent
    }

    /// Whether everything up to `mark` is posted and nothing is owed. A store that is failing is not waited for.
    pub(in super::super) fn flushed(&self, mark: u64) -> Flushed {
        let cold = &self.cold;
        let posted = mark <= cold.answered || !self.has_unposted();
        match &cold.failure {
            _ if posted && !self.owes() => Flushed::Yes,
            Some(error) => Flushed::Failed(error.clone()),
            None => Flushed::NotYet(Arc::clone(&cold.progress)),
        }
    }
}
