//! Answers as restJson1 has them: a status, the name of an error in a header, and JSON.

use serde_json::{Value, json};
use tollgate::Span;

/// An answer of the service.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The status of HTTP.
    pub status: u16,
    /// Headers beside the type of the content.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: Value,
}

impl Answer {
    pub(super) const fn new(status: u16, body: Value) -> Self {
        Self { status, headers: Vec::new(), body }
    }
}

/// What a caller gets to see.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// The answer.
    Now(Answer),
    /// The answer, after a while on the service's clock.
    Later(Span, Answer),
    /// Nothing, ever.
    Never,
    /// The connection ends.
    Cut,
}

pub(super) fn error(status: u16, name: &str, body: Value) -> Answer {
    Answer { headers: vec![("x-amzn-ErrorType", name.to_owned())], ..Answer::new(status, body) }
}

pub(super) fn throttled(retry_after: Span) -> Answer {
    let body =
        json!({ "message": "Rate exceeded", "serviceCode": "drs", "quotaCode": "L-00000000" });
    with_retry_after(error(429, "ThrottlingException", body), retry_after)
}

pub(super) fn broken() -> Answer {
    let body = json!({ "message": "An internal error occurred", "retryAfterSeconds": 1 });
    with_retry_after(error(500, "InternalServerException", body), Span::from_secs(1))
}

fn with_retry_after(mut answer: Answer, wait: Span) -> Answer {
    answer.headers.push(("Retry-After", wait.as_secs_ceil().to_string()));
    answer
}

/// 402: a quota is reached.
pub(super) fn quota(code: &str, message: &str) -> Answer {
    let body = json!({ "message": message, "resourceId": "drs", "resourceType": "job", "serviceCode": "drs", "quotaCode": code });
    error(402, "ServiceQuotaExceededException", body)
}

pub(super) fn invalid(message: &str) -> Answer {
    error(
        400,
        "ValidationException",
        json!({ "message": message, "reason": "fieldValidationFailed" }),
    )
}

pub(super) fn missing(kind: &str, id: &str) -> Answer {
    let message = format!("{kind} {id} does not exist");
    error(
        404,
        "ResourceNotFoundException",
        json!({ "message": message, "resourceId": id, "resourceType": kind }),
    )
}

pub(super) fn busy(id: &str) -> Answer {
    let message = format!("{id} is part of another job");
    error(409, "ConflictException", json!({ "message": message, "resourceId": id }))
}
