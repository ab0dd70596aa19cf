//! Token bucket: a capacity that refills at a steady rate.
//!
//! The state is one number, what is *used*, as of the entry's time; refilling lowers it. A continuous bucket counts in
//! fine units of 1/period token (the rate reduced to lowest terms), so each microsecond refills a whole number of
//! them: nothing is ever rounded, and 7 per minute or 999,983 per second are exact for ever. An interval bucket counts
//! whole tokens and gets its whole refill at each boundary, a multiple of the period since the epoch.

use crate::bounds::{FINE_CAPACITY_MAX, NUMBER_MAX};
use crate::error::Error;
use crate::policy::Derived;
use crate::rule::Lows;
use crate::time::{Span, Timestamp};

/// How a bucket gets its tokens back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Refill {
    /// In proportion to the time that passed.
    #[default]
    Continuous,
    /// The whole amount at each boundary of the period, aligned to the epoch (a period of a minute refills on the
    /// minute), and once only.
    Interval,
}

/// The rule `token-bucket`: at most `capacity` at once, `refill` tokens back per `period`.
///
/// ```
/// use tollgate_core::TokenBucket;
///
/// let api = TokenBucket::per_second(10).burst(20);
/// assert_eq!(api.capacity, 20);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    /// The most tokens the bucket holds.
    pub capacity: u64,
    /// How many tokens come back in each period.
    pub refill: u64,
    /// The time in which `refill` tokens come back.
    pub period: Span,
    /// Whether they come back continuously or all at the boundary.
    pub mode: Refill,
}

impl TokenBucket {
    /// A bucket of `refill` tokens that refills `refill` tokens per `period`, continuously.
    #[must_use]
    pub fn per(refill: u64, period: impl Into<Span>) -> Self {
        Self::with_period(refill, period.into())
    }

    const fn with_period(refill: u64, period: Span) -> Self {
        Self { capacity: refill, refill, period, mode: Refill::Continuous }
    }

    /// `refill` tokens per second, with a capacity of one second's refill.
    #[must_use]
    pub const fn per_second(refill: u64) -> Self {
        Self::with_period(refill, Span::from_secs(1))
    }

    /// `refill` tokens per minute, with a capacity of one minute's refill.
    #[must_use]
    pub const fn per_minute(refill: u64) -> Self {
        Self::with_period(refill, Span::from_mins(1))
    }

    /// The same rate with another capacity.
    #[must_use]
    pub const fn burst(mut self, capacity: u64) -> Self {
        self.capacity = capacity;
        self
    }

    /// The same numbers, refilled whole at each boundary of the period.
    #[must_use]
    pub const fn at_boundaries(mut self) -> Self {
        self.mode = Refill::Interval;
        self
    }
}

/// A continuous bucket, ready to decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Continuous {
    /// Effective capacity in fine units.
    capacity: u64,
    /// Fine units that make one token: the period of the reduced rate.
    token: u64,
    /// Fine units that come back per microsecond: the amount of the reduced rate.
    rate: u64,
    /// Effective capacity in tokens.
    most: u64,
}

impl Continuous {
    /// `reserve` tokens and what flows in during `ahead` are taken off the capacity.
    pub(crate) fn new(rule: &TokenBucket, reserve: u64, ahead: Span) -> Result<Self, Error> {
        let divisor = greatest_common_divisor(rule.refill, rule.period.as_micros());
        let rate = rule.refill / divisor;
        let token = rule.period.as_micros() / divisor;
        let configured = u128::from(rule.capacity) * u128::from(token);
        if configured > u128::from(FINE_CAPACITY_MAX) {
            return Err(Error::invalid(format!(
                "capacity {} at {} per {} is finer than every store can hold exactly: capacity × {token} (the period in µs, \
                 reduced) must be at most 2^52; use a smaller capacity, a rounder rate or a calendar-window",
                rule.capacity, rule.refill, rule.period
            )));
        }
        let inflow = (u128::from(rate) * u128::from(ahead.as_micros())).div_ceil(u128::from(token));
        let kept =
            u128::from(rule.capacity).saturating_sub(u128::from(reserve)).saturating_sub(inflow);
        let most = u64::try_from(kept).unwrap_or(0);
        Ok(Self { capacity: most * token, token, rate, most })
    }

    pub(crate) const fn most(&self) -> u64 {
        self.most
    }

    pub(crate) const fn derived(&self) -> Derived {
        Derived::Continuous { capacity: self.capacity, token: self.token, rate: self.rate }
    }

    /// Returns the usage at `now`, in fine units, given the usage at `since`.
    #[inline]
    pub(crate) const fn level(&self, used: u64, since: Timestamp, now: Timestamp) -> u64 {
        used.saturating_sub(self.rate.saturating_mul(now.since(since).as_micros()))
    }

