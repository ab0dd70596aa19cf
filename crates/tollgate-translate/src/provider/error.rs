//! Why a call gave no answer, sorted by what to do about it.

use std::error::Error as StdError;
use std::fmt;

use tollgate::Span;

/// A call that gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderError {
    /// What to do about it.
    pub kind: ProviderErrorKind,
    /// What the provider said, for people.
    pub text: String,
    /// How long the provider wants to be left alone. Means nothing for a daily quota.
    pub retry_after: Option<Span>,
    /// The limits that the provider says were broken.
    pub violations: Vec<QuotaViolation>,
}

/// What to do about a [`ProviderError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProviderErrorKind {
    /// Too many requests per minute: wait, with a new permit.
    MinuteQuota,
    /// Too many tokens per minute: wait, with a new permit.
    TokenQuota,
    /// The day is used up: wait for the provider's midnight.
    DailyQuota,
    /// Some quota, and the provider does not say which: back off.
    Quota,
    /// The model is not in the tier at all: waiting will not help.
    NotInTier,
    /// The provider is overloaded or broken for the moment.
    Overloaded,
    /// The provider could not be reached: the request surely never arrived.
    Unreachable,
    /// The request may have arrived, and no whole answer came in time.
    Unanswered,
    /// The provider answered something that cannot be read.
    Garbled,
    /// The model is gone, or never was.
    Gone,
    /// The key is missing, wrong, or not allowed this.
    Denied,
    /// The request is wrong.
    BadRequest,
    /// Something else answers at the provider's address: no request will succeed there.
    NotProvider,
}

impl ProviderErrorKind {
    /// Whether the provider refused for a quota.
    #[must_use]
    pub const fn is_quota(self) -> bool {
        matches!(self, Self::MinuteQuota | Self::TokenQuota | Self::DailyQuota | Self::Quota)
    }

    /// Whether the same request may succeed later.
    #[must_use]
    pub const fn is_passing(self) -> bool {
        self.is_quota()
            || matches!(
                self,
                Self::Overloaded | Self::Unreachable | Self::Unanswered | Self::Garbled
            )
    }
}

/// A limit that the provider says was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaViolation {
    /// The provider's name for the limit.
    pub quota_id: String,
    /// What it counts.
    pub metric: String,
    /// The limit, if the provider says.
    pub limit: Option<u64>,
}

impl ProviderError {
    /// An error of `kind`; `text` says what happened and what would help, if the reader can act.
    #[must_use]
    pub fn new(kind: ProviderErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), retry_after: None, violations: Vec::new() }
    }
}

impl fmt::Display for ProviderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl StdError for ProviderError {}
