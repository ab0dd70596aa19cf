//! Permits of local decisions, told apart from those of the store.
//!
//! A local permit has a number that means something to the instance that gave it only. The mark keeps it from being
//! settled at the store, where the same number is another charge, and the instance's own bits keep another instance from
//! taking it for one of its own.

use tollgate_core::Permit;

const MARK: u64 = 1 << 62;
const NUMBER_BITS: u32 = 47;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
const OWNER_MASK: u64 = (1 << (62 - NUMBER_BITS)) - 1;

/// Stamps for the permits of one instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamps {
    head: u64,
}

/// Who gave a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Giver {
    /// The store, or nobody: a permit of the shadow mode charged nothing.
    Store,
    /// This instance, under this number.
    Here(u64),
    /// Another instance, or this one before it was restarted.
    Elsewhere,
}

impl Stamps {
    pub(super) const fn new(random: u32) -> Self {
        Self { head: MARK | ((random as u64 & OWNER_MASK) << NUMBER_BITS) }
    }

    #[inline]
    pub(super) const fn stamp(self, number: u64) -> u64 {
        self.head | (number & NUMBER_MASK)
    }

    pub(super) fn giver(self, permit: &Permit) -> Giver {
        let stamp = permit.grant().stamp;
        if stamp & MARK == 0 {
            Giver::Store
        } else if stamp & !NUMBER_MASK == self.head {
            Giver::Here(stamp & NUMBER_MASK)
        } else {
            Giver::Elsewhere
        }
    }
}

/// The first number of a new account: unlike any that an account of the same subject gave before it was forgotten.
pub(super) const fn first_number(now: tollgate_core::Timestamp) -> u64 {
    now.as_micros() & NUMBER_MASK
}
