//! Builds responses: JSON bodies, problem documents, and the headers of a decision.

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use http_body_util::Full;
use serde::Serialize;
use tollgate::{Decision, Denial, Error, ErrorKind, Span, Standing, Timestamp};
use tollgate_protocol::json::{
    AcquireRequest, AskPolicies, Changed, Denied, PROBLEM_JSON, Problem, admission,
};

use super::rate_limit_headers;
use crate::app::App;
use crate::error_log;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// `Retry-After` of a contended subject, in seconds.
const CONTENDED_RETRY_SECS: u64 = 1;

/// The capacity of a new body; most fit.
const BODY_BYTES: usize = 768;

/// Responds 200 with `body` as JSON.
pub(super) fn ok<T: Serialize>(body: &T) -> Response {
    json(200, "application/json", body)
}

/// Responds 200 with `text`.
pub(super) fn text(media_type: &'static str, text: String) -> Response {
    respond(200, media_type, text.into()).map(Body::new)
}

/// Responds 200 with `bytes`.
pub(super) fn bytes(media_type: &'static str, bytes: Vec<u8>) -> Response<Full<Bytes>> {
    respond(200, media_type, bytes.into())
}

/// Responds with `problem` and its status.
pub(super) fn problem(problem: &Problem) -> Response {
    json(problem.status, PROBLEM_JSON, problem)
}

/// Responds with `error` as a problem document, and logs it if the server is at fault.
pub(super) fn error(error: &Error) -> Response {
    let body = Problem::from(error);
    error_log::log(error);
    let mut response = problem(&body);
    if error.kind() == ErrorKind::Contended {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(CONTENDED_RETRY_SECS));
    }
    response
}

/// Responds 200 with the value of `done`, or with its error.
pub(super) fn result<T: Serialize>(done: Result<T, Error>) -> Response {
    match done {
        Ok(body) => ok(&body),
        Err(failure) => error(&failure),
    }
}

/// Responds 200 with whether something changed, or with the error of `done`.
pub(super) fn changed(done: Result<bool, Error>) -> Response {
    result(done.map(|changed| Changed { changed }))
}

/// Responds to `request` under its `policies`. The headers are about the charge that binds, or the first if admitted.
pub(super) fn decision(
    app: &App,
    policies: &AskPolicies,
    request: &AcquireRequest,
    decision: &Decision,
) -> Response<Full<Bytes>> {
    let (mut response, standings, read_at, denial) = match decision {
        Decision::Admitted(permit) => {
            let now = app.now();
            let body = admission(permit, app.permit_keys().sealing(), now);
            (respond(200, "application/json", body.into()), &permit.limits, now, None)
        }
        Decision::Denied(denial) => {
            tracing::debug!(policy = %denial.policy, limit = %denial.limit, "refused");
            let mut response = respond(429, PROBLEM_JSON, to_json(&Denied::from(denial)));
            if let Some(wait) = denial.retry_after() {
                let secs = HeaderValue::from(wait.as_secs_ceil());
                response.headers_mut().insert(RETRY_AFTER, secs);
            }
            (response, &denial.limits, denial.decided_at, Some(denial))
        }
    };
    let charge = denial.and_then(Denial::binding_charge).unwrap_or(0);
    let policy = policies.get(charge).unwrap_or(&policies.first);
    let policy = policy.for_subject(request.subject_of(charge));
    let headers = [
        (RATE_LIMIT, rate_limit_headers::rate_limit(standings, read_at, denial)),
        (RATE_LIMIT_POLICY, rate_limit_headers::rate_limit_policy(policy)),
    ];
    for (name, value) in headers.into_iter().filter(|_| !policy.is_unlimited()) {
        if let Some(value) = value {
            response.headers_mut().insert(name, value);
        }
    }
    if app.has_legacy_fields() {
        for (name, value) in legacy(decision, standings, read_at) {
            response.headers_mut().insert(name, HeaderValue::from(value));
        }
    }
    response
}

/// Returns the legacy headers of the binding limit, or of the one with the least left.
fn legacy(
    decision: &Decision,
    standings: &[Standing],
    now: Timestamp,
) -> impl Iterator<Item = (&'static str, u64)> {
    let (standing, wait) = match decision {
        Decision::Admitted(_) => {
            let standing = standings.get(rate_limit_headers::tightest(standings));
            (standing, standing.and_then(|standing| standing.reset_at).map(|at| at.since(now)))
        }
        Decision::Denied(denial) => {
            let binding = standings.iter().find(|standing| standing.name == denial.limit);
            (binding, denial.retry_after())
        }
    };
    let secs = wait.map(Span::as_secs_ceil);
    standing.into_iter().flat_map(move |standing| rate_limit_headers::legacy(standing, secs))
}

fn json<T: Serialize>(status: u16, media_type: &'static str, body: &T) -> Response {
    respond(status, media_type, to_json(body)).map(Body::new)
}

fn to_json<T: Serialize>(body: &T) -> Bytes {
    let mut bytes = Vec::with_capacity(BODY_BYTES);
    serde_json::to_writer(&mut bytes, body)
        .expect("bodies have string keys and no own serializers that fail");
    bytes.into()
}

fn respond(status: u16, media_type: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    // A standing is true only now.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
