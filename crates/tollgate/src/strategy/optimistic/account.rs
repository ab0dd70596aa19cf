//! One subject of one policy at one instance: what it believes, what it admitted, and what the store knows of that.
//!
//! Admitted asks are numbered. They gather in the open batch, which is sent as one charge with an id; the id and the
//! amount never change, however often it is sent. What the open batch and the sent one hold together is *unposted*, and
//! `room` is what is left of `unposted_max`.

use std::collections::VecDeque;
use std::sync::Arc;

use compact_str::CompactString;
use tokio::sync::Notify;
use tollgate_core::bounds::UNITS_MAX;
use tollgate_core::{
    Amounts, Ask, Charge, Denial, Entry, Permit, Policy, Refusal, Span, Timestamp, Verdict, Wait,
    acquire, close_until,
};

use super::batch::{Batch, Owed};
use super::stamp::first_number;
use super::view::{self, Seen};
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
    allowances: [Allowance; UNITS_MAX],
    hurried: bool,
    /// Whether a poster is under way.
    pub(super) posting: bool,
    cold: Box<Cold>,
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
    /// Admitted before the entry was reset: nothing to give back.
    reset_before: u64,
    failures: u64,
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

/// What an instance can say by itself.
#[derive(Debug)]
pub(super) enum Local {
    /// Admitted under this number, and whether somebody must see to posting it.
    Admitted { charge: Charge, wake: bool },
    /// Denied, by the store not long ago, or because it can never fit.
    Denied(Refusal),
    /// Only the store can tell.
    AskStore,
}

/// What has to be sent to the store next.
#[derive(Debug)]
pub(super) enum Errand {
    /// Charge this ask, which came up under this version.
    Post(Ask<'static>, u64),
    /// Give back what is owed.
    GiveBack(Owed),
}

/// What is known about everything that was unposted at some moment.
#[derive(Debug)]
pub(super) enum Flushed {
    Yes,
    /// Not yet: wait for progress.
    NotYet(Arc<Notify>),
    Failed(Error),
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
                reset_before: 0,
                failures: 0,
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
        match acquire(&mut self.view, now, ask)? {
            Verdict::Admitted(charge) => {
                let mut low = false;
                for (place, allowance) in self.allowances[..units].iter_mut().enumerate() {
                    allowance.room -= amounts.at(place);
                    low |= allowance.room < allowance.cap / 2;
                }
                let wake = !self.posting || (low && !self.hurried);
                self.hurried |= low;
                let charge = Charge { stamp: self.next, ..charge };
                self.next += 1;
                Ok(Local::Admitted { charge, wake })
            }
            Verdict::Denied(refusal) => Ok(self.refused(ask, refusal, now)),
            Verdict::Repeated(_) => Ok(Local::AskStore),
        }
    }

