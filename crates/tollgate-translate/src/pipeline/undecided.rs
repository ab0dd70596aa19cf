//! A gate that cannot decide, because its store is away: no chunk is claimed for a while, and then one asks alone.

use tollgate::{Backoff, Span, Timestamp, edge};

/// Pauses between asks. The gate itself probes its store, so an ask is cheap.
const BACKOFF: Backoff = Backoff {
    base: Span::from_secs(1),
    max: Span::from_secs(10),
    jitter_low: 500,
    jitter_high: 1_500,
    clamp: true,
};

/// How often the gate was asked in vain, in a row.
#[derive(Debug, Default)]
pub(super) struct Undecided {
    tries: u32,
    until: Timestamp,
}

impl Undecided {
    /// Notes that the gate did not decide, and returns when it is asked again. Asks that fail together count once.
    pub(super) fn add(&mut self, now: Timestamp) -> Timestamp {
        if self.until <= now {
            self.until = now + BACKOFF.delay(self.tries, edge::random());
            self.tries = self.tries.saturating_add(1);
        }
        self.until
    }

    /// Notes that the gate decided. A pause that lasts ends too, or the next ask in vain would begin none.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    /// Whether the last ask was in vain.
    pub(super) const fn is_on(&self) -> bool {
        self.tries != 0
    }

    /// When the gate is asked again, if that is to come.
    pub(super) fn until(&self, now: Timestamp) -> Option<Timestamp> {
        (self.is_on() && now < self.until).then_some(self.until)
    }
}
