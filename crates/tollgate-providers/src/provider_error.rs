//! Errors of calls, classified by the reaction to them.

use std::error::Error as StdError;
use std::fmt;

use tollgate_core::{REQUESTS, Span};

use crate::usage::{INPUT_TOKENS, OUTPUT_TOKENS, TOKENS};

/// A call without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderError {
    /// The class of the error.
    pub kind: ProviderErrorKind,
    /// The provider's message.
    pub text: String,
    /// The delay that the provider asks for. Meaningless for a daily quota.
    pub retry_after: Option<Span>,
    /// The limits that the provider reports as exceeded.
    pub violations: Vec<QuotaViolation>,
}

/// The class of a [`ProviderError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProviderErrorKind {
    /// Too many requests per minute: retry with a new permit.
    MinuteQuota,
    /// Too many tokens per minute: retry with a new permit.
    TokenQuota,
    /// The daily quota is exhausted: wait for the provider's midnight.
    DailyQuota,
    /// An unspecified quota: back off.
    Quota,
    /// The account has no money left: waiting does not help.
    InsufficientQuota,
    /// The request exceeds a limit by itself: waiting does not help, a smaller one would.
    TooLarge,
    /// The model is not in the tier: waiting does not help.
    NotInTier,
    /// The provider is overloaded or temporarily broken.
    Overloaded,
    /// The provider is unreachable: the request certainly never arrived.
    Unreachable,
    /// The request may have arrived, and no complete answer came in time.
    Unanswered,
    /// The provider's answer cannot be parsed.
    Garbled,
    /// The model does not exist.
    Gone,
    /// The key is missing, wrong, or not authorized.
    Denied,
    /// The request is invalid.
    BadRequest,
    /// The address belongs to another server: no request will succeed there.
    NotProvider,
}

impl ProviderErrorKind {
    /// Returns whether the provider refused because of a quota that time refills.
    #[must_use]
    pub const fn is_quota(self) -> bool {
        matches!(self, Self::MinuteQuota | Self::TokenQuota | Self::DailyQuota | Self::Quota)
    }

    /// Returns the units whose limit was exceeded, if the provider says so.
    #[must_use]
    pub const fn units(self) -> &'static [&'static str] {
        match self {
            Self::MinuteQuota | Self::DailyQuota => &[REQUESTS],
            Self::TokenQuota => &[TOKENS, INPUT_TOKENS, OUTPUT_TOKENS],
            _ => &[],
        }
    }

    /// Returns whether the same request may succeed later.
    #[must_use]
    pub const fn is_transient(self) -> bool {
        self.is_quota()
            || matches!(
                self,
                Self::Overloaded | Self::Unreachable | Self::Unanswered | Self::Garbled
            )
    }
}

/// A limit that the provider reports as exceeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaViolation {
    /// The provider's name for the limit.
    pub quota_id: String,
    /// The metric that it counts.
    pub metric: String,
    /// The limit, if the provider reports it.
    pub limit: Option<u64>,
}

impl ProviderError {
    /// Returns an error of `kind`; `text` says what happened, and what the reader can do.
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

/// Returns the class of an error by the words that providers use for types, codes and states, without a status.
pub(crate) fn kind_of_words(words: &[&str]) -> ProviderErrorKind {
    use ProviderErrorKind as Kind;
    let known = |word: &&str| match *word {
        "insufficient_quota" | "billing_error" | "billing_hard_limit_reached" => {
            Some(Kind::InsufficientQuota)
        }
        "tokens" => Some(Kind::TokenQuota),
        "requests" => Some(Kind::MinuteQuota),
        "authentication_error"
        | "permission_error"
        | "invalid_api_key"
        | "UNAUTHENTICATED"
        | "PERMISSION_DENIED" => Some(Kind::Denied),
        "not_found_error" | "model_not_found" | "NOT_FOUND" => Some(Kind::Gone),
        "request_too_large" | "context_length_exceeded" | "invalid_prompt" | "INVALID_ARGUMENT" => {
            Some(Kind::BadRequest)
        }
        _ => None,
    };
    let general = |word: &&str| match *word {
        "rate_limit_error" | "rate_limit_exceeded" | "RESOURCE_EXHAUSTED" => Some(Kind::Quota),
        "invalid_request_error" => Some(Kind::BadRequest),
        _ => None,
    };
    let kind = words.iter().find_map(known).or_else(|| words.iter().find_map(general));
    kind.unwrap_or(Kind::Overloaded)
}
