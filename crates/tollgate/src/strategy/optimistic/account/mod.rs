//! The account of one (policy, subject) at one instance: its view of the store's entry, and its unposted admissions.
//!
//! Admitted asks are numbered. They gather in the open batch, which is sent as one charge with an id; the id and the
//! amount never change, however often it is sent. What the open batch and the sent one hold together is *unposted*, and
//! `room` is what is left of `unposted_max`.

mod learn;
mod outbox;
mod settle;

pub(super) use outbox::{Errand, Flushed};
pub(super) use settle::Settled;

use std::collections::VecDeque;
use std::sync::Arc;

use compact_str::CompactString;
use tokio::sync::Notify;
use tollgate_core::bounds::UNITS_MAX;
use tollgate_core::{
    Amounts, Ask, ChargeRecord, Denial, Entry, Known, Policy, Refusal, Timestamp, Verdict, Wait,
    acquire,
};

use super::batch::{Batch, Owed};
use super::stamp::first_number;
use crate::error::Error;

/// An amount for each unit of a policy, by place.
pub(super) type Sums = [u64; UNITS_MAX];

/// The most batches of one subject whose permits can still be settled. Beyond it the oldest gives back what it has
/// gathered, and the rest of it stays charged, which is the strict side.
const BATCHES_MAX: usize = 256;

pub(super) fn add(sums: &mut Sums, more: &Sums) {
    for (sum, more) in sums.iter_mut().zip(more) {
        *sum = sum.saturating_add(*more);
    }
}

/// What a decision on one bucket needs lies on two cache lines, in this order.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Account {
    pub(super) subject: CompactString,
    view: Entry,
    next: u64,
    cold: Box<Cold>,
    hurried: bool,
    /// Whether a poster is under way.
    pub(super) posting: bool,
    allowances: [Allowance; UNITS_MAX],
}

/// How much of one unit may be unposted, and how much of that is left.
#[derive(Clone, Copy, Debug, Default)]
struct Allowance {
    room: u64,
    cap: u64,
}

impl Allowance {
    fn full(caps: &Sums) -> [Self; UNITS_MAX] {
        caps.map(|cap| Self { room: cap, cap })
    }
}

/// What a decision does not look at.
#[derive(Debug)]
struct Cold {
    /// Raised by every answer that is applied.
    version: u64,
    /// The store's time of the youngest answer.
    seen_at: Timestamp,
    closed: Vec<(Arc<str>, Timestamp)>,
    denied: Option<Denied>,
    /// What asks that are under way at the store would take.
    asking: Sums,
    open: Batch,
    sent: Option<Batch>,
    /// Answered batches, oldest first.
    posted: VecDeque<Batch>,
    owed: VecDeque<Owed>,
    /// How many batches were answered.
    answered: u64,
    /// Whether the instance is about to end.
    is_ending: bool,
    /// Admitted before the entry was reset: nothing to give back.
    reset_before: u64,
    failure: Option<Error>,
    urgent: Arc<Notify>,
    progress: Arc<Notify>,
}

/// A denial of the store, which holds for the same ask until its time.
#[derive(Clone, Debug)]
struct Denied {
    amounts: Amounts,
    denial: Denial,
    refusal: Refusal,
    until: Timestamp,
}

/// A local decision.
#[derive(Debug)]
pub(super) enum Local {
    /// Admitted under this number; `wake` if a poster must run.
    Admitted { charge: ChargeRecord, wake: bool },
    /// Denied, by the store not long ago, or because it can never fit.
    Denied(Refusal),
    /// Only the store can tell.
    AskStore,
}

impl Account {
    pub(super) fn new(policy: &Policy, subject: &str, caps: Sums, now: Timestamp) -> Self {
        let next = first_number(now);
        Self {
            subject: subject.into(),
            view: Entry::fresh(policy, now),
            allowances: Allowance::full(&caps),
            next,
            hurried: false,
            posting: false,
            cold: Box::new(Cold {
                version: 0,
                seen_at: Timestamp::EPOCH,
                closed: Vec::new(),
                denied: None,
                asking: Sums::default(),
                open: Batch::starting(next),
                sent: None,
                posted: VecDeque::new(),
                owed: VecDeque::new(),
                answered: 0,
                is_ending: false,
                reset_before: 0,
                failure: None,
                urgent: Arc::default(),
                progress: Arc::default(),
            }),
        }
    }

