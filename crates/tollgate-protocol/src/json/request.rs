//! Request bodies and queries.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tollgate::core::bounds::{ID_HORIZON, NAME_BYTES_MAX, NUMBER_MAX, PERMIT_TTL};
use tollgate::incident::RETRY_AFTER_MAX;
use tollgate::spec::LimitSpec;
use tollgate::{Ask, Costs, Error, ErrorKind, Policy, Span, Timestamp};

use super::serde_as;

/// The body of `POST /v1/acquire`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AcquireRequest {
    /// The name of the policy.
    pub policy: String,
    /// The subject.
    pub subject: String,
    /// The cost in each unit; the default is 0, and 1 for `requests`.
    #[serde(default, skip_serializing_if = "Costs::is_empty", with = "serde_as::UnitCosts")]
    pub costs: Costs,
    /// Makes the request idempotent: the same id within two minutes is charged once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// How long to wait for room, in milliseconds; the default is not to wait.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "serde_as::whole"
    )]
    pub wait_ms: Option<u64>,
    /// Remembers the id for less than two minutes, in milliseconds.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "serde_as::whole"
    )]
    pub id_ttl_ms: Option<u64>,
    /// The costs of asks that are queued ahead, in order: the ask is admitted only if there is room for all of them.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "serde_as::whole_amounts"
    )]
    pub behind: Vec<BTreeMap<String, u64>>,
}

impl AcquireRequest {
    /// Converts to an ask under `policy`.
    #[must_use]
    pub fn ask<'a>(&'a self, policy: &'a Policy) -> Ask<'a> {
        let ask = Ask::new(policy, self.subject.as_str()).with_costs(&self.costs);
        with_id(ask, self.id.as_deref(), self.id_ttl_ms, ID_HORIZON)
    }
}

/// The body of `POST /v1/charge`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChargeRequest {
    /// The name of the policy.
    pub policy: String,
    /// The subject.
    pub subject: String,
    /// The cost in each unit; the default is 0, and 1 for `requests`.
    #[serde(default, skip_serializing_if = "Costs::is_empty", with = "serde_as::UnitCosts")]
    pub costs: Costs,
    /// Makes the request idempotent: the same id within two minutes is charged once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// How long the id is remembered, in milliseconds, up to an hour; the default is two minutes.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "serde_as::whole"
    )]
    pub id_ttl_ms: Option<u64>,
}

impl ChargeRequest {
    /// Converts to a charge under `policy`. Its id may be remembered for as long as a permit lives, because arrears of an
    /// outage and foreign permits may be posted that late.
    #[must_use]
    pub fn charge<'a>(&'a self, policy: &'a Policy) -> Ask<'a> {
        let ask = Ask::new(policy, self.subject.as_str()).with_costs(&self.costs);
        with_id(ask, self.id.as_deref(), self.id_ttl_ms, PERMIT_TTL)
    }
}

/// Adds the id of a request to `ask`, remembered for at most `ttl_max`.
fn with_id<'a>(ask: Ask<'a>, id: Option<&'a str>, ttl_ms: Option<u64>, ttl_max: Span) -> Ask<'a> {
    let ttl = ttl_ms.map_or(ID_HORIZON, Span::from_millis);
    match id {
        Some(id) => ask.id_for(id, ttl.min(ttl_max)),
        None => ask,
    }
}

/// The body of `PUT /v1/policies/{name}/overrides/{subject}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OverrideRequest {
    /// The changed limits: the name of each, and the fields that change. Unit and rule cannot change.
    #[schemars(schema_with = "limit_specs")]
    #[serde(deserialize_with = "serde_as::objects")]
    pub limits: Vec<LimitSpec>,
}

