//! A budget for retries, shared by many calls.
//!
//! Why a budget and not only a maximum: when everything fails, a maximum of five retries turns every call into six, and
//! the other side never recovers. A budget lets retries be a share of the calls that are made.

use std::sync::atomic::{AtomicU64, Ordering};

/// The most that a budget allows, in percent of the calls: ten retries per call on average.
pub const PERCENT_MAX: u64 = 1_000;

/// Hundredths of a retry.
const RETRY: u64 = 100;

/// Every call pays in `percent` hundredths of a retry; every retry takes a whole one out.
#[derive(Debug)]
pub struct Budget {
    balance: AtomicU64,
    balance_max: u64,
    percent: u64,
}

impl Budget {
    /// Retries may be `percent` of the calls (at most [`PERCENT_MAX`]), with `reserve` retries to start with; no more
    /// than the reserve is ever saved up.
    #[must_use]
    pub fn new(percent: u64, reserve: u64) -> Self {
        let balance_max = reserve.saturating_mul(RETRY).max(RETRY);
        let balance = AtomicU64::new(reserve.saturating_mul(RETRY));
        Self { balance, balance_max, percent: percent.min(PERCENT_MAX) }
    }

    /// How many whole retries are left.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.balance.load(Ordering::Relaxed) / RETRY
    }

    pub(super) fn deposit(&self) {
        let paid_in =
            |balance: u64| Some(balance.saturating_add(self.percent).min(self.balance_max));
        // The closure never declines, so there is nothing to look at.
        let _ = self.balance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, paid_in);
    }

    pub(super) fn withdraw(&self) -> bool {
        let taken = |balance: u64| balance.checked_sub(RETRY);
        self.balance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }
}