    #[inline]
    pub(super) fn is(&self, policy: &Policy, subject: &str) -> bool {
        self.view.policy().is_named_as(policy) && *self.subject == *subject
    }

    pub(super) fn policy(&self) -> &Policy {
        self.view.policy()
    }

    pub(super) const fn view(&self) -> &Entry {
        &self.view
    }

    /// Decides a plain ask from what this instance believes.
    #[inline]
    pub(super) fn decide(&mut self, ask: &Ask<'_>, now: Timestamp) -> Result<Local, Error> {
        if self.view.policy() != ask.policy() {
            return Ok(Local::AskStore);
        }
        let amounts = ask.amounts();
        let units = self.view.policy().units().len();
        let (mut fits, mut total) = (true, 0);
        for (place, allowance) in self.allowances[..units].iter().enumerate() {
            fits &= amounts.at(place) <= allowance.room;
            total |= amounts.at(place);
        }
        // What costs nothing would never be posted, and to the store it is a sign of time passing.
        if !fits || total == 0 {
            return self.decide_without_room(ask, now);
        }
        match acquire(&mut self.view, now, ask, Known::New)? {
            Verdict::Admitted(charge) => {
                let mut low = false;
                for (place, allowance) in self.allowances[..units].iter_mut().enumerate() {
                    allowance.room -= amounts.at(place);
                    low |= allowance.room < allowance.cap / 2;
                }
                let wake = !self.posting || (low && !self.hurried);
                self.hurried |= low;
                let charge = ChargeRecord { stamp: self.next, ..charge };
                self.next += 1;
                Ok(Local::Admitted { charge, wake })
            }
            Verdict::Denied(refusal) => Ok(self.refused(ask, refusal, now)),
            Verdict::Repeated(_) => Ok(Local::AskStore),
        }
    }

    #[cold]
    fn decide_without_room(&self, ask: &Ask<'_>, now: Timestamp) -> Result<Local, Error> {
        Ok(match tollgate_core::decide(&self.view, now, ask, Known::New)? {
            Verdict::Denied(refusal) => self.refused(ask, refusal, now),
            _ => Local::AskStore,
        })
    }

    /// What the view refuses the store might still admit, unless it said otherwise a moment ago.
    #[cold]
    fn refused(&self, ask: &Ask<'_>, refusal: Refusal, now: Timestamp) -> Local {
        if refusal.wait == Wait::Never {
            return Local::Denied(refusal);
        }
        match &self.cold.denied {
            Some(denied) if denied.amounts == *ask.amounts() && now < denied.until => {
                Local::Denied(denied.refusal)
            }
            _ => Local::AskStore,
        }
    }

    /// The denial that [`decide`](Self::decide) spoke of.
    pub(super) fn denial(&self, ask: &Ask<'_>, refusal: Refusal, now: Timestamp) -> Denial {
        match &self.cold.denied {
            Some(denied) if refusal == denied.refusal && denied.amounts == *ask.amounts() => {
                Denial { decided_at: now, ..denied.denial.clone() }
            }
            _ => Denial::for_ask(ask, refusal, now, tollgate_core::standings(&self.view, now)),
        }
    }

    /// Returns the unposted amounts, by unit index.
    pub(super) fn unposted(&self) -> Sums {
        self.allowances.map(|Allowance { room, cap }| cap - room)
    }

    /// `sums` more may be admitted without the store.
    fn allow(&mut self, sums: &Sums) {
        for (allowance, sum) in self.allowances.iter_mut().zip(sums) {
            allowance.room += sum;
        }
    }

    pub(super) fn has_unposted(&self) -> bool {
        self.unposted() != Sums::default() || self.cold.sent.is_some()
    }

    /// Whether anything here still has to reach the store.
    pub(super) fn has_errands(&self) -> bool {
        self.has_unposted() || self.owes()
    }

    pub(super) fn owes(&self) -> bool {
        !self.cold.owed.is_empty()
    }
}
