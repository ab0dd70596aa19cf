//! Leasing tokens in advance: whether a policy allows it, how many, until when, and what is returned.
//!
//! The store keeps to stricter numbers where a policy has a `block_ttl`, since what is spent in an interval was taken in
//! a longer one. Here is the other half: how long a block may be spent so that those numbers suffice.

use super::{Limit, Policy};
use crate::bounds::NUMBER_MAX;
use crate::costs::Amounts;
use crate::time::Timestamp;

impl Policy {
    /// Whether tokens may be taken in advance: the policy has a `block_ttl`, no slots, and refuses some asks but not all.
    #[must_use]
    pub fn is_leased(&self) -> bool {
        let is_blocked = || self.limits().any(Limit::is_blocked);
        !self.0.block_ttl.is_zero() && !self.0.shadow && !self.has_slots() && !is_blocked()
    }

    /// Whether any limit counts slots.
    #[must_use]
    pub fn has_slots(&self) -> bool {
        self.0.limits.iter().any(|limit| limit.gauge.is_slots())
    }

    /// Until when tokens taken at `at` in advance may be spent: `block_ttl` later, or where a rule starts afresh,
    /// whichever comes first. Nothing if the policy cannot be leased, because it has no `block_ttl` or has slots.
    #[must_use]
    pub fn block_ends_at(&self, at: Timestamp) -> Option<Timestamp> {
        if self.0.block_ttl.is_zero() || self.has_slots() {
            return None;
        }
        let boundaries = self.0.limits.iter().filter_map(|limit| limit.gauge.next_boundary(at));
        boundaries.chain([at + self.0.block_ttl]).min()
    }

    /// Returns the most that one block may hold: one part in `parts` of the least limit on each unit.
    #[must_use]
    pub fn block_max(&self, parts: u64) -> Amounts {
        self.least_by_unit(|index| self.0.limits[index].gauge.most() / parts.max(1))
    }

    /// For each unit the least of what `of` says for its limits, by their place.
    #[must_use]
    pub fn least_by_unit(&self, of: impl Fn(usize) -> u64) -> Amounts {
        Amounts::from_fn(|unit| {
            let limits = self.0.limits.iter().enumerate();
            let on_unit =
                limits.filter(|(_, limit)| limit.unit_index == unit).map(|(index, _)| of(index));
            on_unit.min().unwrap_or(NUMBER_MAX)
        })
    }

    /// Whether giving back `amounts` of what was charged at `charged_at` would make any room at `now`; if not, time
    /// has given all of it back already.
    #[must_use]
    pub fn makes_room(&self, amounts: &Amounts, charged_at: Timestamp, now: Timestamp) -> bool {
        let limits = self.0.limits.iter();
        limits
            .into_iter()
            .any(|limit| limit.gauge.makes_room(amounts.at(limit.unit_index), charged_at, now))
    }
}
