//! Rate-limit headers of each dialect.

use std::collections::BTreeMap;

use tollgate::{Span, Timestamp};

use super::request::Dialect;
use crate::fakes::quota::{Left, Limit};

/// Returns the headers of a response; Gemini has none.
pub(super) fn headers(
    dialect: Dialect,
    left: &BTreeMap<Limit, Left>,
    now: Timestamp,
) -> Vec<(String, String)> {
    let mut headers = Vec::new();
    for (limit, left) in left {
        let mut push = |name: String, value: String| headers.push((name, value));
        match dialect {
            Dialect::OpenAi => {
                let unit = match limit {
                    Limit::Requests => "requests",
                    Limit::Total => "tokens",
                    _ => continue,
                };
                push(format!("x-ratelimit-limit-{unit}"), left.limit.to_string());
                push(format!("x-ratelimit-remaining-{unit}"), left.remaining.to_string());
                push(format!("x-ratelimit-reset-{unit}"), duration(left.resets_in));
            }
            Dialect::Anthropic => {
                let unit = match limit {
                    Limit::Requests => "requests",
                    Limit::Tokens => "input-tokens",
                    Limit::Output => "output-tokens",
                    Limit::Total => "tokens",
                    _ => continue,
                };
                push(format!("anthropic-ratelimit-{unit}-limit"), left.limit.to_string());
                push(format!("anthropic-ratelimit-{unit}-remaining"), left.remaining.to_string());
                // Full seconds, up, as the provider rounds.
                let reset = (now + left.resets_in).as_micros().div_ceil(1_000_000);
                push(
                    format!("anthropic-ratelimit-{unit}-reset"),
                    Timestamp::from_secs(reset).to_string(),
                );
            }
            Dialect::Gemini => {}
        }
    }
    headers
}

/// Returns the headers that say when to retry.
pub(super) fn retry(dialect: Dialect, after: Span) -> Vec<(String, String)> {
    let seconds = ("retry-after".to_owned(), after.as_secs_ceil().to_string());
    match dialect {
        Dialect::OpenAi => {
            vec![("retry-after-ms".to_owned(), after.as_millis_ceil().to_string()), seconds]
        }
        Dialect::Anthropic => vec![seconds],
        Dialect::Gemini => Vec::new(),
    }
}

/// Formats as Go does: `6m0s`, `1.5s`, `120ms`.
fn duration(span: Span) -> String {
    let millis = span.as_millis_ceil();
    if millis < 1_000 {
        return format!("{millis}ms");
    }
    let (minutes, rest) = (millis / 60_000, millis % 60_000);
    let seconds = match (rest / 1_000, rest % 1_000) {
        (seconds, 0) => format!("{seconds}s"),
        (seconds, millis) => format!("{}s", format!("{seconds}.{millis:03}").trim_end_matches('0')),
    };
    if minutes == 0 { seconds } else { format!("{minutes}m{seconds}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_go() {
        for (millis, text) in
            [(12, "12ms"), (1_500, "1.5s"), (60_000, "1m0s"), (61_050, "1m1.05s"), (0, "0ms")]
        {
            assert_eq!(duration(Span::from_millis(millis)), text);
        }
    }
}
