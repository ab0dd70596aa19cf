//! Which attributes a policy's limits have, and what a charge does to them.
//!
//! It follows from the numbers of the policy alone, so every instance that has the same numbers reads and writes the
//! same attributes.
//!
//! | rule | attributes | a charge |
//! |---|---|---|
//! | token bucket | `t<place>`: when it is full again, in fine units | adds to it, or starts from now |
//! | rolling window with `resolution` | `w<place>.<slot>`: what is used in the window that begins with this slot | adds to each window that the present slot is in |
//! | calendar window | `c<place>.<end>`: what is used in the window with this end | adds to it |
//! | rolling window, exact | `g<place>`: the log | rewrites it |
//! | concurrency | `h<place>`: who holds a slot | rewrites it |
//!
//! The first three are absolute: two charges in any order are the same, so writers do not disturb each other.

use tollgate::core::{Derived, Policy, Timestamp};

/// The most counters that the rolling windows of one policy have together; a window beyond it keeps a log. A condition
/// may have 300 operators, and each counter takes four.
pub const COUNTERS_MAX: u64 = 40;

/// How one limit is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A bucket, by the time at which it is full again.
    Level(Level),
    /// Overlapping counters.
    Counters(Counters),
    /// A counter named by its window.
    Calendar { limit: u64, margin: u64 },
    /// A log.
    Log,
    /// A list of slots.
    Slots,
}

/// A bucket whose level falls by `rate` per microsecond, or by `rate` at each boundary of `period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    pub(crate) capacity: u64,
    pub(crate) token: u64,
    rate: u64,
    period: u64,
}

impl Level {
    /// The present as a level: what the bucket would stand at if it became full now.
    pub(crate) fn of(&self, at: Timestamp) -> u128 {
        u128::from(at.as_micros() / self.period) * u128::from(self.rate)
    }

    /// What `cost` adds.
    pub(crate) fn cost(&self, cost: u64) -> u128 {
        u128::from(cost) * u128::from(self.token)
    }

    /// How long a full charge takes to come back, in microseconds.
    fn micros_to_full(&self) -> u64 {
        (self.capacity.div_ceil(self.rate)).saturating_add(1).saturating_mul(self.period)
    }
}

/// A rolling window of slots. The counter of slot j counts what was charged in the slots j to j + `span`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) limit: u64,
    pub(crate) slot: u64,
    pub(crate) span: u64,
}

impl Counters {
    /// The slot that `at` is in.
    pub(crate) const fn slot_of(&self, at: Timestamp) -> u64 {
        at.as_micros() / self.slot
    }

    /// The counters of every window that the slot of `at` is in.
    pub(crate) fn around(&self, at: Timestamp) -> std::ops::RangeInclusive<u64> {
        let slot = self.slot_of(at);
        slot.saturating_sub(self.span)..=slot
    }

    /// When nobody needs the counter of `slot` any more.
    pub(crate) const fn dead_at(&self, slot: u64) -> Timestamp {
        Timestamp::from_micros((slot + self.span + 1).saturating_mul(self.slot))
    }
}

/// The attributes of a policy.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) kinds: Vec<Kind>,
}

impl Layout {
    pub(crate) fn of(policy: &Policy) -> Self {
        let mut counters_left = COUNTERS_MAX;
        let kinds = policy.derived().map(|derived| match derived {
            Derived::Continuous { capacity, token, rate } => {
                Kind::Level(Level { capacity, token, rate, period: 1 })
            }
            Derived::Interval { capacity, refill, period } => Kind::Level(Level {
                capacity,
                token: 1,
                rate: refill,
                period: period.as_micros().max(1),
            }),
            Derived::Window { limit, window, slot } if !slot.is_zero() => {
                let slot = slot.as_micros();
                let span = window.as_micros().div_ceil(slot);
                match counters_left.checked_sub(span + 1) {
                    Some(left) => {
                        counters_left = left;
                        Kind::Counters(Counters { limit, slot, span })
                    }
                    None => Kind::Log,
                }
            }
            Derived::Calendar { limit, margin } => {
                Kind::Calendar { limit, margin: margin.as_micros() }
            }
            Derived::Slots { .. } => Kind::Slots,
            // The exact log, and whatever a later version of the core may add.
            _ => Kind::Log,
        });
        Self { kinds: kinds.collect() }
    }

    /// The longest time, in microseconds, for which a charge that fits matters to a limit without a calendar.
    pub(crate) fn memory_micros(&self) -> u64 {
        let memory = |kind: &Kind| match kind {
            Kind::Level(level) => level.micros_to_full(),
            Kind::Counters(counters) => (counters.span + 2).saturating_mul(counters.slot),
            Kind::Calendar { .. } | Kind::Log | Kind::Slots => 0,
        };
        self.kinds.iter().map(memory).max().unwrap_or(0)
    }
}

pub(crate) fn level_name(place: usize) -> String {
    format!("t{place}")
}

pub(crate) fn counter_name(place: usize, slot: u64) -> String {
    format!("w{place}.{slot}")
}

pub(crate) fn calendar_name(place: usize, end: Timestamp) -> String {
    format!("c{place}.{}", end.as_micros())
}

pub(crate) fn log_name(place: usize) -> String {
    format!("g{place}")
}

pub(crate) fn slots_name(place: usize) -> String {
    format!("h{place}")
}

pub(crate) fn closed_name(place: usize) -> String {
    format!("k{place}")
}

/// The number after the dot, if `name` belongs to the limit at `place` of the kind with this `letter`.
pub(crate) fn index_of(name: &str, letter: char, place: usize) -> Option<u64> {
    let (head, index) = name.strip_prefix(letter)?.split_once('.')?;
    (head.parse() == Ok(place)).then(|| index.parse().ok()).flatten()
}
