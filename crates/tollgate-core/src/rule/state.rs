//! What rules remember, and how it is looked at wherever it is kept.

use super::{Log, Low, Lows, Page, Slot};
use crate::time::Timestamp;

/// What a rule remembers, as of the time of the entry it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// What a bucket has used, in the units of its gauge, and the lows of a continuous one whose charges may be given back.
    Bucket(u64, Option<Box<Lows>>),
    /// The log of a rolling window; boxed, so that the states of several limits lie close together.
    Window(Box<Log>),
    /// The open page of a calendar.
    Calendar(Page),
    /// Who holds a slot, in order of expiry.
    Slots(Vec<Slot>),
}

/// A state to read, wherever it is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) enum View<'a> {
    Bucket(u64, Record<'a>),
    Window(&'a Log),
    Calendar(&'a Page),
    Slots(&'a [Slot]),
}

/// What a bucket remembers for giving back, wherever it is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Record<'a> {
    /// No charge of it can be given back; so do empty [`Lows`](Self::Lows) say.
    Nothing,
    /// The record started with this charge, which was the last.
    Start(u64),
    Lows(&'a Lows),
}

impl Record<'_> {
    pub(crate) fn lows(&self) -> Vec<Low> {
        match self {
            Self::Nothing => Vec::new(),
            Self::Start(stamp) => Lows::starting_at(*stamp).as_slice().to_vec(),
            Self::Lows(lows) => lows.as_slice().to_vec(),
        }
    }

    pub(crate) fn to_lows(self) -> Option<Box<Lows>> {
        match self {
            Self::Nothing => None,
            Self::Start(stamp) => Some(Box::new(Lows::starting_at(stamp))),
            Self::Lows(lows) => (!lows.is_empty()).then(|| Box::new(lows.clone())),
        }
    }
}

/// A state to change, wherever it is kept.
#[derive(Debug)]
pub(crate) enum ViewMut<'a> {
    /// What is used, and the lows where there is a place for them.
    Bucket(&'a mut u64, Option<&'a mut Option<Box<Lows>>>),
    Window(&'a mut Log),
    Calendar(&'a mut Page),
    Slots(&'a mut Vec<Slot>),
}

impl State {
    #[inline]
    pub(crate) fn view(&self) -> View<'_> {
        match self {
            Self::Bucket(used, lows) => {
                View::Bucket(*used, lows.as_deref().map_or(Record::Nothing, Record::Lows))
            }
            Self::Window(log) => View::Window(log),
            Self::Calendar(page) => View::Calendar(page),
            Self::Slots(held) => View::Slots(held),
        }
    }

    #[inline]
    pub(crate) fn view_mut(&mut self) -> ViewMut<'_> {
        match self {
            Self::Bucket(used, lows) => ViewMut::Bucket(used, Some(lows)),
            Self::Window(log) => ViewMut::Window(log),
            Self::Calendar(page) => ViewMut::Calendar(page),
            Self::Slots(held) => ViewMut::Slots(held),
        }
    }
}

impl ViewMut<'_> {
    /// The same state, to be changed twice.
    #[inline]
    pub(crate) fn reborrow(&mut self) -> ViewMut<'_> {
        match self {
            Self::Bucket(used, lows) => ViewMut::Bucket(used, lows.as_deref_mut()),
            Self::Window(log) => ViewMut::Window(log),
            Self::Calendar(page) => ViewMut::Calendar(page),
            Self::Slots(held) => ViewMut::Slots(held),
        }
    }
}

impl View<'_> {
    /// Whether the permit with this stamp holds a slot here at `now`.
    pub(crate) fn holds_slot(self, stamp: u64, now: Timestamp) -> bool {
        let Self::Slots(held) = self else { return false };
        held.iter().any(|slot| slot.stamp == stamp && now < slot.expires_at)
    }

    pub(crate) fn to_state(self) -> State {
        match self {
            Self::Bucket(used, record) => State::Bucket(used, record.to_lows()),
            Self::Window(log) => State::Window(Box::new(log.clone())),
            Self::Calendar(page) => State::Calendar(*page),
            Self::Slots(held) => State::Slots(held.to_vec()),
        }
    }
}
