//! The header fields `RateLimit` and `RateLimit-Policy`.
//!
//! They are those of draft-ietf-httpapi-ratelimit-headers, revision 11, in the syntax of structured fields (RFC 9651): a
//! list with one member for each limit, in the order of the policy. A unit other than requests has no registered name,
//! so it goes into a parameter of our own.

use std::fmt::{self, Write as _};

use axum::http::HeaderValue;
use tollgate::core::REQUESTS;
use tollgate::{Policy, Rule, Standing, Timestamp};

use crate::wire::window_secs;

/// The largest integer of a structured field: fifteen digits.
const INTEGER_MAX: u64 = 999_999_999_999_999;

/// What a member takes mostly.
const MEMBER_BYTES: usize = 32;

/// `RateLimit`: what remains, and in how many seconds it grows.
pub(crate) fn rate_limit(standings: &[Standing], now: Timestamp) -> Option<HeaderValue> {
    value(standings.iter(), |standing, text| {
        write!(text, "\"{}\";r={}", standing.name, standing.remaining.min(INTEGER_MAX))?;
        standing.reset_at.map_or(Ok(()), |at| write!(text, ";t={}", at.since(now).as_secs_ceil()))
    })
}

/// `RateLimit-Policy`: how much in how many seconds, as configured.
pub(crate) fn rate_limit_policy(policy: &Policy) -> Option<HeaderValue> {
    value(policy.limits(), |limit, text| {
        let rule = limit.rule();
        write!(text, "\"{}\";q={}", limit.name(), rule.limit().min(INTEGER_MAX))?;
        if let Some(secs) = window_secs(rule) {
            write!(text, ";w={}", secs.min(INTEGER_MAX))?;
        }
        match (rule, limit.unit()) {
            (Rule::Concurrency(_), REQUESTS) => text.write_str(";qu=\"concurrent-requests\""),
            (_, REQUESTS) => Ok(()),
            (_, unit) => write!(text, ";tollgate-unit=\"{unit}\""),
        }
    })
}

/// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, which have room for one limit. The last is in how many seconds.
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

/// The place of the limit with the least left.
pub(crate) fn tightest(standings: &[Standing]) -> usize {
    let places = standings.iter().enumerate();
    places.min_by_key(|(_, standing)| standing.remaining).map_or(0, |(place, _)| place)
}

/// A list with what `write` makes of each of `members`. Names have neither quotes nor backslashes, so they need no escape.
fn value<T>(
    members: impl Iterator<Item = T>,
    write: impl Fn(T, &mut String) -> fmt::Result,
) -> Option<HeaderValue> {
    let mut text = String::with_capacity(MEMBER_BYTES * members.size_hint().0);
    for member in members {
        if !text.is_empty() {
            text.push_str(", ");
        }
        write(member, &mut text).ok()?;
    }
    HeaderValue::try_from(text).ok()
}
