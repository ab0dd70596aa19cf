//! The rare parts of an entry: settled permits, closed limits, and a change of numbers.

use super::Settled;
use crate::bounds::PERMIT_TTL;
use crate::time::Timestamp;

/// The rare parts of an entry, boxed so that other entries stay small.
#[derive(Clone, Debug, PartialEq, Default)]
pub(crate) struct Extra {
    pub(crate) settled: Settled,
    /// Limits that were closed, by index, and until when.
    pub(crate) closed: Vec<(usize, Timestamp)>,
    /// The last change of numbers. Refunds of charges before it cannot be computed.
    pub(crate) changed: Option<Changed>,
}

/// A change of numbers: permits with an earlier stamp give nothing back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) stamp: u64,
    /// When the entry was last written before, so that it is known when the last of those permits expires.
    pub(crate) at: Timestamp,
}

impl Changed {
    pub(super) fn is_over(self, now: Timestamp) -> bool {
        self.at + PERMIT_TTL <= now
    }
}

impl Extra {
    pub(super) fn is_empty(&self) -> bool {
        self.settled.is_empty() && self.closed.is_empty() && self.changed.is_none()
    }

    /// Returns until when the limit at `index` is closed, if it still is.
    pub(crate) fn closed_until(&self, index: usize, now: Timestamp) -> Option<Timestamp> {
        let is_closed = |(limit, until): &&(usize, Timestamp)| *limit == index && now < *until;
        self.closed.iter().find(is_closed).map(|(_, until)| *until)
    }

    pub(super) fn forget_expired(&mut self, now: Timestamp) {
        self.settled.forget_expired(now);
        self.closed.retain(|(_, until)| now < *until);
        self.changed = self.changed.filter(|changed| !changed.is_over(now));
    }
}
