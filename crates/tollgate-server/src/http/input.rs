//! Bodies and queries, read strictly.
//!
//! The media type must be JSON: a browser asks before it sends that from another site, so a page that somebody happens to
//! have open cannot use up the quotas of a server on their machine.

use std::pin::pin;
use std::sync::Arc;

use axum::BoxError;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{FromRequest, FromRequestParts, Query};
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Request, Uri};
use axum::response::Response;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use tollgate::spec::in_words;

use super::reply;
use crate::app::App;
use crate::bounds::{BODY_BYTES_MAX, BODY_WAIT_MAX};
use crate::wire::{Problem, StandingQuery};
use tollgate::{Span, within};

/// A body of JSON.
pub(super) struct Json<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for Json<T> {
    type Rejection = Response;

    async fn from_request(request: Request<Body>, app: &Arc<App>) -> Result<Self, Response> {
        let (head, body) = request.into_parts();
        read(app, &head.headers, body).await.map(Self).map_err(|problem| reply::problem(&problem))
    }
}

/// What `body` says, if it is all there in time.
pub(super) async fn read<T: DeserializeOwned, B>(
    app: &App,
    headers: &HeaderMap,
    body: B,
) -> Result<T, Problem>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    read_within(app, headers, body, (BODY_BYTES_MAX, BODY_WAIT_MAX)).await
}

/// The same with other bounds: of at most so many bytes that arrive within this time.
pub(super) async fn read_within<T: DeserializeOwned, B>(
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
    let body = whole(Limited::new(body, bytes_max));
    let arrived = within(app.clock(), wait_max, body).await;
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

/// All of `body`, most of which are one piece.
async fn whole<B: HttpBody<Data = Bytes>>(body: B) -> Result<Bytes, B::Error> {
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

/// Reads `bytes`, or says which field is wrong.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    // serde would take its members for the fields, in their order.
    if bytes.trim_ascii_start().starts_with(b"[") {
        return Err("the body must be an object, not a list".to_owned());
    }
    // Keeping track of where one is takes as long as reading, so that is left to what is wrong.
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

/// What is wrong, and where.
fn located(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let (message, place) = message.rsplit_once(" at line ").unwrap_or((&message, "?"));
    format!("{} at line {place}", in_words(message, "an object"))
}

/// A query that names a policy and a subject.
pub(super) struct Named(pub(super) StandingQuery);

impl FromRequestParts<Arc<App>> for Named {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Response> {
        let query = query(&parts.uri, "?policy=api&subject=alice");
        query.map(Self).map_err(|problem| reply::problem(&problem))
    }
}

/// The query of `uri`, which looks like `example`.
pub(super) fn query<T: DeserializeOwned>(uri: &Uri, example: &str) -> Result<T, Problem> {
    let wrong = |what: &str| Problem::invalid(format!("{what}; write {example}, percent-encoded"));
    // The parser replaces what is not UTF-8, so that different subjects would be the same one.
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

/// Whether `query` is UTF-8 once it is percent-decoded. What separates its parts is ASCII, so it is looked at whole.
fn is_utf8(query: &str) -> bool {
    let mut decoded = Vec::with_capacity(query.len());
    let mut rest = query.as_bytes();
    while let [byte, after @ ..] = rest {
        let escaped = if *byte == b'%' { after.first_chunk().and_then(hex) } else { None };
        decoded.push(escaped.unwrap_or(*byte));
        rest = if escaped.is_some() { &after[2..] } else { after };
    }
    std::str::from_utf8(&decoded).is_ok()
}

/// The byte that two digits stand for.
fn hex(digits: &[u8; 2]) -> Option<u8> {
    let [high, low] = digits.map(|digit| char::from(digit).to_digit(16));
    u8::try_from(high? * 16 + low?).ok()
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    #[tokio::test]
    async fn a_body_in_pieces_is_put_together() {
        for pieces in [&[][..], &["{}"], &["{\"a\"", ": 1", "}"]] {
            let frames =
                pieces.iter().map(|piece| Ok::<_, BoxError>(Bytes::from_static(piece.as_bytes())));
            let body = Body::from_stream(stream::iter(frames.collect::<Vec<_>>()));
            assert_eq!(whole(body).await.unwrap(), pieces.concat());
        }
    }
}
