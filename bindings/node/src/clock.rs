//! A clock that tests move.

use napi_derive::napi;
use tollgate::Clock as _;
use tollgate_bindings::{ManualClock, Span};

use crate::convert::{Result, amount, milliseconds, timestamp};

/// A clock that only moves when it is told to.
#[napi]
pub struct NativeClock {
    pub(crate) clock: ManualClock,
}

#[napi]
impl NativeClock {
    /// Starts at `now_ms` since 1970.
    #[napi(constructor)]
    pub fn new(now_ms: f64) -> Result<Self> {
        Ok(Self { clock: ManualClock::at(timestamp("nowMs", now_ms)?) })
    }

    /// Returns the time.
    #[napi]
    pub fn now(&self) -> f64 {
        milliseconds(self.clock.now())
    }

    /// Sets the time, forwards or back, as a step of the machine's clock would.
    #[napi]
    pub fn set(&self, now_ms: f64) -> Result<()> {
        self.clock.set(timestamp("nowMs", now_ms)?);
        Ok(())
    }

    /// Lets `ms` milliseconds pass.
    #[napi]
    pub fn advance(&self, ms: f64) -> Result<()> {
        let micros = amount("ms", (ms * 1000.0).round())?;
        self.clock.advance(Span::from_micros(micros));
        Ok(())
    }
}
