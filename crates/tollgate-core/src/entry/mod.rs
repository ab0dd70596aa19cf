//! Entries: the states of one policy for one subject, which a store keeps under one key.
//!
//! All limits of a policy share one entry, so "all limits or none" is one atomic write. Every state in it is as of the
//! entry's own time `at`, which never goes back: when a clock steps back, the entry stays where it was and the strict
//! side wins.

mod arrears;
mod carry;
mod extra;
mod merge;
mod parts;
mod settled;

pub use arrears::{Arrears, LocalSpending};
pub(crate) use extra::{Changed, Extra};
pub(crate) use parts::bucket;
pub use parts::{Part, Parts, SettledPart, SlotPart};
pub(crate) use settled::{Run, Settled};

use smallvec::SmallVec;

use crate::costs::Amounts;
use crate::decide::ChargeRecord;
use crate::policy::{Metered, Policy};
use crate::rule::{ChargeTag, Gauge, Record, State, View, ViewMut};
use crate::time::Timestamp;

/// The stored state of one policy and subject. A fresh entry equals an absent one.
#[derive(Clone, Debug)]
pub struct Entry {
    policy: Policy,
    at: Timestamp,
    next_stamp: u64,
    body: Body,
}

/// The states of an entry. A single bucket is the common case; kept in place, an entry with its key fits one cache
/// line, which is most of what a decision costs.
#[derive(Clone, Debug)]
enum Body {
    /// A single bucket: what is used, and whether its record for giving back starts with its last charge.
    Bucket(u64, bool),
    /// Anything else.
    Full(Box<Full>),
}

#[derive(Clone, Debug)]
struct Full {
    states: SmallVec<[State; 3]>,
    extra: Option<Box<Extra>>,
}

/// Entries are equal if they say the same, wherever they keep it.
impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.policy == other.policy && self.parts() == other.parts()
    }
}

impl Entry {
    /// Creates an entry with nothing used, which equals an absent one.
    #[must_use]
    pub fn fresh(policy: &Policy, now: Timestamp) -> Self {
        let body = match policy.metered() {
            [one] if one.gauge.is_bucket() => Body::Bucket(0, false),
            many => Body::Full(Box::new(Full {
                states: many.iter().map(|metered| metered.gauge.fresh()).collect(),
                extra: None,
            })),
        };
        Self { policy: policy.clone(), at: now, next_stamp: now.as_micros().max(1), body }
    }

    /// Puts an entry together from stored parts, or nothing if they do not belong together.
    pub(crate) fn from_parts(
        policy: &Policy,
        at: Timestamp,
        next_stamp: u64,
        states: Vec<State>,
        extra: Extra,
    ) -> Option<Self> {
        let fits = policy.metered().len() == states.len()
            && policy.metered().iter().zip(&states).all(|(limit, state)| limit.gauge.fits(state))
            && extra.closed.iter().all(|(index, _)| *index < states.len());
        if !fits {
            return None;
        }
        let extra = (!extra.is_empty()).then(|| Box::new(extra));
        let full = Full { states: states.into(), extra };
        let mut entry =
            Self { policy: policy.clone(), at, next_stamp, body: Body::Full(Box::new(full)) };
        entry.tidy();
        Some(entry)
    }

    /// Stores a lone bucket inline.
    fn tidy(&mut self) {
        if let Body::Full(full) = &self.body
            && let ([State::Bucket(used, lows)], None) = (full.states.as_slice(), &full.extra)
        {
            let lows = lows.as_ref().filter(|lows| !lows.is_empty());
            let starts = lows.map(|lows| lows.only_start() == Some(self.next_stamp - 1));
            if starts != Some(false) {
                self.body = Body::Bucket(*used, starts.is_some());
            }
        }
    }

    /// Moves an inline bucket to the heap and returns the body.
    fn full_mut(&mut self) -> &mut Full {
        if let Body::Bucket(..) = self.body {
            let states = self.limits().map(|(_, state)| state.to_state()).collect();
            self.body = Body::Full(Box::new(Full { states, extra: None }));
        }
        match &mut self.body {
            Body::Full(full) => full,
            Body::Bucket(..) => unreachable!("an inline bucket was just moved"),
        }
    }

    /// Returns an entry of `policy` whose every limit is used up at `at`: the safe assumption if the usage is unknown.
    #[must_use]
    pub fn used_up(policy: &Policy, at: Timestamp) -> Self {
        let mut entry = Self::fresh(policy, at);
        entry.use_up(at);
        entry
    }