    #[inline]
    pub(crate) fn ready_at(&self, level: u64, now: Timestamp, cost: u64) -> Timestamp {
        let wanted = level.saturating_add(cost.saturating_mul(self.token));
        if wanted <= self.capacity {
            return now;
        }
        now + Span::from_micros((wanted - self.capacity).div_ceil(self.rate))
    }

    #[inline]
    pub(crate) fn add(&self, level: u64, cost: u64) -> u64 {
        level.saturating_add(cost.saturating_mul(self.token)).min(NUMBER_MAX)
    }

    /// Gives back `amount` of the charge `stamp` to a bucket at `level`: what time has not given back already.
    pub(crate) fn give_back(
        &self,
        level: &mut u64,
        lows: &mut Option<Box<Lows>>,
        amount: u64,
        stamp: u64,
    ) {
        // Without a record the bucket was empty since the charge, or the charge asked for none.
        let Some(lows) = lows.as_mut().filter(|lows| !lows.is_empty()) else { return };
        let lowest = lows.lowest_after(stamp).unwrap_or(*level).min(*level);
        let credit = amount.saturating_mul(self.token).min(lowest);
        *level -= credit;
        lows.lower_after(stamp, credit);
    }

    /// The level after giving back what time has not refilled of `amount` that was held for `held`. It is no more than
    /// [`give_back`](Self::give_back) gives back, and needs no record.
    pub(crate) const fn give_back_unrefilled(&self, level: u64, amount: u64, held: Span) -> u64 {
        let refilled = self.rate.saturating_mul(held.as_micros());
        level.saturating_sub(amount.saturating_mul(self.token).saturating_sub(refilled))
    }

    pub(crate) const fn refills_like(&self, other: &Self) -> bool {
        self.rate == other.rate && self.token == other.token
    }

    pub(crate) const fn tokens_ceil(&self, level: u64) -> u64 {
        level.div_ceil(self.token)
    }

    /// The same amount of tokens in the fine units of `other`, rounded up to the strict side.
    pub(crate) fn convert(&self, level: u64, other: &Self) -> u64 {
        rescale(level, self.token, other.token)
    }

    /// The level of `other` that refills in the same time, rounded up to the strict side.
    pub(crate) fn convert_time(&self, level: u64, other: &Self) -> u64 {
        rescale(level, self.rate, other.rate)
    }
}

/// An interval bucket, ready to decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interval {
    capacity: u64,
    refill: u64,
    period: u64,
}

impl Interval {
    pub(crate) const fn new(rule: &TokenBucket, reserve: u64) -> Self {
        let capacity = rule.capacity.saturating_sub(reserve);
        Self { capacity, refill: rule.refill, period: rule.period.as_micros() }
    }

    pub(crate) const fn most(&self) -> u64 {
        self.capacity
    }

    pub(crate) const fn derived(&self) -> Derived {
        let period = Span::from_micros(self.period);
        Derived::Interval { capacity: self.capacity, refill: self.refill, period }
    }

    const fn boundary(&self, at: Timestamp) -> u64 {
        at.as_micros() / self.period
    }

    /// The last boundary at or before `at`: when the bucket was last refilled.
    pub(crate) const fn refilled_at(&self, at: Timestamp) -> Timestamp {
        Timestamp::from_micros(self.boundary(at) * self.period)
    }

    pub(crate) const fn level(&self, used: u64, since: Timestamp, now: Timestamp) -> u64 {
        let crossed = self.boundary(now).saturating_sub(self.boundary(since));
        used.saturating_sub(self.refill.saturating_mul(crossed))
    }

    pub(crate) fn ready_at(&self, level: u64, now: Timestamp, cost: u64) -> Timestamp {
        let wanted = level.saturating_add(cost);
        if wanted <= self.capacity {
            return now;
        }
        let boundaries = (wanted - self.capacity).div_ceil(self.refill);
        let boundary = self.boundary(now).saturating_add(boundaries);
        Timestamp::from_micros(boundary.saturating_mul(self.period))
    }

    pub(crate) const fn has_boundaries_of(&self, other: &Self) -> bool {
        self.period == other.period
    }

    /// The first boundary after `now`.
    pub(crate) fn next_boundary(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_micros((self.boundary(now) + 1).saturating_mul(self.period))
    }

    /// Gives back `amount`, unless a boundary has passed, which refilled it.
    pub(crate) const fn give_back(
        &self,
        level: u64,
        amount: u64,
        charged_at: Timestamp,
        now: Timestamp,
    ) -> u64 {
        if self.boundary(charged_at) == self.boundary(now) {
            level.saturating_sub(amount)
        } else {
            level
        }
    }
}

/// `level` × `to` ÷ `from`, rounded up.
fn rescale(level: u64, from: u64, to: u64) -> u64 {
    let level = (u128::from(level) * u128::from(to)).div_ceil(u128::from(from));
    u64::try_from(level).unwrap_or(NUMBER_MAX).min(NUMBER_MAX)
}

const fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
