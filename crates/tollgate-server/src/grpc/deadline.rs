//! `grpc-timeout`, the deadline of the caller.
//!
//! After the deadline the call ends with DEADLINE_EXCEEDED, and an ask that waits for room is cancelled. Without a timeout
//! a call may take [`CALL_MAX`], so that one whose message never arrives ends, too.

use axum::http::HeaderMap;
use tollgate::Span;
use tonic::Status;

use crate::app::App;
use crate::bounds::CALL_MAX;

const HEADER: &str = "grpc-timeout";

/// The most digits that the protocol allows.
const DIGITS_MAX: usize = 8;

/// Returns the timeout in `headers`, at most [`CALL_MAX`].
pub(super) fn timeout(headers: &HeaderMap) -> Result<Span, Status> {
    let timeout = parse(headers).map_err(Status::invalid_argument)?;
    Ok(timeout.unwrap_or(CALL_MAX).min(CALL_MAX))
}

/// Runs `answer`; DEADLINE_EXCEEDED on timeout.
pub(super) async fn run<T>(
    app: &App,
    timeout: Span,
    answer: impl Future<Output = T>,
) -> Result<T, Status> {
    tollgate::internal::timeout(app.clock(), timeout, answer).await.ok_or_else(|| {
        Status::deadline_exceeded(format!(
            "the response was not ready within {timeout}, the timeout of the call"
        ))
    })
}

fn parse(headers: &HeaderMap) -> Result<Option<Span>, String> {
    let Some(value) = headers.get(HEADER) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    let invalid = || format!("{HEADER} {text:?} must be 1 to 8 digits and one of H, M, S, m, u, n");
    let split = text.len().checked_sub(1).filter(|at| text.is_char_boundary(*at));
    let (digits, unit) = text.split_at(split.ok_or_else(invalid)?);
    let is_number = digits.len() <= DIGITS_MAX && digits.bytes().all(|byte| byte.is_ascii_digit());
    let amount: u64 = digits.parse().ok().filter(|_| is_number).ok_or_else(invalid)?;
    Ok(Some(match unit {
        "H" => Span::from_hours(amount),
        "M" => Span::from_mins(amount),
        "S" => Span::from_secs(amount),
        "m" => Span::from_millis(amount),
        "u" => Span::from_micros(amount),
        "n" => Span::from_micros(amount.div_ceil(1_000)),
        _ => return Err(invalid()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Option<Span>, String> {
        parse(&HeaderMap::from_iter([(
            axum::http::HeaderName::from_static(HEADER),
            text.parse().unwrap(),
        )]))
    }

    #[test]
    fn a_timeout_has_up_to_eight_digits_and_a_unit() {
        assert_eq!(parse(&HeaderMap::new()), Ok(None));
        assert_eq!(parsed("20m"), Ok(Some(Span::from_millis(20))));
        assert_eq!(parsed("1S"), Ok(Some(Span::from_secs(1))));
        assert_eq!(parsed("1n"), Ok(Some(Span::from_micros(1))));
        assert_eq!(parsed("99999999H"), Ok(Some(Span::from_hours(99_999_999))));
        for wrong in ["", "m", "20", "20s", "-1m", "+1m", "123456789m", "1.5S"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
