//! The seam to whoever translates: one request, one answer, and errors that say what to do next.
//!
//! A provider is one file that turns a [`Request`] into its own wire format and back. It neither waits nor retries nor
//! knows of quotas: each attempt is one call, and the pipeline takes a permit for each.

mod call;
mod error;
pub mod gemini;
mod http;
mod key;
pub mod openai;
mod reply;

use std::fmt::{self, Debug};

use tollgate::{BoxFuture, Timestamp};

pub use call::TIMEOUT_DEFAULT;
pub use error::{ProviderError, ProviderErrorKind, QuotaViolation};
pub use http::{Endpoint, Http, Post, REPLY_BYTES_MAX, Reply, Transport};
pub use key::Key;

pub(crate) use http::tls_config;

/// What is asked of a provider: one prompt, one answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The model, by the provider's name.
    pub model: String,
    /// What holds for the whole job.
    pub system: String,
    /// What to translate, with its context.
    pub prompt: String,
    /// The most that the answer may be long, thoughts included.
    pub max_output_tokens: u64,
}

/// What a provider answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The text; a part of it, or nothing, unless it is finished by [`Finish::Stop`].
    pub text: String,
    /// Why the answer ended.
    pub finish: Finish,
    /// What it cost.
    pub usage: Usage,
}

/// Why an answer ended. Only [`Finish::Stop`] is success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The answer is whole.
    Stop,
    /// The answer was cut off by its bound.
    MaxTokens,
    /// The provider does not want to answer; the text is its reason.
    Blocked(String),
    /// Something else, by the provider's word for it.
    Other(String),
}

impl fmt::Display for Finish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stop => f.write_str("the answer is whole"),
            Self::MaxTokens => f.write_str("the answer was cut off"),
            Self::Blocked(reason) => write!(f, "the provider blocked it ({reason})"),
            Self::Other(reason) => write!(f, "the answer ended for {reason}"),
        }
    }
}

/// What an answer cost, as far as the provider says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the request, cached ones included.
    pub input: Option<u64>,
    /// Tokens of the answer.
    pub output: Option<u64>,
    /// Tokens of thoughts, which are paid as output and not part of it.
    pub thoughts: Option<u64>,
    /// Those tokens of the request that the provider had cached.
    pub cached: Option<u64>,
}

impl Usage {
    /// What is paid as output.
    #[must_use]
    pub fn paid_output(&self) -> u64 {
        self.output.unwrap_or(0).saturating_add(self.thoughts.unwrap_or(0))
    }
}

/// Whoever translates.
pub trait Provider: Debug + Send + Sync + 'static {
    /// Makes one call. Nothing is tried again.
    fn translate<'a>(
        &'a self,
        request: &'a Request,
    ) -> BoxFuture<'a, Result<Answer, ProviderError>>;

    /// How many tokens `request` is, by the provider's own count.
    fn count_tokens<'a>(
        &'a self,
        request: &'a Request,
    ) -> BoxFuture<'a, Result<u64, ProviderError>>;

    /// When the provider's day that `now` is in ends, and its daily quota begins anew.
    fn day_ends(&self, now: Timestamp) -> Timestamp;
}

/// When the day that `now` is in ends in `zone`; a day later if there is no such zone.
pub(crate) fn next_midnight(now: Timestamp, zone: &str) -> Timestamp {
    let ends = || {
        let zone = jiff::tz::TimeZone::get(zone).ok()?;
        let micros = i64::try_from(now.as_micros()).ok()?;
        let here = jiff::Timestamp::from_microsecond(micros).ok()?.to_zoned(zone);
        let midnight = here.tomorrow().ok()?.start_of_day().ok()?;
        u64::try_from(midnight.timestamp().as_microsecond()).ok().map(Timestamp::from_micros)
    };
    ends().unwrap_or(now + tollgate::Span::from_hours(24))
}

// A provider that could not be a trait object could not be chosen at run time.
const _: fn(&dyn Provider) = |_| {};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r003_4_a_daily_quota_ends_at_midnight_of_the_pacific_coast_with_daylight_saving() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let zone = "America/Los_Angeles";
        assert_eq!(next_midnight(at("2026-01-10T12:00:00Z"), zone), at("2026-01-11T08:00:00Z"));
        assert_eq!(next_midnight(at("2026-07-10T12:00:00Z"), zone), at("2026-07-11T07:00:00Z"));
        assert_eq!(next_midnight(at("2026-07-11T07:00:00Z"), zone), at("2026-07-12T07:00:00Z"));
        // The night on which the clock goes forward has 23 hours.
        assert_eq!(next_midnight(at("2026-03-08T08:00:00Z"), zone), at("2026-03-09T07:00:00Z"));
    }
}
