//! Which headers pass in either direction, and what the gateway reads from them.

use std::borrow::Cow;

use hyper::HeaderMap;
use hyper::header::{self, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;
use tollgate::Span;

pub(crate) static WAITED: HeaderName = HeaderName::from_static("x-tollgate-waited-ms");
pub(crate) static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_WAIT: &str = "x-tollgate-max-wait";

/// Headers in which SDKs announce how long they wait, in seconds.
const TIMEOUTS: [&str; 2] = ["x-stainless-timeout", "x-server-timeout"];

/// Headers about one connection.
static HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Headers of a request that concern the gateway or identify its client.
static NOT_FORWARDED: [HeaderName; 16] = [
    header::HOST,
    header::COOKIE,
    header::AUTHORIZATION,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("x-goog-api-key"),
    HeaderName::from_static("openai-organization"),
    HeaderName::from_static("openai-project"),
    HeaderName::from_static("x-goog-user-project"),
    HeaderName::from_static(MAX_WAIT),
    header::CONTENT_LENGTH,
    header::EXPECT,
    header::FORWARDED,
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-forwarded-proto"),
    HeaderName::from_static("x-real-ip"),
];

/// Headers of a response that concern the provider's own host.
static NOT_RETURNED: [HeaderName; 3] =
    [header::SET_COOKIE, header::ALT_SVC, header::STRICT_TRANSPORT_SECURITY];

/// The headers that an upstream is sent beside those of the client: its host, its key and the accepted encoding.
const ADDED: usize = 3;

/// Returns the headers that `Connection` names: they are about the connection, too.
fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let lists = headers.get_all(header::CONNECTION).iter();
    let names = lists.flat_map(|list| list.to_str().unwrap_or_default().split(','));
    names.filter_map(|name| name.trim().parse().ok()).collect()
}

/// Returns the headers of a request that an upstream gets.
pub(crate) fn forwarded(headers: &HeaderMap) -> HeaderMap {
    let named = named_by_connection(headers);
    let is_kept = |name: &HeaderName| {
        !NOT_FORWARDED.contains(name) && !HOP_BY_HOP.contains(name) && !named.contains(name)
    };
    // Built anew: removing each of the names is a lookup each, and most requests have few of them.
    let mut forwarded = HeaderMap::with_capacity(headers.len() + ADDED);
    for (name, value) in headers.iter().filter(|(name, _)| is_kept(name)) {
        forwarded.append(name.clone(), value.clone());
    }
    // Usage is read beside the copy.
    forwarded.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    forwarded
}

/// Makes the headers of a response ready for the client.
pub(crate) fn backward(headers: &mut HeaderMap) {
    let mut removed = named_by_connection(headers);
    let is_removed = |name: &&HeaderName| NOT_RETURNED.contains(name) || HOP_BY_HOP.contains(name);
    removed.extend(headers.keys().filter(is_removed).cloned());
    for name in removed {
        headers.remove(name);
    }
}

/// Returns the key of the caller: from `Authorization: Bearer`, `x-api-key`, `x-goog-api-key` or the query.
pub(crate) fn caller_key<'a>(
    headers: &'a HeaderMap,
    query: Option<&'a str>,
) -> Option<Cow<'a, str>> {
    let text =
        |name: &str| headers.get(name).and_then(|value: &'a HeaderValue| value.to_str().ok());
    let bearer = text("authorization").and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
    });
    let given = bearer.or_else(|| text("x-api-key")).or_else(|| text("x-goog-api-key"));
    if let Some(key) = given {
        return Some(Cow::Borrowed(key));
    }
    let key = query?.split('&').find(|pair| is_key(pair))?.split_once('=')?.1;
    percent_decode_str(key).decode_utf8().ok()
}

/// Returns whether a pair of a query is a key, however its name is written.
fn is_key(pair: &str) -> bool {
    let name = pair.split_once('=').map_or(pair, |(name, _)| name);
    percent_decode_str(name).eq(*b"key")
}

