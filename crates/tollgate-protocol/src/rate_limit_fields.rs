//! The fields `RateLimit` and `RateLimit-Policy` of draft-ietf-httpapi-ratelimit-headers, revision 11.
//!
//! Each is a list in the syntax of structured fields (RFC 9651) with one member per limit, in the order of the policy. A
//! unit other than requests has no registered name, so it goes into the parameter `tollgate-unit`. Written by hand into
//! one buffer, because every decision carries both (`bench serve`).

use tollgate::core::REQUESTS;
use tollgate::policy::Rule;
use tollgate::{Denial, Policy, Standing, Timestamp};

use crate::json::window_secs;

/// The largest integer of a structured field, of fifteen digits.
const INTEGER_MAX: u64 = 999_999_999_999_999;

/// The usual length of a member.
const MEMBER_BYTES: usize = 32;

/// A field value under construction.
struct Text(Vec<u8>);

impl Text {
    fn raw(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
    }

    fn integer(&mut self, before: &str, number: u64) {
        self.raw(before);
        self.raw(itoa::Buffer::new().format(number.min(INTEGER_MAX)));
    }

    /// Escapes the name: one from another broker may contain any character.
    fn string(&mut self, before: &str, name: &str) {
        self.raw(before);
        self.raw("\"");
        for byte in name.bytes() {
            match byte {
                b'"' | b'\\' => self.0.extend([b'\\', byte]),
                b' '..=b'~' => self.0.push(byte),
                _ => self.0.push(b'?'),
            }
        }
        self.raw("\"");
    }
}

/// Returns `RateLimit`: what remains, and in how many seconds that grows; an estimate for slots that `denial` waits for.
#[must_use]
pub fn rate_limit(standings: &[Standing], now: Timestamp, denial: Option<&Denial>) -> Vec<u8> {
    let denial = denial.filter(|denial| denial.is_estimated());
    value(standings.iter(), |standing, text| {
        text.string("", &standing.name);
        text.integer(";r=", standing.remaining);
        let estimated = denial.filter(|denial| denial.limit == standing.name);
        if let Some(at) = estimated.map_or(standing.reset_at, Denial::reset_at) {
            text.integer(";t=", at.since(now).as_secs_ceil());
        }
    })
}

/// Returns `RateLimit-Policy`: how much in how many seconds, as configured.
#[must_use]
pub fn rate_limit_policy(policy: &Policy) -> Vec<u8> {
    value(policy.limits(), |limit, text| {
        let rule = limit.rule();
        text.string("", limit.name());
        text.integer(";q=", rule.limit());
        if let Some(secs) = window_secs(rule) {
            text.integer(";w=", secs);
        }
        match (rule, limit.unit()) {
            (Rule::Concurrency(_), REQUESTS) => text.string(";qu=", "concurrent-requests"),
            (_, REQUESTS) => {}
            (_, unit) => text.string(";tollgate-unit=", unit),
        }
    })
}

/// Returns a list of `members`, each written by `write`.
fn value<T>(members: impl Iterator<Item = T>, write: impl Fn(T, &mut Text)) -> Vec<u8> {
    let mut text = Text(Vec::with_capacity(MEMBER_BYTES * members.size_hint().0));
    for member in members {
        if !text.0.is_empty() {
            text.raw(", ");
        }
        write(member, &mut text);
    }
    text.0
}

#[cfg(test)]
mod tests {
    use super::Text;

    /// A broker behind this one cannot add members or headers by the name of a limit.
    #[test]
    fn a_foreign_name_cannot_leave_its_quotes() {
        let mut text = Text(Vec::new());
        text.string("", "a\";r=9, \\b\r\nc: d\u{e9}");
        assert_eq!(text.0, br#""a\";r=9, \\b??c: d??""#);
    }
}
