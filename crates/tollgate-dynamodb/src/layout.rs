//! The attributes of a policy's limits, and how a charge changes them.
//!
//! The layout follows from the numbers of the policy alone, so instances with the same numbers use the same attributes.
//!
//! | rule | attributes | a charge |
//! |---|---|---|
//! | token bucket | `t<place>`: when it is full again, in fine units | adds to it, or starts from now |
//! | rolling window with a grid | `q<place>`: the sum; `j<place>.<slot>`: the charges of this slot; `f<place>`: the first slot in the sum | adds to the sum and to the present slot, and subtracts expired slots |
//! | calendar window | `c<place>.<end>`: the usage of the window with this end | adds to it |
//! | rolling window, exact | `g<place>`: the log | rewrites it |
//! | concurrency | `h<place>`: the held slots | rewrites it |
//!
//! The first three are additions, which commute, so writers do not conflict.
//!
//! The slots of a grid keep three invariants, whatever the order of writes: the sum is the total of the slots; no slot
//! below `f` exists; nothing is ever added to a slot below `f`. An expired slot that is not subtracted yet makes the sum too
//! large, never too small, so a charge within the sum is within the limit.
//!
//! Items of [format 1](crate::format) have overlapping counters instead, `w<place>.<slot>`: the charges from this slot on for one
//! window.

use tollgate::core::bounds::{LOG_ENTRIES_MAX, LOWS_MAX};
use tollgate::core::{Derived, Policy, Timestamp};
use tollgate::{Error, ErrorKind};

/// The most slots of a rolling window on this store.
pub const SLOTS_PER_WINDOW_MAX: u64 = 64;

/// The most bytes of the states of one policy in an item. The service allows 400 KB, of which settled permits take at most
/// `packed::SETTLED_BYTES_MAX`.
const STATE_BYTES_MAX: u64 = 288 * 1_024;

/// The representation of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A bucket, by the time when it is full again.
    Level(Level),
    /// A sum and a counter for each slot.
    Grid(Grid),
    /// A counter named by its window.
    Calendar { limit: u64, margin: u64 },
    /// A log.
    Log,
    /// A list of at most `limit` slots.
    Slots { limit: u64 },
}

impl Kind {
    /// Returns the most bytes of the attributes.
    const fn bytes_max(&self) -> u64 {
        match self {
            // A level of 38 digits, three numbers, and pairs of packed numbers.
            Self::Level(_) => 64 + 20 * LOWS_MAX as u64,
            // A name of 20 bytes and a number of 16 digits for each slot, the sum and the first slot.
            Self::Grid(grid) => 32 * (grid.span() + 12),
            Self::Calendar { .. } => 2 * 32,
            // Packed pairs of a time and an amount.
            Self::Log => 32 + 16 * LOG_ENTRIES_MAX as u64,
            // Packed differences of stamps and of times, and a small number.
            Self::Slots { limit } => 32 + 14 * *limit,
        }
    }
}

/// A bucket whose level falls by `rate` per microsecond, or by `rate` at each boundary of `period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    pub(crate) capacity: u64,
    pub(crate) token: u64,
    pub(crate) rate: u64,
    period: u64,
    /// Whether it refills with time, and not only at boundaries.
    pub(crate) is_continuous: bool,
}

impl Level {
    /// Returns the level of a bucket that becomes full at `at`.
    pub(crate) fn at(&self, at: Timestamp) -> u128 {
        u128::from(at.as_micros() / self.period) * u128::from(self.rate)
    }

    /// Returns the level of `cost`.
    pub(crate) fn cost(&self, cost: u64) -> u128 {
        u128::from(cost) * u128::from(self.token)
    }

    /// Returns how long a full charge takes to refill, in microseconds.
    fn micros_to_full(&self) -> u64 {
        (self.capacity.div_ceil(self.rate)).saturating_add(1).saturating_mul(self.period)
    }
}

/// A rolling window on a grid of slots. An amount counts until `window` after the end of its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    pub(crate) limit: u64,
    pub(crate) slot: u64,
    pub(crate) window: u64,
}

impl Grid {
    /// Returns the slot of `at`.
    pub(crate) const fn slot_of(&self, at: Timestamp) -> u64 {
        at.as_micros() / self.slot
    }

    /// Returns the first slot that counts at `at`.
    pub(crate) const fn first_at(&self, at: Timestamp) -> u64 {
        at.as_micros().saturating_sub(self.window) / self.slot
    }

    /// Returns the end of `slot`, under which the core files its amount.
    pub(crate) const fn end_of(&self, slot: u64) -> Timestamp {
        Timestamp::from_micros((slot + 1).saturating_mul(self.slot))
    }

    /// Returns the number of slots in a window.
    pub(crate) const fn span(&self) -> u64 {
        self.window.div_ceil(self.slot)
    }
}

