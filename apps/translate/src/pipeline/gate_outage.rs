//! A gate that cannot decide, because its store is unavailable: no chunk is claimed for a while, and then one asks alone.

use tollgate::internal::edge;
use tollgate::retry::Backoff;
use tollgate::{Span, Timestamp};

/// The delays between asks. The gate itself probes its store, so an ask is cheap.
const BACKOFF: Backoff = Backoff { max: Span::from_secs(10), ..Backoff::CALL.clamped() };

/// Consecutive asks without a decision.
#[derive(Debug, Default)]
pub(super) struct GateOutage {
    tries: u32,
    until: Timestamp,
}

impl GateOutage {
    /// Records an ask without a decision, and returns when the gate is asked again. Asks that fail together count once.
    pub(super) fn add(&mut self, now: Timestamp) -> Timestamp {
        if self.until <= now {
            self.until = now + BACKOFF.delay(self.tries, edge::random());
            self.tries = self.tries.saturating_add(1);
        }
        self.until
    }

    /// Records a decision. Also ends a delay, or the next failed ask would not begin one.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    pub(super) const fn is_on(&self) -> bool {
        self.tries != 0
    }

    /// Returns when the gate is asked again, if that is in the future.
    pub(super) fn until(&self, now: Timestamp) -> Option<Timestamp> {
        (self.is_on() && now < self.until).then_some(self.until)
    }
}
