//! The numbers that decide, for stores that decide elsewhere.
//!
//! A script, a statement or an expression runs where the store is and cannot call this crate. It gets the numbers that
//! follow from a policy (headroom, margin and `block_ttl` taken off) from here, so that there is one place where they
//! are derived.

use super::Policy;
use crate::codec;
use crate::error::Error;
use crate::rule::Gauge;
use crate::time::{Span, Timestamp};

/// A limit's numbers, ready to decide with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Derived {
    /// A continuous bucket, counted in fine units so that every microsecond refills a whole number of them.
    Continuous {
        /// The effective capacity in fine units.
        capacity: u64,
        /// The fine units of one token.
        token: u64,
        /// The fine units that come back per microsecond.
        rate: u64,
    },
    /// A bucket that is refilled at each multiple of the period since the epoch.
    Interval {
        /// The effective capacity in tokens.
        capacity: u64,
        /// The tokens that come back at each boundary.
        refill: u64,
        /// The time between boundaries.
        period: Span,
    },
    /// A rolling window.
    Window {
        /// The effective limit.
        limit: u64,
        /// The effective length.
        window: Span,
        /// The length of a slot; zero for the exact log.
        slot: Span,
    },
    /// A calendar window; its borders come from [`Policy::windows_at`].
    Calendar {
        /// The effective limit.
        limit: u64,
        /// Charges this long before the end count in the next window, too.
        margin: Span,
    },
    /// Slots.
    Slots {
        /// The effective limit.
        limit: u64,
        /// How long a slot is held.
        ttl: Span,
    },
}

/// The borders of a calendar window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Borders {
    /// The first instant inside.
    pub start: Timestamp,
    /// The first instant after it.
    pub end: Timestamp,
}

impl Policy {
    /// The numbers of each limit, in order.
    pub fn derived(&self) -> impl ExactSizeIterator<Item = Derived> + '_ {
        self.metered().iter().map(|limit| match &limit.gauge {
            Gauge::Continuous(gauge) => gauge.derived(),
            Gauge::Interval(gauge) => gauge.derived(),
            Gauge::Window(gauge) => gauge.derived(),
            Gauge::Calendar(gauge) => gauge.derived(),
            Gauge::Slots(gauge) => gauge.derived(),
        })
    }

    /// For each limit, in order, the calendar window that holds `at` and the one after it; nothing for other rules.
    pub fn windows_at(&self, at: Timestamp) -> impl Iterator<Item = Option<[Borders; 2]>> + '_ {
        self.metered().iter().map(move |limit| {
            let Gauge::Calendar(gauge) = &limit.gauge else { return None };
            let borders = |at| {
                let (start, end) = gauge.window_at(at);
                Borders { start, end }
            };
            let open = borders(at);
            Some([open, borders(open.end)])
        })
    }

    /// Returns the index of each limit's unit in [`Policy::units`], in order.
    pub fn unit_indexes(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.metered().iter().map(|limit| limit.unit_index)
    }

    /// The numbers that states depend on, as bytes: equal for two policies if and only if states of one mean the same
    /// under the other.
    #[must_use]
    pub fn shape_bytes(&self) -> &[u8] {
        self.shape()
    }

    /// A hash of [`shape_bytes`](Self::shape_bytes), the same everywhere and always, computed once.
    #[must_use]
    pub fn shape_hash(&self) -> u64 {
        self.0.shape_hash
    }

    /// The policy called `name` that [`shape_bytes`](Self::shape_bytes) were taken from: its limits and their numbers,
    /// without settings that states do not depend on.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) if the bytes are not the shape of a policy.
    pub fn from_shape_bytes(name: &str, bytes: &[u8]) -> Result<Self, Error> {
        codec::decode_shape(name, bytes)
    }
}
