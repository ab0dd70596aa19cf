//! Exponential backoff with jitter, as a pure function: `min(base · 2^attempt, max) · jitter`.
//!
//! The random number is passed in, so a test can try the least, the greatest and everything between. Jitter is applied
//! after the cap, so the longest delay is `max` times the upper jitter factor; [`Backoff::clamped`] keeps it at `max`.

use crate::time::Span;

/// A thousandth, the unit of jitter factors: 1,500 is a factor of 1.5.
pub const PER_MILLE: u64 = 1_000;

/// How long to wait before trying again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The delay before the first retry.
    pub base: Span,
    /// The cap on the delay, before jitter.
    pub max: Span,
    /// The least jitter factor, in thousandths.
    pub jitter_low: u64,
    /// The greatest jitter factor, in thousandths.
    pub jitter_high: u64,
    /// Whether the delay stays within `max` after jitter too.
    pub clamp: bool,
}

impl Backoff {
    /// 2 s, 4 s, 8 s and no longer, with up to a quarter on top against herds: waiting for a quota.
    pub const QUOTA: Self = Self {
        base: Span::from_secs(2),
        max: Span::from_secs(8),
        jitter_low: 1_000,
        jitter_high: 1_250,
        clamp: false,
    };

    /// From 1 s to 60 s, times 0.5 to 1.5: retrying a remote call.
    pub const CALL: Self = Self {
        base: Span::from_secs(1),
        max: Span::from_secs(60),
        jitter_low: 500,
        jitter_high: 1_500,
        clamp: false,
    };

    /// Caps the delay at `max`, jitter included.
    #[must_use]
    pub const fn clamped(mut self) -> Self {
        self.clamp = true;
        self
    }

    /// The delay after the failed attempt number `attempt`, counted from 0. `random` is uniform over all of `u32`.
    ///
    /// ```
    /// use tollgate_core::{Backoff, Span};
    ///
    /// let waits = [0, 1, 2, 3].map(|attempt| Backoff::QUOTA.delay(attempt, 0));
    /// assert_eq!(waits, [2, 4, 8, 8].map(Span::from_secs));
    /// ```
    #[must_use]
    pub fn delay(&self, attempt: u32, random: u32) -> Span {
        let doubled = u128::from(self.base.as_micros()) << attempt.min(64);
        let capped = doubled.min(u128::from(self.max.as_micros()));
        let width = u128::from(self.jitter_high.saturating_sub(self.jitter_low));
        // Jitter with 32 bits more precision than a thousandth.
        let jitter = (u128::from(self.jitter_low) << 32) + width * u128::from(random);
        let delay = (capped * jitter) >> 32;
        let delay =
            Span::from_micros(u64::try_from(delay / u128::from(PER_MILLE)).unwrap_or(u64::MAX));
        if self.clamp { delay.min(self.max) } else { delay }
    }
}
