//! The four rules: a closed set, each in its own file.
//!
//! A [`Rule`] is what a person configures. A [`Gauge`] is the same rule ready to decide, with headroom, margin and the
//! block's time to live already taken off. A [`State`] is what a rule remembers, as of its entry's time. Every gauge
//! answers the same few questions, so the code that decides over several limits never asks which rule it has.

mod bucket;
mod calendar;
mod gauge;
mod lows;
mod slots;
mod state;
mod window;

pub use bucket::{Refill, TokenBucket};
pub use calendar::{CalendarWindow, Period};
pub use slots::Concurrency;
pub use window::RollingWindow;

pub(crate) use bucket::{Continuous, Interval};
pub(crate) use calendar::{Calendar, CalendarState};
pub(crate) use gauge::{ChargeTag, Gauge, Refunds};
pub(crate) use lows::{Low, Lows};
pub(crate) use slots::{Slot, Slots};
pub(crate) use state::{Record, State, View, ViewMut};
pub(crate) use window::{Log, Logged, Window};

use crate::time::Span;

/// An algorithm with its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rule {
    /// A capacity that refills at a steady rate.
    TokenBucket(TokenBucket),
    /// At most n in any window.
    RollingWindow(RollingWindow),
    /// At most n per minute, hour, day, week or month of a time zone.
    CalendarWindow(CalendarWindow),
    /// At most n held at once.
    Concurrency(Concurrency),
}

impl Rule {
    /// The number a person configured: the capacity or the limit.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        match self {
            Self::TokenBucket(rule) => rule.capacity,
            Self::RollingWindow(rule) => rule.limit,
            Self::CalendarWindow(rule) => rule.limit,
            Self::Concurrency(rule) => rule.limit,
        }
    }

    /// The rule's name in configuration.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::TokenBucket(_) => "token-bucket",
            Self::RollingWindow(_) => "rolling-window",
            Self::CalendarWindow(_) => "calendar-window",
            Self::Concurrency(_) => "concurrency",
        }
    }
}

impl From<TokenBucket> for Rule {
    fn from(rule: TokenBucket) -> Self {
        Self::TokenBucket(rule)
    }
}

impl From<RollingWindow> for Rule {
    fn from(rule: RollingWindow) -> Self {
        Self::RollingWindow(rule)
    }
}

impl From<CalendarWindow> for Rule {
    fn from(rule: CalendarWindow) -> Self {
        Self::CalendarWindow(rule)
    }
}

impl From<Concurrency> for Rule {
    fn from(rule: Concurrency) -> Self {
        Self::Concurrency(rule)
    }
}

/// How a rule becomes a gauge: what is never issued, and how far ahead of the provider we are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    /// Headroom in whole units.
    pub(crate) reserve: u64,
    /// From admission to arrival at the provider.
    pub(crate) margin: Span,
    /// From leasing a block to spending it.
    pub(crate) block_ttl: Span,
    /// The grid of a rolling window.
    pub(crate) slots: Option<u32>,
}

impl Rule {
    pub(crate) fn gauge(&self, allowance: Allowance) -> Result<Gauge, crate::Error> {
        let Allowance { reserve, margin, block_ttl, slots } = allowance;
        let ahead = margin.plus(block_ttl);
        Ok(match self {
            Self::TokenBucket(rule) => match rule.mode {
                Refill::Continuous => Gauge::Continuous(Continuous::new(rule, reserve, ahead)?),
                Refill::Interval => Gauge::Interval(Interval::new(rule, reserve)),
            },
            Self::RollingWindow(rule) => Gauge::Window(Window::new(rule, slots, reserve, ahead)),
            Self::CalendarWindow(rule) => Gauge::Calendar(Calendar::new(rule, reserve, margin)?),
            Self::Concurrency(rule) => Gauge::Slots(Slots::new(rule, reserve)),
        })
    }
}
