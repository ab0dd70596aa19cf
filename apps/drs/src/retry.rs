//! The retries of calls.

use std::collections::BTreeSet;
use std::sync::Arc;

use tollgate::Span;
use tollgate::retry::{Backoff, Budget, ErrorClass, Retry};

use crate::failure::{CONNECTION_LOST, Failure, TIMED_OUT};

/// The codes that are retried, with lost responses.
pub const RETRYABLE_ERRORS: [&str; 7] = [
    "ThrottlingException",
    "RequestLimitExceeded",
    "ServiceUnavailable",
    "InternalServerException",
    "ServiceQuotaExceededException",
    TIMED_OUT,
    CONNECTION_LOST,
];

/// How often and how long a call is retried. The SDK's own retries are off, so that there is one layer.
///
/// ```
/// use tollgate_drs::RetryOptions;
///
/// let twice = RetryOptions { max_retries: 1, ..RetryOptions::default() };
/// assert!(twice.retryable_errors.contains("ThrottlingException"));
/// ```
#[derive(Clone, Debug)]
pub struct RetryOptions {
    /// The most retries: at most `max_retries + 1` attempts are made (5).
    pub max_retries: u32,
    /// The delay before the first retry; it doubles with each (1 s).
    pub base_delay: Span,
    /// The cap on the delay before jitter (60 s).
    pub max_delay: Span,
    /// The least and the greatest factor on the delay, in thousandths (500 and 1,500).
    pub jitter_range: (u64, u64),
    /// Whether the delay stays within `max_delay` after jitter too (no).
    pub clamp: bool,
    /// The deadline of all attempts and delays of one call: no delay begins that would end later (no bound).
    pub deadline: Option<Span>,
    /// The budget of retries of all calls (no bound).
    pub budget: Option<Arc<Budget>>,
    /// The codes that are retried ([`RETRYABLE_ERRORS`]); a quota only if it has room again when jobs end.
    pub retryable_errors: BTreeSet<String>,
}

impl Default for RetryOptions {
    fn default() -> Self {
        let Backoff { base, max, jitter_low, jitter_high, clamp } = Backoff::CALL;
        Self {
            max_retries: 5,
            base_delay: base,
            max_delay: max,
            jitter_range: (jitter_low, jitter_high),
            clamp,
            deadline: None,
            budget: None,
            retryable_errors: RETRYABLE_ERRORS.map(str::to_owned).into(),
        }
    }
}

impl RetryOptions {
    /// Returns the delays.
    #[must_use]
    pub const fn backoff(&self) -> Backoff {
        let (jitter_low, jitter_high) = self.jitter_range;
        Backoff {
            base: self.base_delay,
            max: self.max_delay,
            jitter_low,
            jitter_high,
            clamp: self.clamp,
        }
    }

    pub(crate) fn retry(&self) -> Retry {
        Retry {
            max_retries: self.max_retries,
            backoff: self.backoff(),
            deadline: self.deadline,
            budget: self.budget.clone(),
        }
    }

    /// Returns whether `failure` is retried. `Retry-After` is the minimum delay.
    #[must_use]
    pub fn classify(&self, failure: &Failure) -> ErrorClass {
        let is_listed = self.retryable_errors.contains(&failure.code);
        let frees_itself = !failure.is_quota() || failure.is_full();
        match failure.retry_after {
            _ if !is_listed || !frees_itself => ErrorClass::Fatal,
            Some(wait) => ErrorClass::RetryableAfter(wait),
            None => ErrorClass::Retryable,
        }
    }
}