    /// Uses up every limit at `at`, on top of the present usage; a bucket becomes empty and gets no debt. Permits and
    /// ids stay as they are.
    pub fn use_up(&mut self, at: Timestamp) {
        let (at, tag) =
            (self.effective(at), ChargeTag { stamp: self.next_stamp, refundable: false });
        self.full_mut();
        self.next_stamp += 1;
        self.advance_and(at, |limit, state| limit.gauge.use_up(state, at, tag));
        self.tidy();
    }

    /// The policy whose numbers the entry was last written with.
    #[inline]
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Decides by `policy` from now on if its shape is that of the entry's own, and returns whether it is.
    #[inline]
    pub(crate) fn adopt(&mut self, policy: &Policy) -> bool {
        self.policy.is_clone_of(policy) || self.adopt_other(policy)
    }

    #[cold]
    fn adopt_other(&mut self, policy: &Policy) -> bool {
        let same = self.policy.has_shape_of(policy);
        if same {
            self.policy = policy.clone();
        }
        same
    }

    /// When the entry was last written.
    #[must_use]
    pub const fn at(&self) -> Timestamp {
        self.at
    }

    /// The time to decide at: never before the entry was last written.
    #[inline]
    pub(crate) fn effective(&self, now: Timestamp) -> Timestamp {
        now.max(self.at)
    }

    pub(crate) const fn next_stamp(&self) -> u64 {
        self.next_stamp
    }

    /// Every limit with its state.
    #[inline(always)]
    pub(crate) fn limits(&self) -> impl Iterator<Item = (&Metered, View<'_>)> {
        let (one, many) = match &self.body {
            Body::Bucket(used, starts) => {
                let record =
                    if *starts { Record::Start(self.next_stamp - 1) } else { Record::Nothing };
                (Some(View::Bucket(*used, record)), [].as_slice())
            }
            Body::Full(full) => (None, full.states.as_slice()),
        };
        let views = one.into_iter().chain(many.iter().map(State::view));
        self.policy.metered().iter().zip(views)
    }

    /// Returns the states, in the order of the limits; `None` if the only one is an inline bucket.
    #[inline]
    pub(crate) fn stored_states(&self) -> Option<&[State]> {
        match &self.body {
            Body::Bucket(..) => None,
            Body::Full(full) => Some(&full.states),
        }
    }

