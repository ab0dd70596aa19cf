//! The dialects: the APIs that providers and compatible servers speak.

use std::fmt;
use std::str::FromStr;

use http::Method;
use tollgate_core::{Span, Timestamp};

use crate::call::Call;
use crate::error::Error;
use crate::usage::UsageMap;
use crate::{anthropic, gemini, openai};

/// The API of a provider, also spoken by compatible servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dialect {
    /// OpenAI: chat completions, responses, embeddings, models.
    OpenAi,
    /// Anthropic: messages, token counts, models.
    Anthropic,
    /// Gemini: generation, token counts, embeddings, models.
    Gemini,
}

/// The header that carries a provider's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHeader {
    /// The header's name, in lower case.
    pub name: &'static str,
    /// What precedes the key in the value, such as `Bearer `.
    pub prefix: &'static str,
}

impl Dialect {
    /// Every dialect.
    pub const ALL: [Self; 3] = [Self::OpenAi, Self::Anthropic, Self::Gemini];

    /// Returns the name, as in configuration and paths.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
        }
    }

    /// Returns the URL of the provider itself, without the version that begins every path.
    #[must_use]
    pub const fn url(self) -> &'static str {
        match self {
            Self::OpenAi => openai::URL,
            Self::Anthropic => anthropic::URL,
            Self::Gemini => gemini::URL,
        }
    }

    /// Returns the environment variables that conventionally hold the key, the preferred one first.
    #[must_use]
    pub const fn key_variables(self) -> &'static [&'static str] {
        match self {
            Self::OpenAi => &["OPENAI_API_KEY"],
            Self::Anthropic => &["ANTHROPIC_API_KEY"],
            Self::Gemini => &["GEMINI_API_KEY", "GOOGLE_API_KEY"],
        }
    }

    /// Returns the header that carries the provider's key.
    #[must_use]
    pub const fn key_header(self) -> KeyHeader {
        match self {
            Self::OpenAi => KeyHeader { name: "authorization", prefix: "Bearer " },
            Self::Anthropic => KeyHeader { name: "x-api-key", prefix: "" },
            Self::Gemini => KeyHeader { name: "x-goog-api-key", prefix: "" },
        }
    }

    /// Returns the header, with its value, that names the version of the API, if the path does not.
    #[must_use]
    pub const fn version_header(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Anthropic => Some(("anthropic-version", "2023-06-01")),
            Self::OpenAi | Self::Gemini => None,
        }
    }

    /// Returns which usage fields count into which unit by default: as the provider counts them against its limits.
    #[must_use]
    pub fn usage_map(self) -> UsageMap {
        match self {
            Self::OpenAi => openai::usage_map(),
            Self::Anthropic => anthropic::usage_map(),
            Self::Gemini => gemini::usage_map(),
        }
    }

    /// Returns when the provider's current day ends and its daily quotas are reset.
    #[must_use]
    pub fn day_ends(self, now: Timestamp) -> Timestamp {
        match self {
            Self::OpenAi | Self::Anthropic => next_midnight(now, "UTC"),
            Self::Gemini => next_midnight(now, gemini::ZONE),
        }
    }

    /// Classifies a call by its method, its path below the dialect's prefix (such as `/v1/chat/completions`) and its query.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for a call that is not covered; the text says what is.
    pub fn classify(self, method: &Method, path: &str, query: Option<&str>) -> Result<Call, Error> {
        match self {
            Self::OpenAi => openai::classify(method, path),
            Self::Anthropic => anthropic::classify(method, path),
            Self::Gemini => gemini::classify(method, path, query),
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Dialect {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|dialect| dialect.name() == text).ok_or_else(|| {
            Error::setting(format!(
                "unknown dialect {text:?}; use \"openai\", \"anthropic\" or \"gemini\""
            ))
        })
    }
}

/// Returns the next midnight in `zone`; a day from `now` if there is no such zone.
fn next_midnight(now: Timestamp, zone: &str) -> Timestamp {
    let ends = || {
        let zone = jiff::tz::TimeZone::get(zone).ok()?;
        let micros = i64::try_from(now.as_micros()).ok()?;
        let here = jiff::Timestamp::from_microsecond(micros).ok()?.to_zoned(zone);
        let midnight = here.tomorrow().ok()?.start_of_day().ok()?;
        u64::try_from(midnight.timestamp().as_microsecond()).ok().map(Timestamp::from_micros)
    };
    ends().unwrap_or(now + Span::from_hours(24))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_parses_back_and_an_unknown_one_lists_the_known() {
        for dialect in Dialect::ALL {
            assert_eq!(dialect.to_string().parse(), Ok(dialect));
        }
        let error = "azure".parse::<Dialect>().unwrap_err().to_string();
        assert_eq!(error, r#"unknown dialect "azure"; use "openai", "anthropic" or "gemini""#);
    }

    #[test]
    fn r003_4_a_daily_quota_of_gemini_ends_at_midnight_of_the_pacific_coast_with_daylight_saving() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let ends = |text: &str| Dialect::Gemini.day_ends(at(text));
        assert_eq!(ends("2026-01-10T12:00:00Z"), at("2026-01-11T08:00:00Z"));
        assert_eq!(ends("2026-07-10T12:00:00Z"), at("2026-07-11T07:00:00Z"));
        assert_eq!(ends("2026-07-11T07:00:00Z"), at("2026-07-12T07:00:00Z"));
        // The night on which the clock goes forward has 23 hours.
        assert_eq!(ends("2026-03-08T08:00:00Z"), at("2026-03-09T07:00:00Z"));
        assert_eq!(
            Dialect::OpenAi.day_ends(at("2026-07-10T12:00:00Z")),
            at("2026-07-11T00:00:00Z")
        );
    }
}
