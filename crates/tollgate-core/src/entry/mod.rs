//! What a store keeps under one key: the states of one policy for one subject.
//!
//! All limits of a policy share one entry, so "all limits or none" is one atomic write. Every state in it is as of the
//! entry's own time `at`, which never goes back: when a clock steps back, the entry stays where it was and the strict
//! side wins.

mod ids;
mod settled;

pub(crate) use ids::{Ids, Remembered};
pub(crate) use settled::{Run, Settled};

use crate::policy::Policy;
use crate::rule::State;
use crate::time::Timestamp;

/// What is remembered for one policy and subject. A fresh entry equals an absent one.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    policy: Policy,
    at: Timestamp,
    next_stamp: u64,
    states: States,
    extra: Option<Box<Extra>>,
}

/// The states of an entry; one limit is the common case and needs no memory of its own.
#[derive(Clone, Debug, PartialEq)]
enum States {
    One(State),
    Many(Box<[State]>),
}

/// What most entries never need.
#[derive(Clone, Debug, PartialEq, Default)]
pub(crate) struct Extra {
    pub(crate) ids: Ids,
    pub(crate) settled: Settled,
    /// Limits that were closed, by place, and until when.
    pub(crate) closed: Vec<(usize, Timestamp)>,
}

impl Extra {
    fn is_empty(&self) -> bool {
        self.ids.is_empty() && self.settled.is_empty() && self.closed.is_empty()
    }
}

impl Entry {
    /// An entry that says what an absent one says: nothing used.
    #[must_use]
    pub fn fresh(policy: &Policy, now: Timestamp) -> Self {
        let states = match policy.metered() {
            [one] => States::One(one.gauge.fresh()),
            many => States::Many(many.iter().map(|metered| metered.gauge.fresh()).collect()),
        };
        Self { policy: policy.clone(), at: now, next_stamp: now.as_micros().max(1), states, extra: None }
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
            && extra.closed.iter().all(|(place, _)| *place < states.len());
        if !fits {
            return None;
        }
        let states = match <[State; 1]>::try_from(states) {
            Ok([one]) => States::One(one),
            Err(many) => States::Many(many.into()),
        };
        let extra = (!extra.is_empty()).then(|| Box::new(extra));
        Some(Self { policy: policy.clone(), at, next_stamp, states, extra })
    }

    /// The policy whose numbers the entry was last written with.
    #[inline]
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.policy
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

    #[inline]
    pub(crate) fn states(&self) -> &[State] {
        match &self.states {
            States::One(state) => std::slice::from_ref(state),
            States::Many(states) => states,
        }
    }

    #[inline]
    pub(crate) fn states_mut(&mut self) -> &mut [State] {
        match &mut self.states {
            States::One(state) => std::slice::from_mut(state),
            States::Many(states) => states,
        }
    }

    #[inline]
    pub(crate) fn extra(&self) -> Option<&Extra> {
        self.extra.as_deref()
    }

    pub(crate) fn extra_mut(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    /// Until when the limit at `place` is closed, if it still is.
    #[inline]
    pub(crate) fn closed_until(&self, place: usize, now: Timestamp) -> Option<Timestamp> {
        let closed = &self.extra()?.closed;
        closed.iter().find(|(limit, until)| *limit == place && now < *until).map(|(_, until)| *until)
    }

    /// Brings every state to `now` and forgets what has expired.
    #[inline]
    pub(crate) fn advance(&mut self, now: Timestamp) {
        let since = self.at;
        let states = match &mut self.states {
            States::One(state) => std::slice::from_mut(state),
            States::Many(states) => states,
        };
        for (limit, state) in self.policy.metered().iter().zip(states) {
            limit.gauge.advance(state, since, now);
        }
        self.at = now;
        if let Some(extra) = &mut self.extra {
            extra.ids.forget_expired(now);
            extra.settled.forget_expired(now);
            extra.closed.retain(|(_, until)| now < *until);
            if extra.is_empty() {
                self.extra = None;
            }
        }
    }

    /// Charges `amounts` to an entry that stands at `now`, and returns the stamp of the charge. Slots are taken only
    /// where `slots` says so.
    #[inline]
    pub(crate) fn add(&mut self, amounts: &crate::Amounts, now: Timestamp, slots: Slotted) -> u64 {
        let stamp = self.next_stamp;
        self.next_stamp += 1;
        let states = match &mut self.states {
            States::One(state) => std::slice::from_mut(state),
            States::Many(states) => states,
        };
        for (limit, state) in self.policy.metered().iter().zip(states) {
            if slots == Slotted::Taken || !limit.gauge.is_slots() {
                limit.gauge.add(state, now, amounts.at(limit.place), stamp);
            }
        }
        stamp
    }

    /// Whether the entry says at `now` what an absent one says, so that forgetting it changes nothing: nothing used,
    /// nothing closed, no id and no settled permit that could come again, and stamps that a fresh entry would not
    /// give a second time.
    #[must_use]
    pub fn is_absent(&self, now: Timestamp) -> bool {
        let limits = self.policy.metered().iter().zip(self.states());
        self.at <= now
            && self.next_stamp <= now.as_micros().max(1)
            && limits.into_iter().all(|(limit, state)| limit.gauge.is_idle(state, self.at, now))
            && self.extra().is_none_or(|extra| {
                extra.ids.live(now) == 0
                    && extra.settled.is_idle(now)
                    && extra.closed.iter().all(|(_, until)| *until <= now)
            })
    }

    /// This entry in the numbers of `policy`. What was used stays used, limit by limit as they are named, so a change
    /// of numbers gives no free burst; the result depends on no clock, so a promised wait stays true.
    #[must_use]
    pub fn carried_to(&self, policy: &Policy) -> Self {
        let old = self.policy.metered();
        let place_of = |name: &str| old.iter().position(|limit| &*limit.name == name);
        let states: Vec<State> = policy
            .metered()
            .iter()
            .map(|limit| match place_of(&limit.name) {
                Some(place) => limit.gauge.carry(&old[place].gauge, &self.states()[place], self.at),
                None => limit.gauge.fresh(),
            })
            .collect();
        let mut extra = self.extra().cloned().unwrap_or_default();
        for known in extra.ids.iter_mut() {
            known.amounts = crate::settle::translate(&self.policy, policy, &known.amounts);
        }
        let closed = extra.closed.iter().filter_map(|(place, until)| {
            let name = &old[*place].name;
            let place = policy.metered().iter().position(|limit| limit.name == *name)?;
            Some((place, *until))
        });
        extra.closed = closed.collect();
        Self::from_parts(policy, self.at, self.next_stamp, states, extra)
            .unwrap_or_else(|| Self::fresh(policy, self.at))
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
