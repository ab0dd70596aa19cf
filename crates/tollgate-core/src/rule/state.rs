//! The states of rules, and views of them that do not depend on where they are kept.

use super::{CalendarState, Log, Low, Lows, Slot};
use crate::time::Timestamp;

/// The state of a rule, as of the time of its entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The usage of a bucket in the units of its gauge, and the lows of a continuous one whose charges may be given back.
    Bucket(u64, Option<Box<Lows>>),
    /// The log of a rolling window; boxed, so that the states of several limits lie close together.
    Window(Box<Log>),
    /// The open window of a calendar.
    Calendar(CalendarState),
    /// The held slots, in order of expiry.
    Slots(Vec<Slot>),
}

/// A state to read, wherever it is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) enum View<'a> {
    Bucket(u64, Record<'a>),
    Window(&'a Log),
    Calendar(&'a CalendarState),
    Slots(&'a [Slot]),
}

/// The record for giving back of a bucket, wherever it is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Record<'a> {
    /// No charge of it can be given back. Empty [`Lows`](Self::Lows) mean the same.
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
    /// The usage, and the lows if there is room for them.
    Bucket(&'a mut u64, Option<&'a mut Option<Box<Lows>>>),
    Window(&'a mut Log),
    Calendar(&'a mut CalendarState),
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
            Self::Calendar(window) => View::Calendar(window),
            Self::Slots(held) => View::Slots(held),
        }
    }

    #[inline]
    pub(crate) fn view_mut(&mut self) -> ViewMut<'_> {
        match self {
            Self::Bucket(used, lows) => ViewMut::Bucket(used, Some(lows)),
            Self::Window(log) => ViewMut::Window(log),
            Self::Calendar(window) => ViewMut::Calendar(window),
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
            Self::Calendar(window) => ViewMut::Calendar(window),
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
            Self::Calendar(window) => State::Calendar(*window),
            Self::Slots(held) => State::Slots(held.to_vec()),
        }
    }
}
