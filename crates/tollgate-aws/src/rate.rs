//! The rate of calls, and how it adapts to throttling.

use std::collections::BTreeMap;

use tollgate::{Limit, Policy, Span, TokenBucket};

use crate::error::Error;

/// A token bucket, and how it adapts when the service throttles.
///
/// ```
/// use tollgate::TokenBucket;
/// use tollgate_aws::Rate;
///
/// assert_eq!(Rate::default().bucket, TokenBucket::per_second(10).burst(20));
/// let calm = Rate::new(TokenBucket::per_minute(10)).fixed();
/// # let _ = calm;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The highest rate.
    pub bucket: TokenBucket,
    /// How the rate adapts; `None` for a fixed rate.
    pub adapt: Option<Adapt>,
}

/// Multiplicative decrease after throttling, additive increase after success, in percent of the configured rate and burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adapt {
    /// The lowest rate.
    pub floor: u8,
    /// Throttling multiplies the rate by this.
    pub keep: u8,
    /// Success adds this.
    pub raise: u8,
    /// At most one decrease and one increase in this time: calls that were in flight at a decrease carry no new information.
    pub interval: Span,
}

impl Default for Adapt {
    fn default() -> Self {
        Self { floor: 10, keep: 50, raise: 5, interval: Span::from_secs(1) }
    }
}

/// Ten calls per second with bursts of twenty, adaptive. AWS publishes no rates for DRS, so this is an assumption that
/// adapts to the service.
impl Default for Rate {
    fn default() -> Self {
        Self::new(TokenBucket::per_second(10).burst(20))
    }
}

impl Rate {
    /// Returns an adaptive rate.
    #[must_use]
    pub fn new(bucket: TokenBucket) -> Self {
        Self { bucket, adapt: Some(Adapt::default()) }
    }

    /// Makes the rate fixed.
    #[must_use]
    pub const fn fixed(mut self) -> Self {
        self.adapt = None;
        self
    }

    /// Returns the policy of each percent from the floor to 100, all under `name`.
    pub(crate) fn policies(&self, name: &str) -> Result<Vec<Policy>, Error> {
        let floor = match self.adapt {
            None => 100,
            Some(Adapt { floor, keep, .. }) if floor == 0 || 100 < floor || 99 < keep => {
                return Err(Error::Invalid(format!(
                    "a rate adapts down to a floor of 1 to 100 percent and keeps 0 to 99 percent of itself, not {floor} and {keep}"
                )));
            }
            Some(adapt) => adapt.floor,
        };
        let policy = |percent: u8| {
            let mut rule = self.bucket;
            if percent < 100 {
                let share = u64::from(percent);
                rule.capacity = (rule.capacity.saturating_mul(share) / 100).max(1);
                rule.refill = rule.refill.saturating_mul(share);
                rule.period = Span::from_micros(rule.period.as_micros().saturating_mul(100));
            }
            let limit = Limit::new(LIMIT, "requests", rule);
            Policy::new(name, [limit]).map_err(|error| Error::Invalid(error.to_string()))
        };
        (floor..=100).map(policy).collect()
    }
}

/// The name of the one limit of every policy here.
pub(crate) const LIMIT: &str = "rate";

/// The rates of a service. An operation with a rate of its own has a bucket of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// The rate of all operations together that have none of their own.
    pub shared: Rate,
    /// By operation, as in `StartRecovery`.
    pub own: BTreeMap<String, Rate>,
}

impl Rates {
    /// Returns rates where all operations share `shared`.
    #[must_use]
    pub const fn new(shared: Rate) -> Self {
        Self { shared, own: BTreeMap::new() }
    }

    /// Gives `operation` a rate and a bucket of its own.
    #[must_use]
    pub fn with(mut self, operation: impl Into<String>, rate: Rate) -> Self {
        self.own.insert(operation.into(), rate);
        self
    }
}