/// The attributes of a policy.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) kinds: Vec<Kind>,
}

impl Layout {
    pub(crate) fn for_policy(policy: &Policy) -> Self {
        let kinds = policy.derived().map(|derived| match derived {
            Derived::Continuous { capacity, token, rate } => {
                Kind::Level(Level { capacity, token, rate, period: 1, is_continuous: true })
            }
            Derived::Interval { capacity, refill, period } => Kind::Level(Level {
                capacity,
                token: 1,
                rate: refill,
                period: period.as_micros().max(1),
                is_continuous: false,
            }),
            Derived::Window { limit, window, slot } if !slot.is_zero() => {
                let (slot, window) = (slot.as_micros(), window.as_micros());
                Kind::Grid(Grid { limit, slot, window })
            }
            Derived::Calendar { limit, margin } => {
                Kind::Calendar { limit, margin: margin.as_micros() }
            }
            Derived::Slots { limit, .. } => Kind::Slots { limit },
            // The exact log, and rules of later versions of the core.
            _ => Kind::Log,
        });
        Self { kinds: kinds.collect() }
    }

    /// Checks that this store supports `policy`, whose layout this is.
    pub(crate) fn check(&self, policy: &Policy) -> Result<(), Error> {
        for (kind, limit) in self.kinds.iter().zip(policy.limits()) {
            if let Kind::Grid(grid) = kind
                && SLOTS_PER_WINDOW_MAX < grid.span()
            {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    format!(
                        "dynamodb: limit {:?} of policy {:?} has {} slots per window, and this store supports at most \
                         {SLOTS_PER_WINDOW_MAX}; set resolution = {SLOTS_PER_WINDOW_MAX} or less",
                        limit.name(),
                        policy.name(),
                        grid.span()
                    ),
                ));
            }
        }
        let bytes: u64 = self.kinds.iter().map(Kind::bytes_max).sum();
        if STATE_BYTES_MAX < bytes {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "dynamodb: policy {:?} may need {bytes} bytes per subject, and an item has room for {STATE_BYTES_MAX}; \
                     lower its concurrency limits, or split the policy",
                    policy.name()
                ),
            ));
        }
        Ok(())
    }

    /// Returns how long a charge matters to a limit without a calendar, in microseconds.
    pub(crate) fn memory_micros(&self) -> u64 {
        let memory = |kind: &Kind| match kind {
            Kind::Level(level) => level.micros_to_full(),
            Kind::Grid(grid) => (grid.span() + 2).saturating_mul(grid.slot),
            Kind::Calendar { .. } | Kind::Log | Kind::Slots { .. } => 0,
        };
        self.kinds.iter().map(memory).max().unwrap_or(0)
    }
}

pub(crate) fn level_name(place: usize) -> String {
    format!("t{place}")
}

/// The refund record of a continuous bucket.
pub(crate) fn refunds_name(place: usize) -> String {
    format!("b{place}")
}

pub(crate) fn sum_name(place: usize) -> String {
    format!("q{place}")
}

pub(crate) fn first_name(place: usize) -> String {
    format!("f{place}")
}

/// The digits of slots in names, six bits each, so that a full grid stays below one write unit of 1 KB.
const DIGITS: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz-";

pub(crate) fn slot_name(place: usize, slot: u64) -> String {
    let digits = (64 - slot.leading_zeros()).div_ceil(6).max(1);
    let digit =
        |place: u32| char::from(DIGITS[usize::from((slot >> (6 * place)).to_le_bytes()[0] & 63)]);
    format!("j{place}.{}", (0..digits).rev().map(digit).collect::<String>())
}

/// Parses the slot in `name`, if it belongs to the limit at `place`.
pub(crate) fn slot_in(name: &str, place: usize) -> Option<u64> {
    let (head, digits) = name.strip_prefix('j')?.split_once('.')?;
    if head.parse() != Ok(place) {
        return None;
    }
    digits.bytes().try_fold(0_u64, |slot, digit| {
        let value = DIGITS.iter().position(|other| *other == digit)?;
        slot.checked_mul(64)?.checked_add(u64::try_from(value).ok()?)
    })
}

/// A counter of format 1.
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

/// Parses the number after the dot, if `name` belongs to the limit at `place` and has this `letter`.
pub(crate) fn index_of(name: &str, letter: char, place: usize) -> Option<u64> {
    let (head, index) = name.strip_prefix(letter)?.split_once('.')?;
    (head.parse() == Ok(place)).then(|| index.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_found_by_their_names() {
        for slot in [0, 1, 36, 63, 64, 4_095, 4_096, 11_520_000_123, u64::MAX / 64] {
            let name = slot_name(3, slot);
            assert_eq!((slot_in(&name, 3), slot_in(&name, 13)), (Some(slot), None), "{name}");
        }
        assert_eq!(slot_in("j3.!", 3), None);
    }
}
