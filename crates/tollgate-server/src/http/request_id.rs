//! A name for each request, so that a line of the log, an answer and the caller's own log can be put together.
//!
//! The caller's `x-request-id` is kept if it is short and plain, as a proxy in front sends it; otherwise one is made. It comes
//! back with the answer, and stands in every line that is logged while the request is answered.

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use tollgate::edge::random;
use tracing::Instrument as _;

use crate::bounds::REQUEST_ID_BYTES_MAX;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Answers the request under its name.
pub(crate) async fn name(request: Request, next: Next) -> Response {
    let given = request.headers().get(&REQUEST_ID).filter(|value| is_plain(value)).cloned();
    let id = given.or_else(|| HeaderValue::try_from(fresh()).ok());
    let text = id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default();
    let path = request.uri().path();
    let span = tracing::info_span!("request", request_id = text, method = %request.method(), path);
    let mut response = next.run(request).instrument(span).await;
    if let Some(id) = id {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// It ends up in logs, so it is of letters that mean nothing there.
fn is_plain(value: &HeaderValue) -> bool {
    let bytes = value.as_bytes();
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=".contains(byte);
    (1..=REQUEST_ID_BYTES_MAX).contains(&bytes.len()) && bytes.iter().all(is_plain)
}

fn fresh() -> String {
    format!("{:08x}{:08x}", random(), random())
}