/// Returns `query` without the caller's key.
pub(crate) fn without_key(query: &str) -> Option<String> {
    let kept: Vec<&str> = query.split('&').filter(|pair| !is_key(pair)).collect();
    (!kept.is_empty()).then(|| kept.join("&"))
}

/// Returns how long the client wants to wait for admission at most.
pub(crate) fn max_wait(headers: &HeaderMap) -> Result<Option<Span>, String> {
    let Some(value) = headers.get(MAX_WAIT) else { return Ok(None) };
    let wrong = || format!("{MAX_WAIT} is not a time; write \"30s\", \"500ms\" or \"0s\"");
    let text = value.to_str().map_err(|_| wrong())?.trim();
    if let Ok(seconds) = text.parse::<u64>() {
        return Ok(Some(Span::from_secs(seconds)));
    }
    text.parse().map(Some).map_err(|_| wrong())
}

/// Returns how long the client waits for a response, if its SDK announces it.
pub(crate) fn client_timeout(headers: &HeaderMap) -> Option<Span> {
    let values = TIMEOUTS.iter().filter_map(|name| headers.get(*name)?.to_str().ok());
    values.filter_map(seconds).min()
}

/// Parses seconds with an optional fraction.
fn seconds(text: &str) -> Option<Span> {
    let (whole, fraction) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) {
        return None;
    }
    let millis: u64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
    Some(Span::from_secs(whole.parse().ok()?).plus(Span::from_millis(millis)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn a_request_loses_what_is_about_its_connection_or_the_caller() {
        let all = headers(&[
            ("host", "gateway"),
            ("connection", "keep-alive, x-custom"),
            ("x-custom", "1"),
            ("authorization", "Bearer tg"),
            ("x-api-key", "tg"),
            ("x-goog-api-key", "tg"),
            ("cookie", "a=b"),
            ("openai-organization", "org"),
            ("openai-project", "proj"),
            ("content-length", "3"),
            ("accept-encoding", "gzip"),
            ("anthropic-version", "2023-06-01"),
            ("content-type", "application/json"),
        ]);
        let expected = headers(&[
            ("accept-encoding", "identity"),
            ("anthropic-version", "2023-06-01"),
            ("content-type", "application/json"),
        ]);
        assert_eq!(forwarded(&all), expected);
    }

    #[test]
    fn a_key_is_found_wherever_an_sdk_sends_it() {
        let key = |pairs: &[_], query| caller_key(&headers(pairs), query).map(Cow::into_owned);
        assert_eq!(key(&[("authorization", "bearer k1")], None).as_deref(), Some("k1"));
        assert_eq!(key(&[("x-api-key", "k2")], None).as_deref(), Some("k2"));
        assert_eq!(key(&[("x-goog-api-key", "k3")], None).as_deref(), Some("k3"));
        assert_eq!(key(&[], Some("alt=sse&key=k%2D4")).as_deref(), Some("k-4"));
        assert_eq!(key(&[("authorization", "Basic x")], Some("alt=sse")), None);
        assert_eq!(without_key("alt=sse&key=k").as_deref(), Some("alt=sse"));
        assert_eq!(without_key("key=k"), None);
        assert_eq!(key(&[], Some("k%65y=k5")).as_deref(), Some("k5"));
        assert_eq!(without_key("%6bey=k&keys=1&key").as_deref(), Some("keys=1"));
    }

    #[test]
    fn waits_are_read_from_headers() {
        let wait = |value| max_wait(&headers(&[(MAX_WAIT, value)]));
        assert_eq!(wait("5"), Ok(Some(Span::from_secs(5))));
        assert_eq!(wait("1500ms"), Ok(Some(Span::from_millis(1_500))));
        assert!(wait("soon").unwrap_err().contains("30s"));
        assert_eq!(max_wait(&HeaderMap::new()), Ok(None));
        let timeout = |value| client_timeout(&headers(&[("x-stainless-timeout", value)]));
        assert_eq!(timeout("600"), Some(Span::from_secs(600)));
        assert_eq!(timeout("59.5"), Some(Span::from_millis(59_500)));
        assert_eq!(timeout("NOT_GIVEN"), None);
    }
}
