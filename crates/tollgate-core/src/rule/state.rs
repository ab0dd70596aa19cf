//! What rules remember, and how it is looked at wherever it is kept.

use super::{Log, Page, Slot};
use crate::time::Timestamp;

/// What a rule remembers, as of the time of the entry it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// What a bucket has used, in the units of its gauge.
    Bucket(u64),
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
    Bucket(u64),
    Window(&'a Log),
    Calendar(&'a Page),
    Slots(&'a [Slot]),
}

/// A state to change, wherever it is kept.
#[derive(Debug)]
pub(crate) enum ViewMut<'a> {
    Bucket(&'a mut u64),
    Window(&'a mut Log),
    Calendar(&'a mut Page),
    Slots(&'a mut Vec<Slot>),
}

impl State {
    #[inline]
    pub(crate) fn view(&self) -> View<'_> {
        match self {
            Self::Bucket(used) => View::Bucket(*used),
            Self::Window(log) => View::Window(log),
            Self::Calendar(page) => View::Calendar(page),
            Self::Slots(held) => View::Slots(held),
        }
    }

    #[inline]
    pub(crate) fn view_mut(&mut self) -> ViewMut<'_> {
        match self {
            Self::Bucket(used) => ViewMut::Bucket(used),
            Self::Window(log) => ViewMut::Window(log),
            Self::Calendar(page) => ViewMut::Calendar(page),
            Self::Slots(held) => ViewMut::Slots(held),
        }
    }
}

impl ViewMut<'_> {
    /// The same state, to be changed twice.
    #[inline]
    pub(crate) const fn reborrow(&mut self) -> ViewMut<'_> {
        match self {
            Self::Bucket(used) => ViewMut::Bucket(used),
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
            Self::Bucket(used) => State::Bucket(used),
            Self::Window(log) => State::Window(Box::new(log.clone())),
            Self::Calendar(page) => State::Calendar(*page),
            Self::Slots(held) => State::Slots(held.to_vec()),
        }
    }
}
