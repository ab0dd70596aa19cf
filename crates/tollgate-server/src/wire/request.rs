//! What callers send.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tollgate::core::bounds::{ID_HORIZON, PERMIT_TTL};
use tollgate::incident::RETRY_AFTER_MAX;
use tollgate::spec::LimitSpec;
use tollgate::{Ask, Costs, Error, ErrorKind, Policy, Span, Timestamp};

use super::text;

/// The body of `POST /v1/acquire`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "serve", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AcquireRequest {
    /// The name of the policy.
    pub policy: String,
    /// For whom.
    pub subject: String,
    /// The cost of each unit; a unit that is not named costs 0, except `requests`, which costs 1.
    #[serde(default, skip_serializing_if = "Costs::is_empty", with = "text::UnitCosts")]
    pub costs: Costs,
    /// Makes a repeat recognisable: the same id within two minutes is charged once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// How long to wait for room, in milliseconds; without it the answer comes at once.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "text::whole")]
    pub wait_ms: Option<u64>,
    /// Remembers the id for a shorter time, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "text::whole")]
    pub id_ttl_ms: Option<u64>,
    /// The costs of those that the ask stands behind, in their order: it is admitted only if there is room for all of
    /// them.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "text::whole_amounts"
    )]
    pub behind: Vec<BTreeMap<String, u64>>,
}

impl AcquireRequest {
    /// The ask that this request means under `policy`.
    #[must_use]
    pub fn ask<'a>(&'a self, policy: &'a Policy) -> Ask<'a> {
        let ask = Ask::new(policy, self.subject.as_str()).with_costs(&self.costs);
        with_id(ask, self.id.as_deref(), self.id_ttl_ms, ID_HORIZON)
    }
}

/// The body of `POST /v1/charge`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "serve", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ChargeRequest {
    /// The name of the policy.
    pub policy: String,
    /// For whom.
    pub subject: String,
    /// The cost of each unit; a unit that is not named costs 0, except `requests`, which costs 1.
    #[serde(default, skip_serializing_if = "Costs::is_empty", with = "text::UnitCosts")]
    pub costs: Costs,
    /// Makes a repeat recognisable: the same id within two minutes is charged once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Remembers the id for another time than two minutes, in milliseconds, up to an hour.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "text::whole")]
    pub id_ttl_ms: Option<u64>,
}

impl ChargeRequest {
    /// The charge that this request means under `policy`. Its id may be remembered for as long as a permit lives: whoever
    /// pays what was spent without the store, or settles what another gave, may come back that late.
    #[must_use]
    pub fn charge<'a>(&'a self, policy: &'a Policy) -> Ask<'a> {
        let ask = Ask::new(policy, self.subject.as_str()).with_costs(&self.costs);
        with_id(ask, self.id.as_deref(), self.id_ttl_ms, PERMIT_TTL)
    }
}

/// `ask` with the id that a request gives it, if any, remembered for `ttl_max` at most.
fn with_id<'a>(ask: Ask<'a>, id: Option<&'a str>, ttl_ms: Option<u64>, ttl_max: Span) -> Ask<'a> {
    let ttl = ttl_ms.map_or(ID_HORIZON, Span::from_millis);
    match id {
        Some(id) => ask.id_for(id, ttl.min(ttl_max)),
        None => ask,
    }
}

/// The body of `PUT /v1/policies/{name}/overrides/{subject}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "serve", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct OverrideRequest {
    /// The limits that differ: the name of each, and the fields that change. Unit and rule stay.
    #[cfg_attr(feature = "serve", schemars(schema_with = "crate::http::limit_specs"))]
    #[serde(deserialize_with = "text::objects")]
    pub limits: Vec<LimitSpec>,
}

/// The body of `POST /v1/acquire/batch`: each ask is decided alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "serve", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BatchRequest {
    /// The asks; none of them waits.
    #[serde(deserialize_with = "text::objects")]
    pub asks: Vec<AcquireRequest>,
}

/// The body of `POST /v1/settle`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "serve", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SettleRequest {
    /// The permit, as it was given out.
    pub permit: String,
    /// What it really cost; a unit that is not named keeps its estimate.
    #[serde(default, with = "text::UnitCosts")]
    pub actual: Costs,
}

/// The body of `POST /v1/release` and `POST /v1/renew`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "serve", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PermitRequest {
    /// The permit, as it was given out.
    pub permit: String,
}

/// The body of `POST /v1/close`: closes a limit until a time, because the provider said no.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "serve", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CloseRequest {
    /// The name of the policy.
    pub policy: String,
    /// For whom.
    pub subject: String,
    /// The name of the limit.
    pub limit: String,
    /// Until when.
    #[serde(with = "text::Time")]
    pub until: Timestamp,
}

/// The body of `POST /v1/violations`: a provider refused what was admitted here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "serve", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ViolationRequest {
    /// The name of the policy.
    pub policy: String,
    /// For whom.
    pub subject: String,
    /// The limit that the provider named; without one that with the smallest part left, which closes the policy just as
    /// well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// How long the provider wants to be left alone, in milliseconds.
    #[serde(deserialize_with = "text::whole_number")]
    pub retry_after_ms: u64,
    /// The permit of the call that the provider refused. A key without the scope `administer` must send it, and closes the
    /// limit for at most `violation_hint_max`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permit: Option<String>,
}

impl ViolationRequest {
    /// How long the provider wants to be left alone.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for no time at all, and for one beyond [`RETRY_AFTER_MAX`].
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "serve", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StandingQuery {
    /// The name of the policy.
    pub policy: String,
    /// For whom.
    pub subject: String,
}

/// Reads costs as people type them, `tokens=3750`, one unit each.
///
/// # Errors
/// [`ErrorKind::Invalid`] if one of them is not `unit=number`, or if a unit is named twice.
///
/// ```
/// let costs = tollgate_server::wire::named_costs(["requests=1", "tokens=3_750"])?;
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
