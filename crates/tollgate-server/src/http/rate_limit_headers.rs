//! The headers of a decision, as values of axum.

use axum::http::HeaderValue;
use tollgate::{Denial, Policy, Standing, Timestamp};
use tollgate_protocol::rate_limit_fields;

/// Returns `RateLimit`.
pub(crate) fn rate_limit(
    standings: &[Standing],
    now: Timestamp,
    denial: Option<&Denial>,
) -> Option<HeaderValue> {
    HeaderValue::try_from(rate_limit_fields::rate_limit(standings, now, denial)).ok()
}

/// Returns `RateLimit-Policy`.
pub(crate) fn rate_limit_policy(policy: &Policy) -> Option<HeaderValue> {
    HeaderValue::try_from(rate_limit_fields::rate_limit_policy(policy)).ok()
}

/// Returns `X-RateLimit-Limit`, `-Remaining` and `-Reset` (in seconds) of one limit.
pub(crate) fn legacy(
    standing: &Standing,
    reset_secs: Option<u64>,
) -> impl Iterator<Item = (&'static str, u64)> {
    let (limit, remaining) = (Some(standing.limit), Some(standing.remaining));
    let fields = [
        ("x-ratelimit-limit", limit),
        ("x-ratelimit-remaining", remaining),
        ("x-ratelimit-reset", reset_secs),
    ];
    fields.into_iter().filter_map(|(name, value)| value.map(|value| (name, value)))
}

/// Returns the index of the limit with the least left.
pub(crate) fn tightest(standings: &[Standing]) -> usize {
    let indexed = standings.iter().enumerate();
    indexed.min_by_key(|(_, standing)| standing.remaining).map_or(0, |(index, _)| index)
}
