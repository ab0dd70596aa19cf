//! What comes back from a call: its own answer, the fields that go with it, and the problems it may have.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::Schemas;
use super::calls::{Call, Gives, Takes};
use crate::wire::{Admitted, Denied, PROBLEM_JSON, Problem};

/// Fields of a response, by their name in `components`.
const FIELDS: [(&str, &str, &str, &str); 10] = [
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
    (
        "Permit",
        "Tollgate-Permit",
        "string",
        "The permit, for whoever answers the request to settle or release.",
    ),
    ("Disposition", "Content-Disposition", "string", "A file name made of the id and the format."),
    ("NoSniff", "X-Content-Type-Options", "string", "Always `nosniff`."),
    ("WwwAuthenticate", "WWW-Authenticate", "string", "How to send a key."),
];

const DECISION: &[&str] =
    &["RateLimit", "RateLimitPolicy", "LegacyLimit", "LegacyRemaining", "LegacyReset"];
const PASSAGE: &[&str] =
    &["RateLimit", "RateLimitPolicy", "LegacyLimit", "LegacyRemaining", "LegacyReset", "Permit"];
const REFUSAL: &[&str] = &[
    "RetryAfter",
    "RateLimit",
    "RateLimitPolicy",
    "LegacyLimit",
    "LegacyRemaining",
    "LegacyReset",
];

/// Problems by status: the name in `components`, what it means, and its fields.
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

/// The fields that responses may have.
pub(super) fn fields() -> Map<String, Value> {
    let field = |(name, _, kind, about): (&str, &str, &str, &str)| {
        let value = json!({ "description": about, "schema": { "type": kind } });
        (name.to_owned(), value)
    };
    FIELDS.into_iter().map(field).collect()
}

/// The problems that calls may have.
pub(super) fn problems(schemas: &mut Schemas) -> Map<String, Value> {
    let schema = schemas.answers.subschema_for::<Problem>();
    let problem = |(_, name, about, fields): (u16, &str, &str, &[&str])| {
        (name.to_owned(), response(about, PROBLEM_JSON, &json!(schema), fields))
    };
    PROBLEMS.into_iter().map(problem).collect()
}

/// Every answer of `call`, by status.
pub(super) fn of(call: &Call, schemas: &mut Schemas) -> Map<String, Value> {
    let mut all = Map::new();
    for status in statuses(call) {
        if let Some((_, name, ..)) = PROBLEMS.iter().find(|(known, ..)| *known == status) {
            let name = format!("#/components/responses/{name}");
            all.insert(status.to_string(), json!({ "$ref": name }));
        }
    }
    let done = match call.gives {
        Gives::Json(schema) => {
            let schema = schema(&mut schemas.answers);
            response("Done.", "application/json", &json!(schema), &[])
        }
        Gives::Object => response("Yes.", "application/json", &json!({ "type": "object" }), &[]),
        Gives::Text(media_type) => {
            response("A page.", media_type, &json!({ "type": "string" }), &[])
        }
        Gives::File => response(
            "The file.",
            "application/octet-stream",
            &json!({ "type": "string", "contentMediaType": "application/octet-stream" }),
            &["Disposition", "NoSniff"],
        ),
        Gives::Decision | Gives::Passage => {
            let is_passage = matches!(call.gives, Gives::Passage);
            let schema = json!(schemas.answers.subschema_for::<Admitted>());
            let fields = if is_passage { PASSAGE } else { DECISION };
            let mut done = response("It may go through.", "application/json", &schema, fields);
            done["links"] = links(is_passage);
            done
        }
    };
    all.insert("200".to_owned(), done);
    if matches!(call.gives, Gives::Decision | Gives::Passage) {
        let schema = json!(schemas.answers.subschema_for::<Denied>());
        let about = "It may not go through now, and what binds until when.";
        all.insert("429".to_owned(), response(about, PROBLEM_JSON, &schema, REFUSAL));
    }
    if matches!(call.gives, Gives::Passage) {
        let denied = schemas.answers.subschema_for::<Denied>();
        let problem = schemas.answers.subschema_for::<Problem>();
        let schema = json!({ "anyOf": [problem, denied] });
        let about = "The key lacks the scope; or a refusal, if `refusal=403` says so.";
        let mut fields = REFUSAL.to_vec();
        fields.push("WwwAuthenticate");
        all.insert("403".to_owned(), response(about, PROBLEM_JSON, &schema, &fields));
    }
    all
}

fn statuses(call: &Call) -> BTreeSet<u16> {
    let input: &[u16] = match call.takes {
        Takes::Nothing if !call.path.contains('{') => &[],
        Takes::Nothing | Takes::Query(_) => &[400],
        Takes::Body(_) => &[400, 408, 413, 415],
    };
    let scope: &[u16] = if call.scope.is_some() { &[401, 403] } else { &[] };
    [call.problems, input, scope].concat().into_iter().collect()
}

/// The permit of an answer is what these calls take.
fn links(is_passage: bool) -> Value {
    let permit =
        if is_passage { "$response.header.Tollgate-Permit" } else { "$response.body#/permit" };
    let link = |id: &str| json!({ "operationId": id, "requestBody": { "permit": permit } });
    json!({ "settle": link("settle"), "release": link("release"), "renew": link("renew") })
}

fn response(about: &str, media_type: &str, schema: &Value, fields: &[&str]) -> Value {
    let header = |name: &&str| {
        let (_, field, ..) = FIELDS.iter().find(|(known, ..)| known == name)?;
        let component = format!("#/components/headers/{name}");
        Some(((*field).to_owned(), json!({ "$ref": component })))
    };
    let headers: Map<String, Value> = fields.iter().filter_map(header).collect();
    let mut response =
        json!({ "description": about, "content": { media_type: { "schema": schema } } });
    if !headers.is_empty() {
        response["headers"] = headers.into();
    }
    response
}
