//! The responses of an endpoint: its body, its headers and its problems.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use tollgate_protocol::json::{Admitted, Denied, PROBLEM_JSON, Problem};

use super::super::endpoints::{Endpoint, Input, Output};
use super::Schemas;

/// Headers of a response: their name in `components`, their name, type and description.
const HEADERS: [(&str, &str, &str, &str); 10] = [
    (
        "RateLimit",
        "RateLimit",
        "string",
        "For each limit what remains (r), and in how many seconds it grows (t): draft-ietf-httpapi-ratelimit-headers-11.",
    ),
    (
        "RateLimitPolicy",
        "RateLimit-Policy",
        "string",
        "For each limit how much (q) in how many seconds (w).",
    ),
    (
        "RetryAfter",
        "Retry-After",
        "integer",
        "After how many seconds to ask again; left out where waiting does not help.",
    ),
    (
        "LegacyLimit",
        "X-RateLimit-Limit",
        "integer",
        "If the server is configured so: the binding limit, or the one with the least left.",
    ),
    ("LegacyRemaining", "X-RateLimit-Remaining", "integer", "What remains of it."),
    ("LegacyReset", "X-RateLimit-Reset", "integer", "In how many seconds that grows."),
    ("Permit", "Tollgate-Permit", "string", "The permit, for the upstream to settle or release."),
    ("Disposition", "Content-Disposition", "string", "A file name made of the id and the format."),
    ("NoSniff", "X-Content-Type-Options", "string", "Always `nosniff`."),
    ("WwwAuthenticate", "WWW-Authenticate", "string", "How to send a key."),
];

const DECISION: &[&str] =
    &["RateLimit", "RateLimitPolicy", "LegacyLimit", "LegacyRemaining", "LegacyReset"];
const PROXY_DECISION: &[&str] =
    &["RateLimit", "RateLimitPolicy", "LegacyLimit", "LegacyRemaining", "LegacyReset", "Permit"];
const DENIAL: &[&str] = &[
    "RetryAfter",
    "RateLimit",
    "RateLimitPolicy",
    "LegacyLimit",
    "LegacyRemaining",
    "LegacyReset",
];

/// Problems by status: their name in `components`, description and headers.
const PROBLEMS: [(u16, &str, &str, &[&str]); 11] = [
    (400, "Invalid", "Bad input, which `detail` names together with what would be right.", &[]),
    (401, "Unauthenticated", "No key, a wrong one, or one that expired.", &["WwwAuthenticate"]),
    (403, "Forbidden", "The key lacks the scope that is named.", &["WwwAuthenticate"]),
    (404, "NotFound", "No such policy or job, or nothing at this path.", &[]),
    (408, "Timeout", "The body did not arrive in time.", &[]),
    (
        409,
        "Conflict",
        "The id was used with other costs or another document, or the document is not finished.",
        &[],
    ),
    (410, "Expired", "The permit or its slot is too old.", &[]),
    (413, "TooLarge", "The body is too large.", &[]),
    (415, "UnsupportedMediaType", "The body is not said to be JSON.", &[]),
    (500, "Corrupt", "What the store keeps cannot be read.", &[]),
    (
        503,
        "Unavailable",
        "The store is away, full or misconfigured, the subject is contended, or the server is stopping.",
        &["RetryAfter"],
    ),
];

/// Returns the headers of `components`.
pub(super) fn headers() -> Map<String, Value> {
    let header = |(name, _, kind, about): (&str, &str, &str, &str)| {
        let value = json!({ "description": about, "schema": { "type": kind } });
        (name.to_owned(), value)
    };
    HEADERS.into_iter().map(header).collect()
}

/// Returns the problems of `components`.
pub(super) fn problems(schemas: &mut Schemas) -> Map<String, Value> {
    let schema = schemas.responses.subschema_for::<Problem>();
    let problem = |(_, name, about, headers): (u16, &str, &str, &[&str])| {
        (name.to_owned(), response(about, PROBLEM_JSON, &json!(schema), headers))
    };
    PROBLEMS.into_iter().map(problem).collect()
}