    /// Runs `change` on every limit and its state.
    #[inline(always)]
    pub(crate) fn change_limits(&mut self, mut change: impl FnMut(&Metered, ViewMut<'_>)) {
        let (one, many) = match &mut self.body {
            Body::Bucket(used, _) => (Some(ViewMut::Bucket(used, None)), [].as_mut_slice()),
            Body::Full(full) => (None, full.states.as_mut_slice()),
        };
        // One place that calls `change`, so that it is inlined.
        let views = one.into_iter().chain(many.iter_mut().map(State::view_mut));
        for (limit, state) in self.policy.metered().iter().zip(views) {
            change(limit, state);
        }
    }

    #[inline]
    pub(crate) fn extra(&self) -> Option<&Extra> {
        match &self.body {
            Body::Bucket(..) => None,
            Body::Full(full) => full.extra.as_deref(),
        }
    }

    pub(crate) fn extra_mut(&mut self) -> &mut Extra {
        self.full_mut().extra.get_or_insert_default()
    }

    /// Returns until when the limit at `index` is closed, if it still is.
    pub(crate) fn closed_until(&self, index: usize, now: Timestamp) -> Option<Timestamp> {
        self.extra()?.closed_until(index, now)
    }

    /// Advances every state to `now` and drops expired amounts.
    pub(crate) fn advance(&mut self, now: Timestamp) {
        self.advance_and(now, |_, _| {});
    }

    /// Advances every state to `now`, runs `change` on it, and drops expired amounts.
    fn advance_and(&mut self, now: Timestamp, mut change: impl FnMut(&Metered, ViewMut<'_>)) {
        let since = self.at;
        self.change_limits(|limit, mut state| {
            limit.gauge.advance(state.reborrow(), since, now);
            change(limit, state);
        });
        self.set_time(now);
    }

    #[inline(always)]
    fn set_time(&mut self, now: Timestamp) {
        self.at = now;
        if let Body::Full(full) = &mut self.body
            && full.extra.is_some()
        {
            self.forget_expired(now);
        }
    }

    #[cold]
    fn forget_expired(&mut self, now: Timestamp) {
        if let Body::Full(full) = &mut self.body
            && let Some(extra) = &mut full.extra
        {
            extra.forget_expired(now);
            if extra.is_empty() {
                full.extra = None;
            }
        }
        self.tidy();
    }

    /// Brings the entry to `now`, charges `amounts` to it, and returns the stamp of the charge. Slots are taken only
    /// where `slots` says so.
    #[inline(always)]
    pub(crate) fn charge(
        &mut self,
        amounts: &Amounts,
        now: Timestamp,
        slots: Slotted,
        refundable: bool,
    ) -> u64 {
        let tag = ChargeTag { stamp: self.next_stamp, refundable };
        if let (Body::Bucket(_, starts), [limit]) = (&self.body, self.policy.metered())
            && (*starts || (refundable && matches!(limit.gauge, Gauge::Continuous(_))))
        {
            self.full_mut();
        }
        self.next_stamp += 1;
        let since = self.at;
        let cost = |limit: &Metered| {
            let counts = slots == Slotted::Taken || !limit.gauge.is_slots();
            if counts { amounts.at(limit.unit_index) } else { 0 }
        };
        let limits = self.policy.metered();
        match &mut self.body {
            Body::Bucket(used, _) => {
                for limit in limits {
                    let state = ViewMut::Bucket(used, None);
                    limit.gauge.charge(state, since, now, cost(limit), tag);
                }
            }
            Body::Full(full) => {
                for (limit, state) in limits.iter().zip(&mut full.states) {
                    limit.gauge.charge(state.view_mut(), since, now, cost(limit), tag);
                }
            }
        }
        self.set_time(now);
        tag.stamp
    }

    /// Decides and charges `amounts` in one step where the entry is a single continuous bucket and nothing else, which
    /// most entries of a busy process are. The same as deciding and then charging, at half the price.
    #[inline(always)]
    pub(crate) fn take_from_bucket(
        &mut self,
        amounts: &Amounts,
        now: Timestamp,
        refundable: bool,
    ) -> Option<Result<ChargeRecord, Timestamp>> {
        let [limit] = self.policy.metered() else { return None };
        let (Gauge::Continuous(gauge), cost @ 1..) = (&limit.gauge, amounts.at(limit.unit_index))
        else {
            return None;
        };
        let used = match &self.body {
            Body::Bucket(used, _) => *used,
            Body::Full(full) => match (full.states.as_slice(), &full.extra) {
                ([State::Bucket(used, _)], None) => *used,
                _ => return None,
            },
        };
        let level = gauge.level(used, self.at, now);
        let ready = gauge.ready_at(level, now, cost);
        if gauge.most() < cost || now < ready {
            return (cost <= gauge.most()).then_some(Err(ready));
        }
        let (tag, after) =
            (ChargeTag { stamp: self.next_stamp, refundable }, gauge.add(level, cost));
        match &mut self.body {
            // A record starts here: nothing charged earlier can be given back any more.
            Body::Bucket(used, starts) if level == 0 || !*starts => {
                (*used, *starts) = (after, refundable);
            }
            _ => self.record_in_bucket(tag, level, after),
        }
        (self.at, self.next_stamp) = (now, tag.stamp + 1);
        Some(Ok(ChargeRecord { at: now, stamp: tag.stamp }))
    }

    /// Raises a single bucket from `level` to `after`, and records the charge.
    #[inline(never)]
    fn record_in_bucket(&mut self, tag: ChargeTag, level: u64, after: u64) {
        if let [State::Bucket(used, lows)] = self.full_mut().states.as_mut_slice() {
            tag.record(lows, level);
            *used = after;
        }
    }

    /// Whether nothing is used and nothing closed at `now`.
    pub(crate) fn is_empty(&self, now: Timestamp) -> bool {
        let now = self.effective(now);
        self.limits().all(|(limit, state)| limit.gauge.is_idle(state, self.at, now))
            && self.extra().is_none_or(|extra| extra.closed.iter().all(|(_, until)| *until <= now))
    }

    /// Whether the entry says at `now` what an absent one says, so that forgetting it changes nothing: it is empty,
    /// no settled permit could come again, and a fresh entry would not give its stamps a second time.
    #[must_use]
    pub fn is_absent(&self, now: Timestamp) -> bool {
        self.at <= now
            && self.next_stamp <= now.as_micros().max(1)
            && self.is_empty(now)
            && self.extra().is_none_or(|extra| {
                extra.settled.is_idle(now)
                    && extra.changed.is_none_or(|changed| changed.is_over(now))
            })
    }
}

/// Whether a charge takes slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slotted {
    /// An admission holds its slots.
    Taken,
    /// Arrears hold none: what they paid for is over.
    Not,
}
