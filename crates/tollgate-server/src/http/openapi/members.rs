//! Bounds of members, and the schema of an incident, whose crate has no schemas.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Value, json};
use tollgate::audit::PAGE_MAX;
use tollgate::core::bounds::{
    BEHIND_MAX, CHARGES_MAX, ID_BYTES_MAX, NAME_BYTES_MAX, NUMBER_MAX, SUBJECT_BYTES_MAX, UNITS_MAX,
};
use tollgate::incident::{ACQUISITIONS_MAX, OPEN_MAX, RETRY_AFTER_MAX};
use tollgate_protocol::permit_token::TOKEN_CHARS_MAX;

use super::super::endpoints::SchemaOf;
use crate::bounds::{BATCH_ASKS_MAX, HOPS_MAX, WAIT_MAX};

/// A length of time, or a time.
const SINCE: &str = r"^\s*(([0-9]+(us|ms|s|m|h|d)\s*)+|[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9:.,]+([Zz]|[+-][0-9:]+))\s*$";

/// Returns the bounds of a member of a request by its name. Texts are bounded in bytes, of which there are never fewer
/// than characters, so a longer text is always refused.
fn bounds_of(name: &str) -> Value {
    match name {
        "policy" | "name" | "plan" | "limit_name" => {
            json!({ "minLength": 1, "maxLength": NAME_BYTES_MAX })
        }
        "subject" => json!({ "minLength": 1, "maxLength": SUBJECT_BYTES_MAX }),
        "id" => json!({ "minLength": 1, "maxLength": ID_BYTES_MAX }),
        "permit" => json!({ "minLength": 1, "maxLength": TOKEN_CHARS_MAX }),
        "wait_ms" => json!({ "maximum": WAIT_MAX.as_millis_ceil() }),
        "retry_after_ms" => json!({ "minimum": 1, "maximum": RETRY_AFTER_MAX.as_millis_ceil() }),
        "costs" | "actual" => json!({ "maxProperties": UNITS_MAX }),
        "asks" => json!({ "maxItems": BATCH_ASKS_MAX }),
        "behind" => json!({ "maxItems": BEHIND_MAX }),
        "charges" => json!({ "maxItems": CHARGES_MAX }),
        "limit" => json!({ "minimum": 1, "maximum": PAGE_MAX }),
        "hops" => json!({ "minimum": 1, "maximum": HOPS_MAX }),
        "since" => json!({ "pattern": SINCE }),
        "step" => json!({ "enum": ["10s", "5m"] }),
        "refusal" => json!({ "enum": [403, 429] }),
        "outcome" => {
            json!({ "enum": [
                "admitted", "denied", "shadow_denied", "violated", "reset", "overridden", "restored", "assigned", "unassigned", "defined", "removed",
                "closed", "charged", "reloaded", "unauthenticated", "degraded"
            ] })
        }
        _ => json!({}),
    }
}

/// Adds the bounds of each member to `schema`.
pub(super) fn bound(schema: &mut Value) {
    let Some(members) = schema.get_mut("properties").and_then(Value::as_object_mut) else { return };
    for (name, member) in members {
        add(name, member);
    }
}

fn add(name: &str, member: &mut Value) {
    let Value::Object(bounds) = bounds_of(name) else { return };
    let is_text = member["type"] == "string" || member["type"][0] == "string";
    // A limit is a name where it is text, and a number of records where it is not.
    let bounds = match bounds_of("limit_name") {
        Value::Object(named) if name == "limit" && is_text => named,
        // That of an override has bounds of its own.
        _ if name == "limit" && member.get("maximum").is_some() => return,
        // In a query, charges are one text.
        _ if name == "charges" && is_text => return,
        _ => bounds,
    };
    let Some(member) = member.as_object_mut() else { return };
    member.extend(bounds);
    if let Some(costs) = member.get_mut("additionalProperties").and_then(Value::as_object_mut) {
        costs.insert("maximum".to_owned(), NUMBER_MAX.into());
    }
}

/// Returns the members of a query as parameters.
pub(super) fn query(schema: SchemaOf, generator: &mut SchemaGenerator) -> Vec<Value> {
    // The structure itself rather than a reference, which would leave an unused component.
    let reference = schema(generator);
    let name =
        reference.get("$ref").and_then(Value::as_str).and_then(|name| name.rsplit('/').next());
    let query = name.and_then(|name| generator.definitions_mut().remove(name)).unwrap_or_default();
    let required = query["required"].as_array().cloned().unwrap_or_default();
    let Some(members) = query["properties"].as_object() else { return Vec::new() };
    let parameter = |(name, member): (&String, &Value)| {
        let mut schema = member.clone();
        add(name, &mut schema);
        // A parameter that is there is not null.
        if let Some(kind) = schema["type"].as_array().and_then(|kinds| kinds.first()).cloned() {
            schema["type"] = kind;
        }
        let about = schema.as_object_mut().and_then(|schema| schema.remove("description"));
        json!({
            "name": name,
            "in": "query",
            "required": required.contains(&json!(name)),
            "description": about,
            "schema": schema,
        })
    };
    members.iter().map(parameter).collect()
}

/// Returns the names in braces of a path as parameters.
pub(super) fn of_path(path: &str) -> Vec<Value> {
    let names = path.split('{').skip(1).filter_map(|rest| rest.split('}').next());
    let parameter = |name| {
        let mut schema = json!({ "type": "string" });
        add(name, &mut schema);
        json!({ "name": name, "in": "path", "required": true, "schema": schema })
    };
    names.map(parameter).collect()
}

/// Returns the schema of [`tollgate::incident::Incident`], the response of `POST /v1/violations`.
pub(crate) fn incident(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<Incident>()
}

/// What was known when a provider refused a call.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "described, never constructed")]
struct Incident {
    /// Finds the same incident in the log, the notification and the file.
    id: String,
    /// When it was reported.
    #[schemars(extend("format" = "date-time"))]
    at: String,
    /// The name of the policy.
    policy: String,
    /// The subject.
    subject: String,
    /// The limit that was closed.
    limit: String,
    /// Until when the provider wants to be left alone.
    #[schemars(extend("format" = "date-time"))]
    until: String,
    /// Whether the gate is closed until then.
    closed: bool,
    /// Why it is not, or why the standing of the limits is missing.
    #[schemars(skip_serializing_if = "Option::is_none")]
    trouble: Option<String>,
    /// The standing of the subject before the limit was closed.
    limits: Vec<LimitState>,
    /// Permits that were neither settled nor released at that moment.
    #[schemars(range(max = OPEN_MAX))]
    in_flight: usize,
    /// The last acquisitions of the subject, oldest first.
    #[schemars(length(max = ACQUISITIONS_MAX))]
    acquisitions: Vec<Acquisition>,
}

/// The standing of the subject on one limit.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "described, never constructed")]
struct LimitState {
    name: String,
    unit: String,
    limit: u64,
    used: u64,
    remaining: u64,
}

/// One answer to one ask of the subject.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "described, never constructed")]
struct Acquisition {
    #[schemars(extend("format" = "date-time"))]
    at: String,
    admitted: bool,
    degraded: bool,
    /// The costs of the ask, as in `requests=1 tokens=3750`.
    costs: String,
}