/// Returns the schema of the limits of an override. [`LimitSpec`] belongs to the configuration, which has no schemas.
fn limit_specs(_: &mut SchemaGenerator) -> Schema {
    let text = || json!({ "type": "string" });
    let number = || json!({ "type": "integer", "minimum": 0, "maximum": NUMBER_MAX });
    let name = json!({ "type": "string", "minLength": 1, "maxLength": NAME_BYTES_MAX });
    let limit = json!({
        "type": "object",
        "required": ["name"],
        "additionalProperties": false,
        "properties": {
            "name": name, "unit": text(), "rule": text(),
            "limit": number(), "capacity": number(), "resolution": number(),
            "window": text(), "refill": text(), "mode": text(), "period": text(), "time_zone": text(),
            "ttl": text(), "margin": text(),
            "headroom": { "type": ["integer", "string"] },
        },
    });
    let limits = json!({ "type": "array", "items": limit });
    limits.try_into().unwrap_or_default()
}

/// The body of `POST /v1/acquire/batch`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchRequest {
    /// The asks, each decided alone; none may wait.
    #[serde(deserialize_with = "serde_as::objects")]
    pub asks: Vec<AcquireRequest>,
}

/// The body of `POST /v1/settle`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SettleRequest {
    /// The permit token.
    pub permit: String,
    /// The actual cost; a unit that is not named keeps its estimate.
    #[serde(default, with = "serde_as::UnitCosts")]
    pub actual: Costs,
}

/// The body of `POST /v1/release` and `POST /v1/renew`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PermitRequest {
    /// The permit token.
    pub permit: String,
}

/// The body of `POST /v1/close`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CloseRequest {
    /// The name of the policy.
    pub policy: String,
    /// The subject.
    pub subject: String,
    /// The name of the limit.
    pub limit: String,
    /// When the limit opens again.
    #[serde(with = "serde_as::Time")]
    pub until: Timestamp,
}

/// The body of `POST /v1/violations`: a provider refused an admitted call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ViolationRequest {
    /// The name of the policy.
    pub policy: String,
    /// The subject.
    pub subject: String,
    /// The limit that the provider named; the default is the limit with the smallest share left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// The wait that the provider asked for, in milliseconds.
    #[serde(deserialize_with = "serde_as::whole_number")]
    pub retry_after_ms: u64,
    /// The permit of the refused call. A key without the scope `administer` must send it, and closes the limit for at most
    /// `violation_hint_max`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permit: Option<String>,
}

impl ViolationRequest {
    /// Returns the wait that the provider asked for.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if it is zero or beyond [`RETRY_AFTER_MAX`].
    pub fn retry_after(&self) -> Result<Span, Error> {
        let (ms, most) = (self.retry_after_ms, RETRY_AFTER_MAX.as_millis_ceil());
        if (1..=most).contains(&ms) {
            return Ok(Span::from_millis(ms));
        }
        let text = format!(
            "retry_after_ms {ms} must be 1 to {most} ({RETRY_AFTER_MAX}): how long the provider asked to wait"
        );
        Err(Error::new(ErrorKind::Invalid, text))
    }
}

/// The query of `GET` and `DELETE /v1/standing`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StandingQuery {
    /// The name of the policy.
    pub policy: String,
    /// The subject.
    pub subject: String,
}

/// Parses costs as people type them, as in `tokens=3750`.
///
/// # Errors
/// [`ErrorKind::Invalid`] if one is not `unit=number`, or if a unit is named twice.
///
/// ```
/// let costs = tollgate_protocol::json::named_costs(["requests=1", "tokens=3_750"])?;
/// assert_eq!(costs.get("tokens"), Some(3_750));
/// # Ok::<(), tollgate::Error>(())
/// ```
pub fn named_costs<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Costs, Error> {
    let mut costs = Costs::new();
    for text in texts {
        let (unit, amount) = text.split_once('=').ok_or_else(|| not_a_cost(text))?;
        let digits = amount.trim().replace('_', "");
        let amount: u64 = digits.parse().map_err(|_| not_a_cost(text))?;
        if costs.get(unit.trim()).is_some() {
            return Err(Error::new(ErrorKind::Invalid, format!("unit {unit:?} is named twice")));
        }
        costs.set(unit.trim(), amount);
    }
    Ok(costs)
}

fn not_a_cost(text: &str) -> Error {
    Error::new(
        ErrorKind::Invalid,
        format!("{text:?} is not a cost; write a unit and a whole number, as in tokens=3750"),
    )
}
