//! What a provider's response headers say about its limits.

use http::HeaderMap;
use tollgate_core::{REQUESTS, Span, Timestamp};

use crate::dialect::Dialect;
use crate::retry_hint::duration;
use crate::usage::{INPUT_TOKENS, OUTPUT_TOKENS, TOKENS};

/// A limit as the provider's headers report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderStanding {
    /// The unit: `requests`, `tokens`, `input_tokens` or `output_tokens`.
    pub unit: &'static str,
    /// The limit.
    pub limit: Option<u64>,
    /// What remains of it now. Anthropic rounds tokens to thousands.
    pub remaining: Option<u64>,
    /// The time until the limit is whole again, not until one more request fits.
    pub resets_in: Option<Span>,
}

/// The headers of a limit: unit, limit, remaining, reset.
type Names = (&'static str, [&'static str; 3]);

const OPENAI: [Names; 2] = [
    (
        REQUESTS,
        [
            "x-ratelimit-limit-requests",
            "x-ratelimit-remaining-requests",
            "x-ratelimit-reset-requests",
        ],
    ),
    (
        TOKENS,
        ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"],
    ),
];

const ANTHROPIC: [Names; 4] = [
    (
        REQUESTS,
        [
            "anthropic-ratelimit-requests-limit",
            "anthropic-ratelimit-requests-remaining",
            "anthropic-ratelimit-requests-reset",
        ],
    ),
    (
        TOKENS,
        [
            "anthropic-ratelimit-tokens-limit",
            "anthropic-ratelimit-tokens-remaining",
            "anthropic-ratelimit-tokens-reset",
        ],
    ),
    (
        INPUT_TOKENS,
        [
            "anthropic-ratelimit-input-tokens-limit",
            "anthropic-ratelimit-input-tokens-remaining",
            "anthropic-ratelimit-input-tokens-reset",
        ],
    ),
    (
        OUTPUT_TOKENS,
        [
            "anthropic-ratelimit-output-tokens-limit",
            "anthropic-ratelimit-output-tokens-remaining",
            "anthropic-ratelimit-output-tokens-reset",
        ],
    ),
];

/// Reads `x-ratelimit-*` (OpenAI) or `anthropic-ratelimit-*`. Gemini sends none. A limit without any readable number is left out.
#[must_use]
pub fn header_standings(
    dialect: Dialect,
    headers: &HeaderMap,
    now: Timestamp,
) -> Vec<HeaderStanding> {
    let all: &[Names] = match dialect {
        Dialect::OpenAi => &OPENAI,
        Dialect::Anthropic => &ANTHROPIC,
        Dialect::Gemini => &[],
    };
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let standings = all.iter().map(|(unit, [limit, remaining, reset])| HeaderStanding {
        unit,
        limit: text(limit).and_then(|text| text.parse().ok()),
        remaining: text(remaining).and_then(|text| text.parse().ok()),
        resets_in: text(reset).and_then(|text| resets_in(text, now)),
    });
    standings.filter(|standing| standing.limit.is_some() || standing.remaining.is_some()).collect()
}

/// Parses a duration or an instant.
fn resets_in(text: &str, now: Timestamp) -> Option<Span> {
    duration(text).or_else(|| Some(text.parse::<Timestamp>().ok()?.since(now)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    const NOW: &str = "2026-11-18T04:00:00Z";

    fn standings(dialect: Dialect, pairs: &[(&str, &'static str)]) -> Vec<HeaderStanding> {
        let headers = pairs
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
        header_standings(dialect, &headers.collect(), NOW.parse().unwrap())
    }

    #[test]
    fn openai_reports_requests_and_tokens_with_durations() {
        let got = standings(
            Dialect::OpenAi,
            &[
                ("x-ratelimit-limit-requests", "60"),
                ("x-ratelimit-remaining-requests", "59"),
                ("x-ratelimit-reset-requests", "1s"),
                ("x-ratelimit-limit-tokens", "150000"),
                ("x-ratelimit-remaining-tokens", "149984"),
                ("x-ratelimit-reset-tokens", "6m0s"),
            ],
        );
        let wanted = [
            HeaderStanding {
                unit: "requests",
                limit: Some(60),
                remaining: Some(59),
                resets_in: Some(Span::from_secs(1)),
            },
            HeaderStanding {
                unit: "tokens",
                limit: Some(150_000),
                remaining: Some(149_984),
                resets_in: Some(Span::from_mins(6)),
            },
        ];
        assert_eq!(got, wanted);
    }

    #[test]
    fn anthropic_reports_four_limits_with_instants() {
        let got = standings(
            Dialect::Anthropic,
            &[
                ("anthropic-ratelimit-requests-limit", "50"),
                ("anthropic-ratelimit-requests-remaining", "0"),
                ("anthropic-ratelimit-requests-reset", "2026-11-18T04:00:12Z"),
                ("anthropic-ratelimit-output-tokens-remaining", "8000"),
                ("anthropic-ratelimit-output-tokens-reset", "2026-11-18T03:59:59Z"),
            ],
        );
        let numbers: Vec<_> =
            got.iter().map(|it| (it.unit, it.limit, it.remaining, it.resets_in)).collect();
        let wanted = [
            ("requests", Some(50), Some(0), Some(Span::from_secs(12))),
            ("output_tokens", None, Some(8_000), Some(Span::ZERO)),
        ];
        assert_eq!(numbers, wanted);
    }

    #[test]
    fn headers_that_are_absent_or_unreadable_say_nothing() {
        assert_eq!(standings(Dialect::Gemini, &[("x-ratelimit-limit-requests", "60")]), []);
        let wrong = [("x-ratelimit-limit-requests", "many"), ("x-ratelimit-reset-requests", "1s")];
        assert_eq!(standings(Dialect::OpenAi, &wrong), []);
        let partly = [("x-ratelimit-remaining-tokens", "-1"), ("x-ratelimit-limit-tokens", "5")];
        let got = standings(Dialect::OpenAi, &partly);
        assert_eq!((got[0].limit, got[0].remaining, got[0].resets_in), (Some(5), None, None));
    }
}
