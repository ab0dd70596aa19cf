//! The interface to a provider: one request, one answer, and errors that determine what to do next.
//!
//! A provider is one file that converts a [`Request`] to its wire format and back. It neither waits nor retries nor knows of quotas:
//! each attempt is one call, and the pipeline takes a permit for each.

pub mod anthropic;
mod api_key;
mod call;
pub mod gemini;
mod http;
pub mod openai;

use std::fmt::{self, Debug};

use async_trait::async_trait;
use tollgate::Timestamp;

pub use api_key::ApiKey;
pub use call::{ProviderClient, TIMEOUT_DEFAULT};
pub use http::{Endpoint, Http, Post, REPLY_BYTES_MAX, Reply, Transport};
pub use tollgate_providers::{ProviderError, ProviderErrorKind, QuotaViolation};

/// A request to a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The provider's name of the model.
    pub model: String,
    /// The instructions of the job.
    pub system: String,
    /// The segments to translate, with their context.
    pub prompt: String,
    /// The maximum length of the answer, thoughts included.
    pub max_output_tokens: u64,
}

/// The answer of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The text; incomplete unless [`finish`](Self::finish) is [`FinishReason::Stop`].
    pub text: String,
    /// Why the answer ended.
    pub finish: FinishReason,
    /// The tokens.
    pub usage: Usage,
}

/// Why an answer ended. Only [`FinishReason::Stop`] means success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The answer is complete.
    Stop,
    /// The answer reached its maximum length.
    MaxTokens,
    /// The provider blocked the answer for this reason.
    Blocked(String),
    /// Another reason.
    Other(String),
}

impl fmt::Display for FinishReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stop => f.write_str("the answer is complete"),
            Self::MaxTokens => f.write_str("the answer was cut off"),
            Self::Blocked(reason) => write!(f, "the provider blocked it ({reason})"),
            Self::Other(reason) => write!(f, "the answer ended for {reason}"),
        }
    }
}

/// The tokens of a call, as far as the provider reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the request, cached ones included.
    pub input: Option<u64>,
    /// Tokens of the answer.
    pub output: Option<u64>,
    /// Tokens of thoughts, which are charged as output but not included in it.
    pub thoughts: Option<u64>,
    /// Tokens of the request that the provider had cached.
    pub cached: Option<u64>,
}

impl Usage {
    /// Returns the tokens that are charged as output.
    #[must_use]
    pub fn paid_output(&self) -> u64 {
        self.output.unwrap_or(0).saturating_add(self.thoughts.unwrap_or(0))
    }
}

/// A provider of translations.
#[async_trait]
pub trait Provider: Debug + Send + Sync + 'static {
    /// Makes one call, without retries.
    async fn translate(&self, request: &Request) -> Result<Completion, ProviderError>;

    /// Asks the provider for the number of tokens of `request`.
    async fn count_tokens(&self, request: &Request) -> Result<u64, ProviderError>;

    /// Returns when the provider's current day ends, and its daily quota is reset.
    fn day_ends(&self, now: Timestamp) -> Timestamp;
}