    #[cold]
    fn decide_without_room(&self, ask: &Ask<'_>, now: Timestamp) -> Result<Local, Error> {
        Ok(match tollgate_core::decide(&self.view, now, ask)? {
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
            _ => Denial::of(ask, refusal, now, tollgate_core::standings(&self.view, now)),
        }
    }

    /// The version to send a question under.
    pub(super) const fn version(&self) -> u64 {
        self.cold.version
    }

    /// An ask is on its way to the store; until it is back, what it would take counts as taken.
    pub(super) fn begin_asking(&mut self, sums: &Sums, now: Timestamp) {
        add(&mut self.cold.asking, sums);
        self.charge(sums, now);
    }

    pub(super) fn end_asking(&mut self, sums: &Sums) {
        for (asking, sum) in self.cold.asking.iter_mut().zip(sums) {
            *asking = asking.saturating_sub(*sum);
        }
    }

    fn charge(&mut self, sums: &Sums, now: Timestamp) {
        if *sums != Sums::default() {
            let policy = self.view.policy().clone();
            let ask = view::ask_for(&policy, &self.subject, sums);
            let _ = tollgate_core::charge(&mut self.view, now, &ask);
        }
    }

    /// Takes over what the store answered to a question that was sent under `version`.
    pub(super) fn learn(&mut self, seen: Seen<'_>, version: u64, now: Timestamp) {
        if seen.policy != self.view.policy() {
            return;
        }
        let Some(fresh) = view::entry(seen, now.max(self.view.at())) else { return };
        let in_order =
            version == self.cold.version || seen.at.is_some_and(|store| self.cold.seen_at < store);
        if in_order {
            self.view = fresh;
            self.recharge(now);
        } else {
            view::raise(&mut self.view, &fresh, &self.subject, now);
        }
        self.cold.seen_at = self.cold.seen_at.max(seen.at.unwrap_or_default());
        self.cold.version += 1;
        self.cold.denied = None;
    }

    /// What is unposted, being asked for or closed here is in no answer of the store.
    fn recharge(&mut self, now: Timestamp) {
        let mut unknown = self.unposted();
        add(&mut unknown, &self.cold.asking);
        self.charge(&unknown, now);
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

    /// A permit of the store was settled with `extra` on top. What it gave back, the next answer tells.
    pub(super) fn settled_at_store(&mut self, policy: &Policy, extra: &Sums, now: Timestamp) {
        if self.view.policy() == policy {
            self.charge(extra, now);
        }
        self.cold.denied = None;
    }

    /// Decides by other numbers of the policy from now on, if nothing is under way in the old ones.
    pub(super) fn change_policy(&mut self, policy: &Policy, caps: Sums) -> bool {
        if self.view.policy() == policy {
            return true;
        }
        if self.has_unposted() {
            return false;
        }
        self.view = self.view.carried_to(policy);
        self.allowances = Allowance::full(&caps);
        // Every answer so far was about the old numbers.
        self.cold.version += 1;
        self.cold.denied = None;
        self.close_batch();
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
        cold.posted.clear();
        cold.owed.clear();
        self.recharge(now);
    }

    /// What was admitted here and the store does not know of, by place.
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

    /// The next thing to send: a batch that was sent before goes first, as it was.
    pub(super) fn errand(&mut self, id: impl FnOnce() -> String, ttl: Span) -> Option<Errand> {
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
    fn close_batch(&mut self) {
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
    pub(super) fn answered(&mut self, permit: &Permit) {
        let Some(mut batch) = self.cold.sent.take() else { return };
        self.allow(&batch.sums);
        let mut kept = permit.clone();
        kept.limits.clear();
        batch.permit = Some(kept);
        batch.ask = None;
        self.cold.answered += 1;
        self.cold.owed.extend(batch.owed_if_complete());
        self.keep(batch);
        self.succeeded();
    }

    /// What was owed is given back, or cannot be any more.
    pub(super) fn given_back(&mut self, owed: &Owed) {
        self.cold.owed.retain(|other| other.permit.grant() != owed.permit.grant());
        self.cold.denied = None;
        self.succeeded();
    }

    fn succeeded(&mut self) {
        self.cold.failure = None;
        self.cold.progress.notify_waiters();
    }

    pub(super) fn failed(&mut self, error: Error) {
        self.cold.failures += 1;
        self.cold.failure = Some(error);
        self.cold.progress.notify_waiters();
    }

    /// Calls whoever waits for the time to post.
    pub(super) fn urge(&self) {
        self.cold.urgent.notify_one();
    }

    pub(super) fn urgent(&self) -> Arc<Notify> {
        Arc::clone(&self.cold.urgent)
    }

    /// The mark up to which everything that is unposted now will have been posted, and the failures so far.
    pub(super) fn mark(&self) -> (u64, u64) {
        let batches = u64::from(self.cold.sent.is_some()) + u64::from(self.open_holds());
        (self.cold.answered + batches, self.cold.failures)
    }

    fn open_holds(&self) -> bool {
        let sent = self.cold.sent.as_ref().map_or(Sums::default(), |batch| batch.sums);
        self.unposted() != sent
    }

    /// Whether everything up to `mark` is posted and nothing is owed. A store that is failing is not waited for.
    pub(super) fn flushed(&self, mark: (u64, u64)) -> Flushed {
        let cold = &self.cold;
        let posted = mark.0 <= cold.answered || !self.has_unposted();
        match &cold.failure {
            _ if posted && !self.owes() => Flushed::Yes,
            Some(error) => Flushed::Failed(error.clone()),
            None => Flushed::NotYet(Arc::clone(&cold.progress)),
        }
    }
}

/// How a settlement of a local permit went.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// For the first time, and whether somebody must see to giving back.
    First {
        wake: bool,
    },
    Before,
    /// The extra cost does not fit into what may be unposted: charge it first.
    ChargeFirst,
    /// Nobody here knows the permit any more.
    Unknown,
}

impl Account {
    /// Replaces the cost of the admission with this number, which was of `policy`: `extra` on top, unless it was
    /// `charged` already, and `less` given back.
    pub(super) fn settle(
        &mut self,
        (number, policy): (u64, &Policy),
        (extra, less): (&Sums, &Sums),
        charged: bool,
        now: Timestamp,
    ) -> Settled {
        if number < self.cold.reset_before {
            return Settled::Before;
        }
        let is_open = self.cold.open.first <= number && number < self.next;
        let cold = &mut self.cold;
        let batch = if is_open {
            Some(&mut cold.open)
        } else {
            let sent = cold.sent.iter_mut();
            sent.chain(cold.posted.iter_mut().rev()).find(|batch| batch.holds(number))
        };
        let Some(batch) = batch else { return Settled::Unknown };
        if batch.settled.contains(&number) {
            return Settled::Before;
        }
        let costs_more = !charged && extra.iter().any(|sum| 0 < *sum);
        if costs_more {
            let short = self.allowances.iter().zip(extra).any(|(left, extra)| left.room < *extra);
            // Once it was tried that way it may have been charged, and must not be posted as well.
            if short || self.view.policy() != policy || batch.charging.contains(&number) {
                batch.charging.insert(number);
                return Settled::ChargeFirst;
            }
            for (left, extra) in self.allowances.iter_mut().zip(extra) {
                left.room -= extra;
            }
        }
        batch.settled.insert(number);
        if !is_open {
            batch.give_back(less);
        }
        let owed = batch.owed_if_complete();
        let wake = costs_more || owed.is_some();
        cold.owed.extend(owed);
        cold.denied = None;
        if is_open {
            self.allow(less);
        }
        if costs_more {
            self.charge(extra, now);
        }
        Settled::First { wake }
    }
}
