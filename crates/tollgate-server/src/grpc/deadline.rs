//! `grpc-timeout`: how long the caller waits for the answer.
//!
//! Nobody listens after that, so the call ends with DEADLINE_EXCEEDED. An ask that waits for room is given up by the same
//! rule as one whose caller left. Without a timeout a call may take [`CALL_MAX`], so that one whose message never arrives
//! ends, too.

use axum::http::HeaderMap;
use tollgate::Span;
use tonic::Status;

use crate::app::App;
use crate::bounds::CALL_MAX;
use tollgate::within;

const FIELD: &str = "grpc-timeout";

/// The most digits that the protocol allows.
const DIGITS_MAX: usize = 8;

/// How long the call with these fields may take: as long as its caller says, and at most [`CALL_MAX`].
pub(super) fn of(headers: &HeaderMap) -> Result<Span, Status> {
    let timeout = timeout_of(headers).map_err(Status::invalid_argument)?;
    Ok(timeout.unwrap_or(CALL_MAX).min(CALL_MAX))
}

/// What `answer` comes to within `timeout`.
pub(super) async fn keep<T>(
    app: &App,
    timeout: Span,
    answer: impl Future<Output = T>,
) -> Result<T, Status> {
    within(app.clock(), timeout, answer).await.ok_or_else(|| {
        Status::deadline_exceeded(format!(
            "the answer was not ready within {timeout}, which is how long the call may take"
        ))
    })
}

fn timeout_of(headers: &HeaderMap) -> Result<Option<Span>, String> {
    let Some(value) = headers.get(FIELD) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    let wrong = || format!("{FIELD} {text:?} must be 1 to 8 digits and one of H, M, S, m, u, n");
    let split = text.len().checked_sub(1).filter(|at| text.is_char_boundary(*at));
    let (digits, unit) = text.split_at(split.ok_or_else(wrong)?);
    let is_number = digits.len() <= DIGITS_MAX && digits.bytes().all(|byte| byte.is_ascii_digit());
    let amount: u64 = digits.parse().ok().filter(|_| is_number).ok_or_else(wrong)?;
    Ok(Some(match unit {
        "H" => Span::from_hours(amount),
        "M" => Span::from_mins(amount),
        "S" => Span::from_secs(amount),
        "m" => Span::from_millis(amount),
        "u" => Span::from_micros(amount),
        "n" => Span::from_micros(amount.div_ceil(1_000)),
        _ => return Err(wrong()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Option<Span>, String> {
        timeout_of(&HeaderMap::from_iter([(
            axum::http::HeaderName::from_static(FIELD),
            text.parse().unwrap(),
        )]))
    }

    #[test]
    fn a_timeout_has_up_to_eight_digits_and_a_unit() {
        assert_eq!(timeout_of(&HeaderMap::new()), Ok(None));
        assert_eq!(parsed("20m"), Ok(Some(Span::from_millis(20))));
        assert_eq!(parsed("1S"), Ok(Some(Span::from_secs(1))));
        assert_eq!(parsed("1n"), Ok(Some(Span::from_micros(1))));
        assert_eq!(parsed("99999999H"), Ok(Some(Span::from_hours(99_999_999))));
        for wrong in ["", "m", "20", "20s", "-1m", "+1m", "123456789m", "1.5S"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
