//! HTTP requests and responses as events of a function URL, or of API Gateway, in payload format 2.0.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use tollgate::ErrorKind;
use tollgate_server::{HttpRequest, HttpResponse};

use tollgate_terminal::Failure;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct UrlEvent {
    raw_path: String,
    #[serde(default)]
    raw_query_string: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    body: Option<String>,
    #[serde(default)]
    is_base64_encoded: bool,
    request_context: Context,
}

#[derive(Debug, Deserialize)]
struct Context {
    http: Http,
}

#[derive(Debug, Deserialize)]
struct Http {
    method: String,
}

/// An HTTP response.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UrlResponse {
    status_code: u16,
    headers: BTreeMap<String, String>,
    body: String,
    is_base64_encoded: bool,
}

/// Parses the request in `event`.
pub(super) fn request(event: &[u8]) -> Result<HttpRequest, Failure> {
    let wrong = |why: &dyn std::fmt::Display| {
        let text = format!(
            "the event is not a request of a function URL or an HTTP API in payload format 2.0: {why}"
        );
        Failure::new(ErrorKind::Invalid, text)
    };
    let event: UrlEvent = serde_json::from_slice(event).map_err(|error| wrong(&error))?;
    let body = match (event.body, event.is_base64_encoded) {
        (None, _) => Vec::new(),
        (Some(text), false) => text.into_bytes(),
        (Some(text), true) => STANDARD.decode(text).map_err(|error| wrong(&error))?,
    };
    let target = match event.raw_query_string.as_str() {
        "" => event.raw_path,
        query => format!("{}?{query}", event.raw_path),
    };
    let method = event.request_context.http.method;
    Ok(HttpRequest { method, target, fields: event.headers.into_iter().collect(), body })
}

impl From<HttpResponse> for UrlResponse {
    fn from(reply: HttpResponse) -> Self {
        let mut headers: BTreeMap<String, String> = BTreeMap::new();
        for (name, value) in reply.fields {
            headers
                .entry(name)
                .and_modify(|all| {
                    all.push_str(", ");
                    all.push_str(&value);
                })
                .or_insert(value);
        }
        let (body, is_base64_encoded) = match String::from_utf8(reply.body) {
            Ok(text) => (text, false),
            Err(error) => (STANDARD.encode(error.as_bytes()), true),
        };
        Self { status_code: reply.status, headers, body, is_base64_encoded }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_a_request_and_a_reply_is_an_answer() {
        let event = json!({
            "version": "2.0", "rawPath": "/v1/a%20b", "rawQueryString": "x=1&y=%2F", "headers": { "host": "h" },
            "requestContext": { "http": { "method": "PUT" } }, "body": "eyJhIjoxfQ==", "isBase64Encoded": true,
        });
        let request = request(event.to_string().as_bytes()).expect("a request");
        let fields = vec![("host".to_owned(), "h".to_owned())];
        let expected = HttpRequest {
            method: "PUT".to_owned(),
            target: "/v1/a%20b?x=1&y=%2F".to_owned(),
            fields,
            body: b"{\"a\":1}".to_vec(),
        };
        assert_eq!(request, expected);
        let fields = [("a", "1"), ("b", "2"), ("a", "3")];
        let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let response = UrlResponse::from(HttpResponse { status: 429, fields, body: vec![0xff] });
        let expected = json!({
            "statusCode": 429, "headers": { "a": "1, 3", "b": "2" }, "body": "/w==", "isBase64Encoded": true,
        });
        assert_eq!(serde_json::to_value(&response).expect("JSON"), expected);
    }
}
