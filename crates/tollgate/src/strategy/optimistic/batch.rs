//! Admitted asks that reach the store as one charge, and what of it is to be given back.
//!
//! The store settles a permit once, so what the asks of a batch give back is gathered until the last of them is settled,
//! or the instance ends. At a modest rate a batch is a single ask, and then that is at once.

use std::collections::BTreeSet;

use tollgate_core::bounds::UNITS_MAX;
use tollgate_core::{Ask, Costs, Permit};

use super::account::{Sums, add};

#[derive(Debug)]
pub(super) struct Batch {
    /// The numbers of its asks: from `first` up to and without `end`.
    pub(super) first: u64,
    pub(super) end: u64,
    /// The charged amounts, fixed once the batch is sent.
    pub(super) sums: Sums,
    /// The charge as it is sent, until it is answered.
    pub(super) ask: Option<Ask<'static>>,
    /// The store's permit, once it is answered.
    pub(super) permit: Option<Permit>,
    pub(super) settled: BTreeSet<u64>,
    /// Permits whose extra cost is charged separately.
    pub(super) charging: BTreeSet<u64>,
    less: Sums,
}

/// A permit of the store that shall have cost less.
#[derive(Clone, Debug)]
pub(super) struct Owed {
    pub(super) permit: Permit,
    pub(super) actual: Costs,
}

impl Batch {
    pub(super) const fn starting(first: u64) -> Self {
        Self {
            first,
            end: first,
            sums: [0; UNITS_MAX],
            ask: None,
            permit: None,
            settled: BTreeSet::new(),
            charging: BTreeSet::new(),
            less: [0; UNITS_MAX],
        }
    }

    pub(super) const fn holds(&self, number: u64) -> bool {
        self.first <= number && number < self.end
    }

    pub(super) fn give_back(&mut self, less: &Sums) {
        add(&mut self.less, less);
    }

    /// Returns the refund that is due now: once every ask is settled, or no further one will be.
    pub(super) fn due(&mut self, is_last: bool) -> Option<Owed> {
        let asks = self.end - self.first;
        if is_last || usize::try_from(asks).is_ok_and(|asks| asks == self.settled.len()) {
            return self.owed();
        }
        None
    }

    /// Returns the present refund, once.
    pub(super) fn owed(&mut self) -> Option<Owed> {
        let permit = self.permit.as_ref()?;
        let less = std::mem::take(&mut self.less);
        if less.iter().all(|sum| *sum == 0) {
            return None;
        }
        let left = self.sums.iter().zip(&less).map(|(sum, less)| sum.saturating_sub(*less));
        let actual = permit.policy().units().zip(left).collect();
        Some(Owed { permit: permit.clone(), actual })
    }
}
