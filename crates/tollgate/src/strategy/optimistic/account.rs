//! The account of one (policy, subject) at one instance: its view of the store's entry, and its unposted admissions.
//!
//! Admitted asks are numbered. They gather in the open batch, which is sent as one charge with an id; the id and the
//! amount never change, however often it is sent. The open batch and the sent one together are *unposted*, and `room` is
//! the rest of `unposted_max`.

use std::sync::Arc;

use compact_str::CompactString;
use tollgate_core::bounds::UNITS_MAX;
use tollgate_core::{
    Amounts, Ask, ChargeRecord, Denial, Entry, Known, Permit, Policy, Refusal, Span, Timestamp,
    Verdict, Wait, acquire, close_until, standings,
};

use super::outbox::{Call, Flushed, Outbox, Refund};
use super::stamp::first_number;
use super::view::{self, StoreReply};
use crate::error::Error;

/// The fields that a decision on one bucket reads are on two cache lines, in this order.
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
    fn full(caps: &Amounts) -> [Self; UNITS_MAX] {
        std::array::from_fn(|unit| Self { room: caps.at(unit), cap: caps.at(unit) })
    }
}

/// The fields that a local admission does not read.
#[derive(Debug)]
struct Cold {
    /// Raised by every answer that is applied.
    version: u64,
    /// The store's time of the youngest answer.
    seen_at: Timestamp,
    closed: Vec<(Arc<str>, Timestamp)>,
    denied: Option<Denied>,
    /// The costs of asks that are under way at the store.
    asking: Amounts,
    /// Permits with a lower number were admitted before the entry was reset: nothing to give back.
    reset_before: u64,
    outbox: Outbox,
}

/// A denial of the store, which holds for the same ask until its time.
#[derive(Clone, Debug)]
struct Denied {
    amounts: Amounts,
    denial: Denial,
    refusal: Refusal,
    until: Timestamp,
}

/// How a settlement of a local permit went.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// Settled for the first time; `wake` if a poster must run.
    First {
        wake: bool,
    },
    Before,
    /// The extra cost exceeds what may be unposted: charge it first.
    ChargeFirst,
    /// The permit is unknown here.
    Unknown,
}

/// A local decision.
#[derive(Debug)]
pub(super) enum Local {
    /// Admitted under this number; `wake` if a poster must run.
    Admitted { charge: ChargeRecord, wake: bool },
    /// Denied, by the store not long ago, or because it can never fit.
    Denied(Refusal),
    /// Only the store can decide.
    AskStore,
}

