//! How fast calls may go out, and how that follows what the service says.

use std::collections::BTreeMap;

use tollgate::{Limit, Policy, Span, TokenBucket};

use crate::error::Error;

/// A token bucket, and whether it gives way when the service throttles.
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
    /// The fastest it may be.
    pub bucket: TokenBucket,
    /// How it gives way; nothing for a rate that stays as it is.
    pub adapt: Option<Adapt>,
}

/// Less after a refusal, more again after success: in percent of the configured rate and burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adapt {
    /// Never below this.
    pub floor: u8,
    /// A refusal keeps this part of what it was.
    pub keep: u8,
    /// Success adds this much.
    pub raise: u8,
    /// At most one step down and one step up in this time: calls that were under way when the rate fell say nothing new.
    pub interval: Span,
}

impl Default for Adapt {
    fn default() -> Self {
        Self { floor: 10, keep: 50, raise: 5, interval: Span::from_secs(1) }
    }
}

/// Ten calls per second with bursts of twenty, giving way. AWS publishes no rates for DRS: this is an assumption that
/// the service corrects.
impl Default for Rate {
    fn default() -> Self {
        Self::new(TokenBucket::per_second(10).burst(20))
    }
}

impl Rate {
    /// `bucket`, giving way.
    #[must_use]
    pub fn new(bucket: TokenBucket) -> Self {
        Self { bucket, adapt: Some(Adapt::default()) }
    }

    /// The same, whatever the service says.
    #[must_use]
    pub const fn fixed(mut self) -> Self {
        self.adapt = None;
        self
    }

    /// The policies of each percent from the floor to 100, in order, all under one name.
    pub(crate) fn policies(&self, name: &str) -> Result<Vec<Policy>, Error> {
        let floor = match self.adapt {
            None => 100,
            Some(Adapt { floor, keep, .. }) if floor == 0 || 100 < floor || 99 < keep => {
                return Err(Error::Invalid(format!(
                    "a rate gives way to a floor of 1 to 100 percent and keeps 0 to 99 percent at a refusal, not {floor} and {keep}"
                )));
            }
            Some(adapt) => adapt.floor,
        };
        let of = |percent: u8| {
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
        (floor..=100).map(of).collect()
    }
}

/// The name of the one limit of every policy here.
pub(crate) const LIMIT: &str = "rate";

/// The rate of a service, and those of single operations. An operation with a rate of its own has a bucket of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// For all operations together that have none of their own.
    pub shared: Rate,
    /// By operation, as in `StartRecovery`.
    pub own: BTreeMap<String, Rate>,
}

impl Rates {
    /// `shared` for every operation.
    #[must_use]
    pub const fn new(shared: Rate) -> Self {
        Self { shared, own: BTreeMap::new() }
    }

    /// The same, with a bucket of its own for `operation`.
    #[must_use]
    pub fn with(mut self, operation: impl Into<String>, rate: Rate) -> Self {
        self.own.insert(operation.into(), rate);
        self
    }
}
