//! Strict parsing of request bodies and queries.
//!
//! The media type must be JSON: a browser sends a preflight request before it sends JSON to another site, so a web page
//! cannot use up the quotas of a server on the machine of its reader.
//!
//! Over HTTP/2 an unread body, for example of a request without a key, is drained ([`DrainedBody`]). Otherwise hyper resets
//! the stream after the response. That is allowed, but curl before 8.0 sometimes discards the response then, and with it
//! the problem document.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::BoxError;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{FromRequest, FromRequestParts, Query};
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Request, Uri, Version};
use axum::response::Response;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Frame, SizeHint};
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use tollgate::Span;
use tollgate::internal::reword_serde_error;
use tollgate::internal::timeout;
use tollgate_protocol::json::{Problem, StandingQuery};

use super::reply;
use crate::app::App;
use crate::bounds::{BODY_BYTES_MAX, BODY_WAIT_MAX};

/// Extracts a JSON body.
pub(super) struct Json<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for Json<T> {
    type Rejection = Response;

    async fn from_request(request: Request<Body>, app: &Arc<App>) -> Result<Self, Response> {
        let (head, body) = request.into_parts();
        read(app, &head.headers, body).await.map(Self).map_err(|problem| reply::problem(&problem))
    }
}

/// Parses `body`, bounded in size and time.
pub(super) async fn read<T: DeserializeOwned, B>(
    app: &App,
    headers: &HeaderMap,
    body: B,
) -> Result<T, Problem>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    read_bounded(app, headers, body, (BODY_BYTES_MAX, BODY_WAIT_MAX)).await
}

/// Parses `body` of at most `bytes_max` bytes that arrive within `wait_max`.
pub(super) async fn read_bounded<T: DeserializeOwned, B>(
    app: &App,
    headers: &HeaderMap,
    body: B,
    (bytes_max, wait_max): (usize, Span),
) -> Result<T, Problem>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    if !is_json(headers) {
        let detail = "send JSON, and say so: content-type: application/json";
        return Err(Problem::new(415, "unsupported-media-type", detail));
    }
    if let Some(coding) = headers.get(CONTENT_ENCODING).filter(|coding| *coding != "identity") {
        let detail = format!("send the body as it is, without content-encoding: {coding:?}");
        return Err(Problem::new(415, "unsupported-media-type", detail));
    }
    let body = collect(Limited::new(body, bytes_max));
    let arrived = timeout(app.clock(), wait_max, body).await;
    let arrived = arrived.ok_or_else(|| {
        Problem::new(408, "timeout", format!("the body did not arrive within {wait_max}"))
    })?;
    let body = arrived.map_err(|error| {
        if error.is::<LengthLimitError>() {
            let detail = format!("a body has at most {bytes_max} bytes; send less at once");
            return Problem::new(413, "too-large", detail);
        }
        Problem::invalid("the body did not arrive whole")
    })?;
    parse(&body).map_err(Problem::invalid)
}

/// Collects `body`, without a copy if it is one frame, as most are.
async fn collect<B: HttpBody<Data = Bytes>>(body: B) -> Result<Bytes, B::Error> {
    let mut body = pin!(body);
    let Some(first) = body.frame().await else { return Ok(Bytes::new()) };
    let first = first?.into_data().unwrap_or_default();
    if body.is_end_stream() {
        return Ok(first);
    }
    let rest = body.collect().await?.to_bytes();
    Ok(if rest.is_empty() { first } else { [first, rest].concat().into() })
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let essence = value.split(|byte| *byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(b"application/json")
}

/// Parses `bytes`; an error names the field.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    // serde would accept an array as the fields in order.
    if bytes.trim_ascii_start().starts_with(b"[") {
        return Err("the body must be an object, not a list".to_owned());
    }
    // Tracking the path takes as long as parsing, so only a failed parse is repeated with it.
    if let Ok(value) = serde_json::from_slice(bytes) {
        return Ok(value);
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let cause = error.into_inner();
        match cause.classify() {
            serde_json::error::Category::Data if path != "." => {
                format!("{path}: {}", located(&cause))
            }
            serde_json::error::Category::Data => located(&cause),
            _ => format!("the body is not valid JSON: {cause}"),
        }
    })?;
    json.end().map_err(|error| format!("the body is not one value of JSON: {error}"))?;
    Ok(value)
}

/// Returns the message of `error` in plain words, with its line and column.
fn located(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let (message, line) = message.rsplit_once(" at line ").unwrap_or((&message, "?"));
    format!("{} at line {line}", reword_serde_error(message, "an object"))
}

/// Extracts a query with a policy and a subject.
pub(super) struct PolicyAndSubject(pub(super) StandingQuery);

impl FromRequestParts<Arc<App>> for PolicyAndSubject {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Response> {
        let query = query(&parts.uri, "?policy=api&subject=alice");
        query.map(Self).map_err(|problem| reply::problem(&problem))
    }
}

/// Parses the query of `uri`; errors quote `example`.
pub(super) fn query<T: DeserializeOwned>(uri: &Uri, example: &str) -> Result<T, Problem> {
    let wrong = |what: &str| Problem::invalid(format!("{what}; write {example}, percent-encoded"));
    // The parser replaces invalid UTF-8, which would map different subjects to one.
    let is_utf8 = |query: &str| percent_decode_str(query).decode_utf8().is_ok();
    if !uri.query().is_none_or(is_utf8) {
        return Err(wrong("the query is not UTF-8"));
    }
    match Query::<T>::try_from_uri(uri) {
        Ok(Query(query)) => Ok(query),
        Err(rejection) => {
            let text = rejection.body_text();
            Err(wrong(&format!(
                "the query: {}",
                text.split_once(": ").map_or(&*text, |(_, why)| why)
            )))
        }
    }
}

/// The body of a request.
pub(crate) trait RequestBody:
    HttpBody<Data = Bytes, Error: Into<BoxError> + Send> + Send + Unpin + 'static
{
}

impl<B> RequestBody for B where
    B: HttpBody<Data = Bytes, Error: Into<BoxError> + Send> + Send + Unpin + 'static
{
}

/// A body that is drained when it is dropped, within the bounds of a body that is read.
pub(super) struct DrainedBody<B: RequestBody> {
    /// `None` once it is dropped.
    body: Option<B>,
    app: Option<Arc<App>>,
}

impl<B: RequestBody> DrainedBody<B> {
    pub(super) fn new(body: B, version: Version, app: &Arc<App>) -> Self {
        let app = (version == Version::HTTP_2).then(|| Arc::clone(app));
        Self { body: Some(body), app }
    }
}

impl<B: RequestBody> Drop for DrainedBody<B> {
    fn drop(&mut self) {
        let body = self.body.take().filter(|body| !body.is_end_stream());
        if let (Some(body), Some(app)) = (body, self.app.take()) {
            tokio::spawn(async move {
                let mut body = Limited::new(body, BODY_BYTES_MAX);
                let all = async { while let Some(Ok(_)) = body.frame().await {} };
                timeout(app.clock(), BODY_WAIT_MAX, all).await
            });
        }
    }
}

impl<B: RequestBody> HttpBody for DrainedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(HttpBody::size_hint).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    #[tokio::test]
    async fn a_body_of_several_frames_is_joined() {
        for pieces in [&[][..], &["{}"], &["{\"a\"", ": 1", "}"]] {
            let frames =
                pieces.iter().map(|piece| Ok::<_, BoxError>(Bytes::from_static(piece.as_bytes())));
            let body = Body::from_stream(stream::iter(frames.collect::<Vec<_>>()));
            assert_eq!(collect(body).await.unwrap(), pieces.concat());
        }
    }
}
