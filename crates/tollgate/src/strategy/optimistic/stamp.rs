//! Stamps that distinguish permits of local decisions from those of the store.
//!
//! A local permit has a number that means something to the instance that gave it only. Its stamp is one that no store
//! makes ([`LOCAL_STAMPS`]), so no store gives anything back for it, and the instance's own bits keep another instance
//! from taking it for one of its own.

use tollgate_core::Permit;
use tollgate_core::bounds::LOCAL_STAMPS;

const NUMBER_BITS: u32 = 47;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;

/// Stamps for the permits of one instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamps {
    head: u64,
}

/// The origin of a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Giver {
    /// The store. This includes permits of the shadow mode, which charged nothing.
    Store,
    /// An instance: this one, under this number, or another, or this one before it was restarted.
    Local(Option<u64>),
}

impl Stamps {
    pub(super) const fn new(random: u32) -> Self {
        Self { head: LOCAL_STAMPS | (((random as u64) << NUMBER_BITS) & !LOCAL_STAMPS) }
    }

    #[inline]
    pub(super) const fn stamp(self, number: u64) -> u64 {
        self.head | (number & NUMBER_MASK)
    }

    pub(super) fn giver(self, permit: &Permit) -> Giver {
        let stamp = permit.grant().stamp;
        if !permit.is_local() {
            return Giver::Store;
        }
        Giver::Local((stamp & !NUMBER_MASK == self.head).then_some(stamp & NUMBER_MASK))
    }
}

/// The first number of a new account: unlike any that an account of the same subject gave before it was forgotten.
pub(super) const fn first_number(now: tollgate_core::Timestamp) -> u64 {
    now.as_micros() & NUMBER_MASK
}
