//! Errors in the shape of each dialect, so that the provider's own SDK understands them.

use http::StatusCode;
use serde_json::json;
use tollgate_core::Span;

use crate::dialect::Dialect;

/// The reason of an error that a gateway itself answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorCode {
    /// The request is malformed (400).
    InvalidRequest,
    /// The key is missing or unknown (401).
    Unauthorized,
    /// The key may not do this (403).
    Forbidden,
    /// There is no such path, or the gateway does not cover it (404).
    NotFound,
    /// The body is too large (413).
    TooLarge,
    /// A limit is exhausted; a later attempt may succeed (429).
    RateLimited,
    /// The request exceeds a limit by itself; no later attempt succeeds (429).
    NeverFits,
    /// The gateway failed (500).
    Internal,
    /// The provider could not be reached or answered nonsense (502).
    BadGateway,
    /// The gateway or the provider is overloaded or stopping (503).
    Overloaded,
    /// The provider did not answer in time (504).
    Timeout,
}

impl ErrorCode {
    /// Returns the status of the answer.
    #[must_use]
    pub const fn status(self) -> StatusCode {
        match self {
            Self::InvalidRequest => StatusCode::BAD_REQUEST,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::RateLimited | Self::NeverFits => StatusCode::TOO_MANY_REQUESTS,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::BadGateway => StatusCode::BAD_GATEWAY,
            Self::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
            Self::Timeout => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// Returns `type` and `code` of OpenAI's errors.
    const fn openai(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::InvalidRequest => ("invalid_request_error", None),
            Self::Unauthorized => ("invalid_request_error", Some("invalid_api_key")),
            Self::Forbidden => ("invalid_request_error", Some("permission_denied")),
            Self::NotFound => ("invalid_request_error", Some("not_found")),
            Self::TooLarge => ("invalid_request_error", Some("request_too_large")),
            Self::RateLimited | Self::NeverFits => {
                ("rate_limit_error", Some("rate_limit_exceeded"))
            }
            Self::Internal | Self::BadGateway => ("server_error", None),
            Self::Overloaded => ("server_error", Some("overloaded")),
            Self::Timeout => ("server_error", Some("timeout")),
        }
    }

    /// Returns `error.type` of Anthropic's errors.
    const fn anthropic(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request_error",
            Self::Unauthorized => "authentication_error",
            Self::Forbidden => "permission_error",
            Self::NotFound => "not_found_error",
            Self::TooLarge => "request_too_large",
            Self::RateLimited | Self::NeverFits => "rate_limit_error",
            Self::Internal | Self::BadGateway => "api_error",
            Self::Overloaded => "overloaded_error",
            Self::Timeout => "timeout_error",
        }
    }

    /// Returns `error.status` of Gemini's errors.
    const fn gemini(self) -> &'static str {
        match self {
            Self::InvalidRequest | Self::TooLarge => "INVALID_ARGUMENT",
            Self::Unauthorized => "UNAUTHENTICATED",
            Self::Forbidden => "PERMISSION_DENIED",
            Self::NotFound => "NOT_FOUND",
            Self::RateLimited | Self::NeverFits => "RESOURCE_EXHAUSTED",
            Self::Internal => "INTERNAL",
            Self::BadGateway | Self::Overloaded => "UNAVAILABLE",
            Self::Timeout => "DEADLINE_EXCEEDED",
        }
    }
}

/// Returns the body of an error in the shape of `dialect`. Gemini's clients read the delay in the body, so `retry_after` goes there;
/// the others read headers only.
#[must_use]
pub fn error_body(
    dialect: Dialect,
    code: ErrorCode,
    message: &str,
    retry_after: Option<Span>,
) -> Vec<u8> {
    let body = match dialect {
        Dialect::OpenAi => {
            let (kind, code) = code.openai();
            json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
        }
        Dialect::Anthropic => {
            json!({"type": "error", "error": {"type": code.anthropic(), "message": message}})
        }
        Dialect::Gemini => {
            let mut error = json!({
                "code": code.status().as_u16(),
                "message": message,
                "status": code.gemini(),
            });
            if let Some(delay) = retry_after {
                let micros = delay.as_micros();
                let delay = format!("{}.{:06}s", micros / 1_000_000, micros % 1_000_000);
                error["details"] = json!([
                    {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}
                ]);
            }
            json!({"error": error})
        }
    };
    body.to_string().into_bytes()
}
