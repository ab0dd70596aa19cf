//! Prices of tokens, a table that users can replace.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::prompt::Estimate;

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

/// The price of a million tokens in each direction, in millionths of a dollar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Of a million tokens sent.
    pub input: u64,
    /// Of a million tokens received.
    pub output: u64,
}

impl Price {
    /// Returns the cost of `tokens`, rounded up.
    #[must_use]
    pub fn cost(&self, tokens: Estimate) -> Micros {
        let product = |tokens: u64, price: u64| u128::from(tokens) * u128::from(price);
        let sum = product(tokens.input, self.input) + product(tokens.output, self.output);
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
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for any other form.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        serde_json::from_str(text).map_err(|error| {
            Error::invalid(format!(
                "prices: {error}; write {{\"as_of\": \"2026-11\", \"models\": {{\"name\": {{\"input\": 300000, \
                 \"output\": 2500000}}}}}}, in millionths of a dollar for a million tokens"
            ))
        })
    }

    /// Returns the price of `model`, or of the model that it is a version of.
    #[must_use]
    pub fn price_for(&self, model: &str) -> Option<Price> {
        let named = self.models.iter().filter(|(name, _)| {
            model
                .strip_prefix(name.as_str())
                .is_some_and(|rest| rest.is_empty() || is_version(rest))
        });
        named.max_by_key(|(name, _)| name.len()).map(|(_, price)| *price)
    }
}

/// Matches `-001`, `-preview`, `-preview-09-2025` and `-latest`, but not `-lite`, which is another model.
fn is_version(rest: &str) -> bool {
    let parts = rest.strip_prefix('-').map(|rest| rest.split('-'));
    parts.is_some_and(|mut parts| {
        parts.all(|part| {
            part == "preview" || part == "latest" || part.bytes().all(|byte| byte.is_ascii_digit())
        })
    })
}
