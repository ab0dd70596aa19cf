//! Answers as restJson1 has them: a status, the name of an error in a header, and JSON.

use serde_json::{Value, json};
use tollgate::Span;

#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    pub status: u16,
    /// Headers besides `content-type`.
    pub headers: Vec<(&'static str, String)>,
    pub body: Value,
}

impl Response {
    pub(super) const fn new(status: u16, body: Value) -> Self {
        Self { status, headers: Vec::new(), body }
    }
}

/// What the caller sees.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Now(Response),
    /// The answer after a delay on the clock of the service.
    Later(Span, Response),
    Never,
    Cut,
}

pub(super) fn error(status: u16, name: &str, body: Value) -> Response {
    Response { headers: vec![("x-amzn-ErrorType", name.to_owned())], ..Response::new(status, body) }
}

pub(super) fn throttled(retry_after: Span) -> Response {
    let body =
        json!({ "message": "Rate exceeded", "serviceCode": "drs", "quotaCode": "L-00000000" });
    with_retry_after(error(429, "ThrottlingException", body), retry_after)
}

pub(super) fn broken() -> Response {
    let body = json!({ "message": "An internal error occurred", "retryAfterSeconds": 1 });
    with_retry_after(error(500, "InternalServerException", body), Span::from_secs(1))
}

fn with_retry_after(mut answer: Response, wait: Span) -> Response {
    answer.headers.push(("Retry-After", wait.as_secs_ceil().to_string()));
    answer
}

/// 402: a quota is reached.
pub(super) fn quota(code: &str, message: &str) -> Response {
    let body = json!({ "message": message, "resourceId": "drs", "resourceType": "job", "serviceCode": "drs", "quotaCode": code });
    error(402, "ServiceQuotaExceededException", body)
}

pub(super) fn invalid(message: &str) -> Response {
    error(
        400,
        "ValidationException",
        json!({ "message": message, "reason": "fieldValidationFailed" }),
    )
}

pub(super) fn missing(kind: &str, id: &str) -> Response {
    let message = format!("{kind} {id} does not exist");
    error(
        404,
        "ResourceNotFoundException",
        json!({ "message": message, "resourceId": id, "resourceType": kind }),
    )
}

pub(super) fn busy(id: &str) -> Response {
    let message = format!("{id} is part of another job");
    error(409, "ConflictException", json!({ "message": message, "resourceId": id }))
}