impl Account {
    pub(super) fn new(policy: &Policy, subject: &str, caps: &Amounts, now: Timestamp) -> Self {
        let next = first_number(now);
        Self {
            subject: subject.into(),
            view: Entry::fresh(policy, now),
            allowances: Allowance::full(caps),
            next,
            hurried: false,
            posting: false,
            cold: Box::new(Cold {
                version: 0,
                seen_at: Timestamp::EPOCH,
                closed: Vec::new(),
                denied: None,
                asking: Amounts::default(),
                reset_before: 0,
                outbox: Outbox::new(next),
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

    /// Decides a plain ask from the view of this instance.
    #[inline]
    pub(super) fn decide(&mut self, ask: &Ask<'_>, now: Timestamp) -> Result<Local, Error> {
        if self.view.policy() != ask.policy() {
            return Ok(Local::AskStore);
        }
        let amounts = ask.amounts();
        let units = self.view.policy().units().len();
        let (mut fits, mut total) = (true, 0);
        for (unit, allowance) in self.allowances[..units].iter().enumerate() {
            fits &= amounts.at(unit) <= allowance.room;
            total |= amounts.at(unit);
        }
        // What costs nothing would never be posted, and to the store it is a sign of time passing.
        if !fits || total == 0 {
            return self.decide_without_room(ask, now);
        }
        match acquire(&mut self.view, now, ask, Known::New)? {
            Verdict::Admitted(charge) => {
                let mut low = false;
                for (unit, allowance) in self.allowances[..units].iter_mut().enumerate() {
                    allowance.room -= amounts.at(unit);
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

    /// Decides an ask that the view denies: the store might still admit it, unless it denied it a moment ago.
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

    /// Returns the denial for a `refusal` of [`decide`](Self::decide).
    pub(super) fn denial(&self, ask: &Ask<'_>, refusal: Refusal, now: Timestamp) -> Denial {
        match &self.cold.denied {
            Some(denied) if refusal == denied.refusal && denied.amounts == *ask.amounts() => {
                Denial { decided_at: now, ..denied.denial.clone() }
            }
            _ => Denial::for_ask(ask, refusal, now, standings(&self.view, now)),
        }
    }

    /// Returns the unposted amounts.
    pub(super) fn unposted(&self) -> Amounts {
        Amounts::from_fn(|unit| self.allowances[unit].cap - self.allowances[unit].room)
    }

    /// Lets `amounts` more be admitted without the store.
    fn allow(&mut self, amounts: &Amounts) {
        for (unit, allowance) in self.allowances.iter_mut().enumerate() {
            allowance.room += amounts.at(unit);
        }
    }

    pub(super) fn has_unposted(&self) -> bool {
        !self.unposted().is_zero() || self.cold.outbox.has_sent()
    }

    /// Returns whether anything here still has to reach the store.
    pub(super) fn has_calls(&self) -> bool {
        self.has_unposted() || self.cold.outbox.has_refunds()
    }

    pub(super) fn outbox(&self) -> &Outbox {
        &self.cold.outbox
    }

    pub(super) fn outbox_mut(&mut self) -> &mut Outbox {
        &mut self.cold.outbox
    }

    /// Returns the next call to the store, and the version of the view to send it under.
    pub(super) fn next_call(
        &mut self,
        id: impl FnOnce() -> String,
        ttl: Span,
    ) -> Option<(Call, u64)> {
        self.hurried = false;
        let (unposted, policy) = (self.unposted(), self.view.policy());
        let charge = || {
            let ask = view::ask_for(policy, &self.subject, &unposted);
            (!unposted.is_zero()).then(|| (unposted, ask.id_for(id(), ttl).into_owned()))
        };
        Some((self.cold.outbox.next_call(self.next, charge)?, self.cold.version))
    }

    /// Records that the store charged the sent batch under `permit`.
    pub(super) fn posted(&mut self, permit: &Permit) {
        if let Some(amounts) = self.cold.outbox.answered(permit) {
            self.allow(&amounts);
        }
    }

    /// Records that a refund was posted or has expired.
    pub(super) fn refunded(&mut self, refund: &Refund) {
        self.cold.denied = None;
        self.cold.outbox.refunded(refund);
    }

    /// Returns the mark up to which everything that is unposted now will have been posted; `None` if nothing is.
    pub(super) fn mark(&self) -> Option<u64> {
        self.has_calls().then(|| self.cold.outbox.mark(&self.unposted()))
    }

    /// Returns whether everything up to `mark` reached the store.
    pub(super) fn flushed(&self, mark: u64) -> Flushed {
        self.cold.outbox.flushed(mark, self.has_unposted())
    }

    /// Replaces the cost of the admission with this number, which was of `policy`: `extra` on top, unless it was
    /// `charged` already, and `less` given back.
    pub(super) fn settle(
        &mut self,
        (number, policy): (u64, &Policy),
        (extra, less): (&Amounts, &Amounts),
        charged: bool,
        now: Timestamp,
    ) -> Settled {
        if number < self.cold.reset_before {
            return Settled::Before;
        }
        let batch = self.cold.outbox.batch_mut(number, self.next);
        let Some((batch, is_open)) = batch else { return Settled::Unknown };
        if batch.settled.contains(&number) {
            return Settled::Before;
        }
        let costs_more = !charged && !extra.is_zero();
        if costs_more {
            let mut left = self.allowances.iter().enumerate();
            let short = left.any(|(unit, left)| left.room < extra.at(unit));
            // Once it was tried that way it may have been charged, and must not be posted as well.
            if short || self.view.policy() != policy || batch.charging.contains(&number) {
                batch.charging.insert(number);
                return Settled::ChargeFirst;
            }
            for (unit, left) in self.allowances.iter_mut().enumerate() {
                left.room -= extra.at(unit);
            }
        }
        batch.settled.insert(number);
        if !is_open {
            batch.give_back(less);
        }
        let is_due = self.cold.outbox.queue_refund(number, self.next);
        self.cold.denied = None;
        if is_open {
            self.allow(less);
        }
        if costs_more {
            self.charge(extra, now);
        }
        Settled::First { wake: costs_more || is_due }
    }

    /// Returns the version of the view, which an operation is sent under.
    pub(super) const fn version(&self) -> u64 {
        self.cold.version
    }

    /// Counts the costs of an ask as used while it is on its way to the store.
    pub(super) fn begin_asking(&mut self, amounts: &Amounts, now: Timestamp) {
        self.cold.asking = self.cold.asking.plus(amounts);
        self.charge(amounts, now);
    }

    pub(super) fn end_asking(&mut self, amounts: &Amounts) {
        self.cold.asking = self.cold.asking.minus(amounts);
    }

    fn charge(&mut self, amounts: &Amounts, now: Timestamp) {
        if !amounts.is_zero() {
            let policy = self.view.policy().clone();
            let ask = view::ask_for(&policy, &self.subject, amounts);
            let _ = tollgate_core::charge(&mut self.view, now, &ask, Known::New);
        }
    }

    /// Updates the view from a reply to an operation that was sent under `version`.
    pub(super) fn learn(&mut self, reply: StoreReply<'_>, version: u64, now: Timestamp) {
        if reply.policy != self.view.policy() {
            return;
        }
        let Some(fresh) = view::entry(reply, now.max(self.view.at())) else { return };
        let in_order =
            version == self.cold.version || reply.at.is_some_and(|store| self.cold.seen_at < store);
        if in_order {
            self.view = fresh;
            self.recharge(now);
        } else {
            view::raise(&mut self.view, &fresh, &self.subject, now);
        }
        self.cold.seen_at = self.cold.seen_at.max(reply.at.unwrap_or_default());
        self.cold.version += 1;
        self.cold.denied = None;
    }

    /// Adds to the view what no answer of the store includes: unposted and pending costs, and limits closed here.
    fn recharge(&mut self, now: Timestamp) {
        self.charge(&self.unposted().plus(&self.cold.asking), now);
        self.cold.closed.retain(|(_, until)| now < *until);
        for (limit, until) in &self.cold.closed {
            let _ = close_until(&mut self.view, now, limit, *until);
        }
    }

    /// Remembers that the store denied `ask` up to `until`.
    pub(super) fn learn_denial(&mut self, ask: &Ask<'_>, denial: &Denial, until: Timestamp) {
        let limit = ask.policy().limits().position(|limit| *limit.name() == *denial.limit);
        if let (Some(limit), false) = (limit, ask.policy().is_shadow()) {
            let refusal = Refusal { limit, wait: denial.wait };
            let (amounts, denial) = (*ask.amounts(), denial.clone());
            self.cold.denied = Some(Denied { amounts, denial, refusal, until });
        }
    }

    /// Counts the `extra` cost of a permit that the store settled. The next answer includes its refund.
    pub(super) fn settled_at_store(&mut self, policy: &Policy, extra: &Amounts, now: Timestamp) {
        if self.view.policy() == policy {
            self.charge(extra, now);
        }
        self.cold.denied = None;
    }

    /// Switches to the numbers of `policy`, if nothing is unposted in the old ones. Returns whether the account has them.
    pub(super) fn change_policy(&mut self, policy: &Policy, caps: &Amounts) -> bool {
        if self.view.policy() == policy {
            return true;
        }
        if self.has_unposted() {
            return false;
        }
        self.view = self.view.carried_to(policy);
        self.allowances = Allowance::full(caps);
        // Every answer so far was about the old numbers.
        self.cold.version += 1;
        self.cold.denied = None;
        self.cold.outbox.close_batch(self.next);
        true
    }

    /// Closes a limit here, whatever the store knows of it.
    pub(super) fn close(
        &mut self,
        limit: &str,
        until: Timestamp,
        now: Timestamp,
    ) -> Result<(), Error> {
        if close_until(&mut self.view, now, limit, until)? {
            self.cold.closed.retain(|(known, _)| **known != *limit);
            self.cold.closed.push((limit.into(), until));
            self.cold.denied = None;
        }
        Ok(())
    }

    /// Forgets everything after the store did. Permits that were given count as settled.
    pub(super) fn reset(&mut self, now: Timestamp) {
        self.view = Entry::fresh(self.view.policy(), now.max(self.view.at()));
        let cold = &mut self.cold;
        (cold.reset_before, cold.denied) = (self.next, None);
        cold.version += 1;
        cold.closed.clear();
        cold.outbox.reset();
        self.recharge(now);
    }
}
