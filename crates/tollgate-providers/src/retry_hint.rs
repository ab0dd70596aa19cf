//! Delays that providers ask for: headers, details of errors, words in messages.

use http::HeaderMap;
use http::header::RETRY_AFTER;
use tollgate_core::{Span, Timestamp};

const MICROS_PER_SEC: u64 = 1_000_000;

/// Returns the delay in `retry-after-ms`, or in `retry-after` as seconds or as a date. A delay that is not positive says nothing.
pub(crate) fn header_delay(headers: &HeaderMap, now: Timestamp) -> Option<Span> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let millis = text("retry-after-ms").and_then(|text| decimal(text.trim(), 1_000));
    let delay = millis.or_else(|| {
        let text = text(RETRY_AFTER.as_str())?;
        seconds(text).or_else(|| Some(http_date(text)?.since(now)))
    });
    delay.filter(|delay| !delay.is_zero())
}

fn http_date(text: &str) -> Option<Timestamp> {
    let parser = jiff::fmt::rfc2822::DateTimeParser::new();
    let instant = parser.parse_timestamp(text.trim()).ok()?;
    u64::try_from(instant.as_microsecond()).ok().map(Timestamp::from_micros)
}

/// Returns the delay in a message: "retry in 38.2s", "try again in 6m0s".
pub(crate) fn message_delay(message: &str) -> Option<Span> {
    let rest = ["retry in ", "try again in "]
        .iter()
        .find_map(|words| Some(message.split_once(words)?.1))?;
    let is_inside = |next: char| next.is_ascii_alphanumeric() || next == '.' || next == 'µ';
    let end = rest.find(|next| !is_inside(next)).unwrap_or(rest.len());
    let text = rest[..end].trim_end_matches('.');
    duration(text).or_else(|| seconds(text))
}

/// Parses `38.2s`, or `38.2` as in the header, and rounds up to a microsecond.
pub(crate) fn seconds(text: &str) -> Option<Span> {
    let text = text.trim();
    decimal(text.strip_suffix('s').unwrap_or(text), MICROS_PER_SEC)
}

/// Parses a sum such as `6m0s`, `1h2m3.5s` or `12ms`, and rounds each part up to a microsecond.
pub(crate) fn duration(text: &str) -> Option<Span> {
    let mut rest = text.trim();
    let mut sum = Span::ZERO;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|next: char| !(next.is_ascii_digit() || next == '.'))?;
        let (number, tail) = rest.split_at(end);
        let end =
            tail.find(|next: char| next.is_ascii_digit() || next == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let micros = match unit {
            "ns" => decimal(number, 1).map(|span| span.as_micros().div_ceil(1_000)),
            "us" | "µs" => decimal(number, 1).map(Span::as_micros),
            "ms" => decimal(number, 1_000).map(Span::as_micros),
            "s" => decimal(number, MICROS_PER_SEC).map(Span::as_micros),
            "m" => decimal(number, 60 * MICROS_PER_SEC).map(Span::as_micros),
            "h" => decimal(number, 3_600 * MICROS_PER_SEC).map(Span::as_micros),
            "d" => decimal(number, 86_400 * MICROS_PER_SEC).map(Span::as_micros),
            _ => None,
        };
        sum = Span::from_micros(sum.as_micros().checked_add(micros?)?);
        rest = tail;
    }
    Some(sum)
}

/// Parses a decimal number of units of `micros` microseconds, and rounds up to a microsecond.
fn decimal(text: &str, micros: u64) -> Option<Span> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole: u64 = whole.parse().ok()?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // Nine digits are exact for any unit; what follows rounds up.
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let more = fraction.bytes().skip(9).any(|digit| digit != b'0');
    let nanos = u128::from(digits.parse::<u64>().ok()?) + u128::from(more);
    let part = (nanos * u128::from(micros)).div_ceil(1_000_000_000);
    let part = u64::try_from(part).ok()?;
    Some(Span::from_micros(whole.checked_mul(micros)?.checked_add(part)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn delays_have_fractions_and_are_never_shortened() {
        assert_eq!(seconds("38.2s"), Some(Span::from_millis(38_200)));
        assert_eq!(seconds("0.0000001s"), Some(Span::from_micros(1)));
        assert_eq!(seconds("45.837906927s"), Some(Span::from_micros(45_837_907)));
        assert_eq!(seconds("65205s"), Some(Span::from_secs(65_205)));
        assert_eq!(seconds("soon"), None);
        assert_eq!(seconds("99999999999999999999s"), None);
    }

    #[test]
    fn durations_are_sums() {
        for (text, wanted) in [
            ("12ms", Some(12_000)),
            ("6m0s", Some(360_000_000)),
            ("1h2m3.5s", Some(3_723_500_000)),
            ("7.66s", Some(7_660_000)),
            ("0s", Some(0)),
            ("1d", Some(86_400_000_000)),
            ("250µs", Some(250)),
            ("", None),
            ("12", None),
            ("1y", None),
            ("s", None),
            ("1.s.", None),
        ] {
            assert_eq!(duration(text).map(Span::as_micros), wanted, "{text:?}");
        }
    }

    #[test]
    fn headers_are_read_as_the_sdks_read_them() {
        let now: Timestamp = "2026-11-18T04:00:00Z".parse().unwrap();
        let delay = |pairs: &[(&'static str, &'static str)]| {
            let headers = pairs
                .iter()
                .map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
            header_delay(&headers.collect(), now).map(Span::as_micros)
        };
        assert_eq!(delay(&[("retry-after", "20")]), Some(20_000_000));
        assert_eq!(delay(&[("retry-after", "1.5")]), Some(1_500_000));
        assert_eq!(delay(&[("retry-after", "2"), ("retry-after-ms", "1250")]), Some(1_250_000));
        assert_eq!(delay(&[("retry-after", "2"), ("retry-after-ms", "no")]), Some(2_000_000));
        let date = "Wed, 18 Nov 2026 04:01:30 GMT";
        assert_eq!(delay(&[("retry-after", date)]), Some(90_000_000));
        for nothing in ["0", "-1", "Wed, 18 Nov 2026 03:59:00 GMT", "soon"] {
            assert_eq!(delay(&[("retry-after", nothing)]), None, "{nothing}");
        }
        assert_eq!(delay(&[]), None);
    }

    #[test]
    fn a_message_may_have_the_delay() {
        let delay = |message| message_delay(message).map(Span::as_micros);
        assert_eq!(delay("Please retry in 38.2s."), Some(38_200_000));
        assert_eq!(delay("Please try again in 6m0s. Visit"), Some(360_000_000));
        assert_eq!(delay("Please try again in 20ms."), Some(20_000));
        assert_eq!(delay("Please retry in 5."), Some(5_000_000));
        assert_eq!(delay("Please retry in a moment"), None);
    }
}
