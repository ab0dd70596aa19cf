//! Errors in the shape of each dialect.

use serde_json::{Value, json};

use super::request::Dialect;
use crate::fakes::gemini::bodies;
use crate::fakes::quota::{Limit, Quota, Refused};

/// Returns the body of an error.
pub(super) fn body(dialect: Dialect, status: u16, message: &str, number: u64) -> String {
    match dialect {
        Dialect::OpenAi => {
            let (kind, code) = match status {
                401 => ("invalid_request_error", Some("invalid_api_key")),
                404 => ("invalid_request_error", Some("model_not_found")),
                429 => ("requests", Some("rate_limit_exceeded")),
                400..500 => ("invalid_request_error", None),
                _ => ("server_error", None),
            };
            openai(message, kind, code)
        }
        Dialect::Anthropic => {
            let kind = match status {
                401 => "authentication_error",
                403 => "permission_error",
                404 => "not_found_error",
                413 => "request_too_large",
                429 => "rate_limit_error",
                504 => "timeout_error",
                529 => "overloaded_error",
                400..500 => "invalid_request_error",
                _ => "api_error",
            };
            anthropic(message, kind, number)
        }
        Dialect::Gemini => {
            let kind = match status {
                401 => "UNAUTHENTICATED",
                403 => "PERMISSION_DENIED",
                404 => "NOT_FOUND",
                429 => "RESOURCE_EXHAUSTED",
                503 | 529 => "UNAVAILABLE",
                504 => "DEADLINE_EXCEEDED",
                400..500 => "INVALID_ARGUMENT",
                _ => "INTERNAL",
            };
            bodies::error(status, kind, message).1
        }
    }
}

fn openai(message: &str, kind: &str, code: Option<&str>) -> String {
    let error = json!({"message": message, "type": kind, "param": null, "code": code});
    format!("{:#}\n", json!({ "error": error }))
}

fn anthropic(message: &str, kind: &str, number: u64) -> String {
    let error = json!({"type": kind, "message": message});
    json!({"type": "error", "error": error, "request_id": request_id(number)}).to_string()
}

pub(super) fn request_id(number: u64) -> String {
    format!("req_{number:024}")
}

/// Returns the body of a 429 for a broken quota.
pub(super) fn quota(
    dialect: Dialect,
    (project, model): (&str, &str),
    quota: Quota,
    refused: &Refused,
    number: u64,
) -> String {
    let limits = refused.limits();
    if dialect == Dialect::Gemini {
        return bodies::quota(model, &limits, quota, refused.retry_after, number).1;
    }
    let (short, name, most) = match limits.first() {
        Some(Limit::Tokens) => ("tokens", "input tokens per minute", quota.tpm),
        Some(Limit::Output) => ("tokens", "output tokens per minute", quota.output_tpm),
        Some(Limit::Total) => ("tokens", "tokens per minute (TPM)", quota.total_tpm),
        Some(Limit::Daily) => ("requests", "requests per day (RPD)", quota.rpd),
        Some(Limit::AtOnce) => ("requests", "concurrent connections", quota.at_once),
        Some(Limit::Requests) | None => ("requests", "requests per minute (RPM)", quota.rpm),
    };
    let seconds = refused.retry_after;
    match dialect {
        Dialect::OpenAi => openai(
            &format!(
                "Rate limit reached for {model} in organization org-{project} on {name}: Limit {most}. Please try again in {seconds}. Visit https://platform.openai.com/account/rate-limits to learn more."
            ),
            short,
            Some("rate_limit_exceeded"),
        ),
        _ => anthropic(
            &format!(
                "This request would exceed your organization's rate limit of {most} {name} (model: {model})."
            ),
            "rate_limit_error",
            number,
        ),
    }
}

/// Returns status and body of a refusal for want of credit.
pub(super) fn no_credit(dialect: Dialect, number: u64) -> (u16, String) {
    const MESSAGE: &str =
        "You exceeded your current quota, please check your plan and billing details.";
    match dialect {
        Dialect::OpenAi => (429, openai(MESSAGE, "insufficient_quota", Some("insufficient_quota"))),
        Dialect::Anthropic => (
            400,
            anthropic(
                "Your credit balance is too low to access the Anthropic API.",
                "invalid_request_error",
                number,
            ),
        ),
        Dialect::Gemini => (403, body(dialect, 403, MESSAGE, number)),
    }
}

/// Returns an event that ends a stream with an error.
pub(super) fn event(dialect: Dialect) -> String {
    match dialect {
        Dialect::OpenAi => {
            let error = json!({"message": "The server had an error while processing your request.", "type": "server_error", "param": null, "code": null});
            format!("data: {}\n\n", json!({ "error": error }))
        }
        Dialect::Anthropic => {
            let error: Value = json!({"type": "overloaded_error", "message": "Overloaded"});
            format!("event: error\ndata: {}\n\n", json!({"type": "error", "error": error}))
        }
        Dialect::Gemini => {
            let error = json!({"code": 503, "status": "UNAVAILABLE", "message": "The model is overloaded. Please try again later."});
            format!("data: {}\r\n\r\n", json!({ "error": error }))
        }
    }
}