/// Returns the responses of `endpoint` by status.
pub(super) fn of_endpoint(endpoint: &Endpoint, schemas: &mut Schemas) -> Map<String, Value> {
    let mut all = Map::new();
    for status in statuses(endpoint) {
        if let Some((_, name, ..)) = PROBLEMS.iter().find(|(known, ..)| *known == status) {
            let name = format!("#/components/responses/{name}");
            all.insert(status.to_string(), json!({ "$ref": name }));
        }
    }
    let done = match endpoint.output {
        Output::Json(schema) => {
            let schema = schema(&mut schemas.responses);
            response("Done.", "application/json", &json!(schema), &[])
        }
        Output::Object => response("Yes.", "application/json", &json!({ "type": "object" }), &[]),
        Output::Text(media_type) => {
            response("A page.", media_type, &json!({ "type": "string" }), &[])
        }
        Output::File => response(
            "The file.",
            "application/octet-stream",
            &json!({ "type": "string", "contentMediaType": "application/octet-stream" }),
            &["Disposition", "NoSniff"],
        ),
        Output::Decision | Output::ProxyDecision => {
            let is_proxy = matches!(endpoint.output, Output::ProxyDecision);
            let schema = json!(schemas.responses.subschema_for::<Admitted>());
            let headers = if is_proxy { PROXY_DECISION } else { DECISION };
            let mut done = response("It may go through.", "application/json", &schema, headers);
            done["links"] = links(is_proxy);
            done
        }
    };
    all.insert("200".to_owned(), done);
    if matches!(endpoint.output, Output::Decision | Output::ProxyDecision) {
        let schema = json!(schemas.responses.subschema_for::<Denied>());
        let about = "It may not go through now, and what binds until when.";
        all.insert("429".to_owned(), response(about, PROBLEM_JSON, &schema, DENIAL));
    }
    if matches!(endpoint.output, Output::ProxyDecision) {
        let denied = schemas.responses.subschema_for::<Denied>();
        let problem = schemas.responses.subschema_for::<Problem>();
        let schema = json!({ "anyOf": [problem, denied] });
        let about = "The key lacks the scope; or a refusal, if `refusal=403` says so.";
        let mut headers = DENIAL.to_vec();
        headers.push("WwwAuthenticate");
        all.insert("403".to_owned(), response(about, PROBLEM_JSON, &schema, &headers));
    }
    all
}

fn statuses(endpoint: &Endpoint) -> BTreeSet<u16> {
    let input: &[u16] = match endpoint.input {
        Input::Nothing if !endpoint.path.contains('{') => &[],
        Input::Nothing | Input::Query(_) => &[400],
        Input::Body(_) => &[400, 408, 413, 415],
    };
    let scope: &[u16] = if endpoint.scope.is_some() { &[401, 403] } else { &[] };
    [endpoint.problems, input, scope].concat().into_iter().collect()
}

/// Returns the links from a permit to the endpoints that take it.
fn links(is_proxy: bool) -> Value {
    let permit =
        if is_proxy { "$response.header.Tollgate-Permit" } else { "$response.body#/permit" };
    let link = |id: &str| json!({ "operationId": id, "requestBody": { "permit": permit } });
    json!({ "settle": link("settle"), "release": link("release"), "renew": link("renew") })
}

fn response(about: &str, media_type: &str, schema: &Value, headers: &[&str]) -> Value {
    let header = |name: &&str| {
        let (_, header, ..) = HEADERS.iter().find(|(known, ..)| known == name)?;
        let component = format!("#/components/headers/{name}");
        Some(((*header).to_owned(), json!({ "$ref": component })))
    };
    let headers: Map<String, Value> = headers.iter().filter_map(header).collect();
    let mut response =
        json!({ "description": about, "content": { media_type: { "schema": schema } } });
    if !headers.is_empty() {
        response["headers"] = headers.into();
    }
    response
}
