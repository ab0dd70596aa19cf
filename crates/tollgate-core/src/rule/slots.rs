//! Concurrency: places that are held until they are released or expire.
//!
//! Expiry is what heals a crash: a holder that is gone cannot release. A slot is known by the stamp of the permit that
//! took it, so releasing twice frees one.

use crate::bounds::SLOTS_MAX;
use crate::policy::Derived;
use crate::time::{Span, Timestamp};

/// The rule `concurrency`: at most `limit` slots held at once, each for at most `ttl` unless renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Concurrency {
    /// The most slots held at once.
    pub limit: u64,
    /// How long a slot is held if it is neither released nor renewed.
    pub ttl: Span,
}

impl Concurrency {
    /// At most `limit` slots, each expiring after `ttl`.
    #[must_use]
    pub fn new(limit: u64, ttl: impl Into<Span>) -> Self {
        Self { limit, ttl: ttl.into() }
    }
}

/// The places that one permit holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) stamp: u64,
    pub(crate) expires_at: Timestamp,
    pub(crate) places: u64,
}

/// A concurrency limit, ready to decide. The state is a list of slots in order of expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slots {
    limit: u64,
    ttl: Span,
}

impl Slots {
    pub(crate) const fn new(rule: &Concurrency, reserve: u64) -> Self {
        Self { limit: rule.limit.saturating_sub(reserve), ttl: rule.ttl }
    }

    pub(crate) const fn most(&self) -> u64 {
        self.limit
    }

    pub(crate) const fn derived(&self) -> Derived {
        Derived::Slots { limit: self.limit, ttl: self.ttl }
    }

    pub(crate) fn expires_at(&self, now: Timestamp) -> Timestamp {
        now + self.ttl
    }

    pub(crate) fn used(held: &[Slot], now: Timestamp) -> u64 {
        held.iter().filter(|slot| now < slot.expires_at).map(|slot| slot.places).sum()
    }

    pub(crate) fn ready_at(&self, held: &[Slot], now: Timestamp, cost: u64) -> Timestamp {
        let room = self.limit.saturating_sub(cost);
        let mut used = Self::used(held, now);
        let mut ready = now;
        for slot in held.iter().filter(|slot| now < slot.expires_at) {
            if used <= room {
                break;
            }
            used -= slot.places;
            ready = slot.expires_at;
        }
        ready
    }

    pub(crate) fn advance(held: &mut Vec<Slot>, now: Timestamp) {
        held.retain(|slot| now < slot.expires_at);
    }

    pub(crate) fn add(&self, held: &mut Vec<Slot>, now: Timestamp, places: u64, stamp: u64) {
        insert(held, Slot { stamp, expires_at: self.expires_at(now), places });
    }

    /// Holds what `others` hold, too. Beyond [`SLOTS_MAX`] holders, the first to expire hand their places to the next, and are
    /// no longer known by their stamp.
    pub(crate) fn unite(held: &mut Vec<Slot>, others: &[Slot]) {
        let new: Vec<Slot> = others.iter().filter(|slot| !held.contains(slot)).copied().collect();
        held.extend(new);
        // The same order, whichever side is the other.
        held.sort_by_key(|slot| (slot.expires_at, slot.stamp, slot.places));
        let excess = held.len().saturating_sub(usize::try_from(SLOTS_MAX).unwrap_or(usize::MAX));
        let places: u64 = held.drain(..excess).map(|slot| slot.places).sum();
        if let Some(next) = held.first_mut() {
            next.places += places;
        }
    }

    pub(crate) fn free(held: &mut Vec<Slot>, stamp: u64) {
        held.retain(|slot| slot.stamp != stamp);
    }

    /// The new expiry, or nothing if the permit holds no slot any more.
    pub(crate) fn renew(
        &self,
        held: &mut Vec<Slot>,
        now: Timestamp,
        stamp: u64,
    ) -> Option<Timestamp> {
        let index = held.iter().position(|slot| slot.stamp == stamp && now < slot.expires_at)?;
        let mut slot = held.remove(index);
        slot.expires_at = slot.expires_at.max(self.expires_at(now));
        insert(held, slot);
        Some(slot.expires_at)
    }
}

fn insert(held: &mut Vec<Slot>, slot: Slot) {
    let index = held.partition_point(|other| other.expires_at <= slot.expires_at);
    held.insert(index, slot);
}
