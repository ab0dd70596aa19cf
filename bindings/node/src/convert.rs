//! Errors, numbers and JSON between the two languages.

use napi::bindgen_prelude::Error as JsError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tollgate_bindings::{Error, ErrorKind, Standing, Timestamp};
use tollgate_protocol::json::LimitStanding;

/// A result whose error carries its kind as `code`.
pub(crate) type Result<T, E = JsError<String>> = std::result::Result<T, E>;

/// Returns the stable word for `kind`.
pub(crate) const fn kind_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid => "invalid",
        ErrorKind::UnknownPolicy => "unknown-policy",
        ErrorKind::Forbidden => "forbidden",
        ErrorKind::Conflict => "conflict",
        ErrorKind::Expired => "expired",
        ErrorKind::Contended => "contended",
        ErrorKind::Unavailable => "unavailable",
        ErrorKind::Corrupt => "corrupt",
        ErrorKind::Closed => "closed",
        _ => "internal",
    }
}

#[cold]
pub(crate) fn js_error(error: &Error) -> JsError<String> {
    JsError::new(kind_name(error.kind()).to_owned(), error.to_string())
}

#[cold]
pub(crate) fn invalid(message: impl Into<String>) -> JsError<String> {
    js_error(&Error::invalid(message))
}

/// Parses JSON that the TypeScript part of the package wrote. Users see the message where their value has the wrong shape.
pub(crate) fn parse<T: DeserializeOwned>(json: &str) -> Result<T> {
    serde_json::from_str(json).map_err(|error| invalid(error.to_string()))
}

pub(crate) fn to_json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("values with string keys are written to a string")
}

/// Converts an amount that TypeScript has checked to be a safe integer.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked against the range right before"
)]
pub(crate) fn amount(name: &str, number: f64) -> Result<u64> {
    /// The largest integer that every smaller one can be told from.
    const SAFE_MAX: f64 = 9_007_199_254_740_991.0;
    if number.fract() == 0.0 && (0.0..=SAFE_MAX).contains(&number) {
        return Ok(number as u64);
    }
    Err(invalid(format!("{name}: expected a non-negative integer, not {number}")))
}

/// Converts milliseconds since 1970 with a fraction.
pub(crate) fn timestamp(name: &str, milliseconds: f64) -> Result<Timestamp> {
    amount(name, (milliseconds * 1000.0).round()).map(Timestamp::from_micros)
}

/// Converts a time to milliseconds since 1970 with a fraction. Every microsecond of the next 200 years is a different number.
#[expect(clippy::cast_precision_loss, reason = "microseconds since 1970 fit 53 bits until 2255")]
pub(crate) fn milliseconds(time: Timestamp) -> f64 {
    time.as_micros() as f64 / 1000.0
}

pub(crate) fn standings_json(standings: &[Standing], now: Timestamp) -> String {
    to_json(&LimitStanding::all(standings, now))
}
