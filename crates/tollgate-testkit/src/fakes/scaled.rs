//! A clock on which time passes faster, so that ten seconds of a provider take one.

use std::sync::Arc;

use tollgate::gate::BoxFuture;
use tollgate::{Clock, Span, Timestamp};

/// Time from the start of this clock on, times a factor.
#[derive(Debug)]
pub struct ScaledClock {
    clock: Arc<dyn Clock>,
    began: (Timestamp, Span),
    factor: u64,
}

impl ScaledClock {
    /// `clock`, `factor` times as fast from now on; a factor of 0 counts as 1.
    pub fn new(clock: Arc<dyn Clock>, factor: u64) -> Self {
        Self { began: clock.both(), clock, factor: factor.max(1) }
    }
}

impl Clock for ScaledClock {
    fn now(&self) -> Timestamp {
        let passed = self.clock.now().since(self.began.0).as_micros();
        self.began.0 + Span::from_micros(passed.saturating_mul(self.factor))
    }

    fn monotonic(&self) -> Span {
        let passed = self.clock.monotonic().as_micros() - self.began.1.as_micros();
        Span::from_micros(passed.saturating_mul(self.factor))
    }

    fn sleep_until(&self, at: Timestamp) -> BoxFuture<'static, ()> {
        let ahead = at.since(self.began.0).as_micros().div_ceil(self.factor);
        self.clock.sleep_until(self.began.0 + Span::from_micros(ahead))
    }
}
