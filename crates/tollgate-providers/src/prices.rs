//! Prices of tokens: a dated table that users can override.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::dialect::Dialect;
use crate::error::Error;
use crate::usage::UsageFields;

const BUILT_IN: &str = include_str!("prices.json");

const MILLION: u64 = 1_000_000;

/// An amount of money in millionths of a dollar.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Micros(pub u64);

impl fmt::Display for Micros {
    /// Prints dollars and cents, rounded up; below a dollar, hundredths of a cent.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = if self.0 < MILLION { 100 } else { 10_000 };
        let rounded = self.0.div_ceil(digits) * digits;
        let fraction = rounded % MILLION / digits;
        if digits == 100 {
            write!(f, "${}.{fraction:04}", rounded / MILLION)
        } else {
            write!(f, "${}.{fraction:02}", rounded / MILLION)
        }
    }
}

/// The price of a million tokens of each kind, in millionths of a dollar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Of a million tokens sent.
    pub input: u64,
    /// Of a million tokens received, reasoning included.
    pub output: u64,
    /// Of a million tokens sent that the provider had cached; the price of input if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input: Option<u64>,
    /// Of a million tokens sent that the provider caches; the price of input if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<u64>,
}

/// The tokens of a call by price. The kinds do not overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PaidTokens {
    /// Sent, neither read from nor written to the provider's cache.
    pub input: u64,
    /// Sent, and read from the provider's cache.
    pub cached_input: u64,
    /// Sent, and written to the provider's cache.
    pub cache_write: u64,
    /// Received, reasoning included.
    pub output: u64,
}

impl PaidTokens {
    /// Returns the tokens that `usage` reports.
    #[must_use]
    pub fn from_usage(dialect: Dialect, usage: &UsageFields) -> Self {
        let get = |name: &str| usage.get(name).unwrap_or(0);
        match dialect {
            // Cached and written input is included in the input.
            Dialect::OpenAi => {
                let cached_input = get("prompt_tokens_details.cached_tokens")
                    .saturating_add(get("input_tokens_details.cached_tokens"));
                let cache_write = get("prompt_tokens_details.cache_write_tokens")
                    .saturating_add(get("input_tokens_details.cache_write_tokens"));
                let input = get("prompt_tokens").saturating_add(get("input_tokens"));
                Self {
                    input: input.saturating_sub(cached_input).saturating_sub(cache_write),
                    cached_input,
                    cache_write,
                    output: get("completion_tokens").saturating_add(get("output_tokens")),
                }
            }
            Dialect::Anthropic => Self {
                input: get("input_tokens"),
                cached_input: get("cache_read_input_tokens"),
                cache_write: get("cache_creation_input_tokens"),
                output: get("output_tokens"),
            },
            // Cached input is included in the input, and thoughts are not in the output.
            Dialect::Gemini => {
                let cached_input = get("cachedContentTokenCount");
                let input = get("promptTokenCount").saturating_add(get("toolUsePromptTokenCount"));
                Self {
                    input: input.saturating_sub(cached_input),
                    cached_input,
                    cache_write: 0,
                    output: get("candidatesTokenCount").saturating_add(get("thoughtsTokenCount")),
                }
            }
        }
    }
}

impl Price {
    /// Returns the price of `input` and `output` tokens, without a price for cached ones.
    #[must_use]
    pub const fn new(input: u64, output: u64) -> Self {
        Self { input, output, cached_input: None, cache_write: None }
    }

    /// Returns the cost of `tokens`, rounded up.
    #[must_use]
    pub fn cost(&self, tokens: PaidTokens) -> Micros {
        let products = [
            (tokens.input, self.input),
            (tokens.cached_input, self.cached_input.unwrap_or(self.input)),
            (tokens.cache_write, self.cache_write.unwrap_or(self.input)),
            (tokens.output, self.output),
        ];
        let products = products.map(|(tokens, price)| u128::from(tokens) * u128::from(price));
        let sum = products.into_iter().fold(0_u128, u128::saturating_add);
        Micros(u64::try_from(sum.div_ceil(u128::from(MILLION))).unwrap_or(u64::MAX))
    }
}

/// Prices by model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// When they were published.
    pub as_of: String,
    /// The price of each model.
    pub models: BTreeMap<String, Price>,
}

impl Prices {
    /// Returns the built-in prices.
    #[must_use]
    pub fn built_in() -> Self {
        let empty = Self { as_of: String::new(), models: BTreeMap::new() };
        serde_json::from_str(BUILT_IN).unwrap_or(empty)
    }

    /// Parses user-defined prices, of the form
    /// `{"as_of": "2026-11", "models": {"gemini-2.5-flash": {"input": 300000, "output": 2500000}}}`.
    ///
    /// # Errors
    /// [`ErrorKind::Setting`](crate::ErrorKind::Setting) for any other form.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        serde_json::from_str(text).map_err(|error| {
            Error::setting(format!(
                "prices: {error}; write {{\"as_of\": \"2026-11\", \"models\": {{\"name\": {{\"input\": 300000, \
                 \"output\": 2500000}}}}}}, in millionths of a dollar for a million tokens"
            ))
        })
    }

    /// Adds `models` and replaces the prices of those that are there.
    #[must_use]
    pub fn with_overrides(
        mut self,
        models: impl IntoIterator<Item = (impl Into<String>, Price)>,
    ) -> Self {
        self.models.extend(models.into_iter().map(|(name, price)| (name.into(), price)));
        self
    }

    /// Returns the price of `model`, or of the model that it is a version of.
    #[must_use]
    pub fn price_for(&self, model: &str) -> Option<Price> {
        // Its own name is the longest that can match.
        if let Some(price) = self.models.get(model) {
            return Some(*price);
        }
        let named = self.models.iter().filter(|(name, _)| {
            model
                .strip_prefix(name.as_str())
                .is_some_and(|rest| rest.is_empty() || is_version(rest))
        });
        named.max_by_key(|(name, _)| name.len()).map(|(_, price)| *price)
    }
}

/// Matches `-001`, `-preview`, `-preview-09-2025` and `-latest`, but not `-lite` or `-5`, which are other models.
fn is_version(rest: &str) -> bool {
    let is_date = |part: &str| 2 <= part.len() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts = rest.strip_prefix('-').map(|rest| rest.split('-'));
    parts.is_some_and(|mut parts| {
        parts.all(|part| part == "preview" || part == "latest" || is_date(part))
    })
}
