//! Request bodies and queries.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tollgate::core::bounds::{CHARGES_MAX, ID_HORIZON, NAME_BYTES_MAX, NUMBER_MAX, PERMIT_TTL};
use tollgate::incident::RETRY_AFTER_MAX;
use tollgate::spec::{LimitSpec, OverrideSpec, PolicySpec};
use tollgate::{Ask, Costs, Error, ErrorKind, Permit, Policy, Span, Timestamp};

use super::serde_as;
use crate::permit_token::charges_of;

/// The body of `POST /v1/acquire`: a policy and a subject, or charges.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("anyOf" = one_or_several()))]
pub struct AcquireRequest {
    /// The name of the policy.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub policy: String,
    /// The subject.
    #[serde(default, skip_serializing_if = "String::is_empty")]
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
    /// Instead of a policy and a subject: up to eight of them, decided together. All are charged, or none.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "serde_as::objects"
    )]
    pub charges: Vec<Charge>,
    /// The tenant that takes the turn of the ask where asks wait for a shared limit; the default is the subject of the first
    /// charge. The key must allow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
}

/// The part of an ask that concerns one policy and subject.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Charge {
    /// The name of the policy.
    pub policy: String,
    /// The subject.
    pub subject: String,
    /// Costs of its own. The costs of the ask do not apply to it then, and it is settled by its own actual costs. Without
    /// them, the costs of the ask apply, as far as its policy has their units.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "serde_as::MaybeUnitCosts")]
    pub costs: Option<Costs>,
}

/// The two forms of an ask, as alternatives of a schema.
fn one_or_several() -> serde_json::Value {
    json!([{ "required": ["policy", "subject"] }, { "required": ["charges"] }])
}

/// The policies of the charges of a request, in its order.
#[derive(Clone, Debug)]
pub struct AskPolicies {
    /// The policy of the first charge.
    pub first: Policy,
    /// Those of the other charges.
    pub more: Vec<Policy>,
}

impl AskPolicies {
    /// Returns the policy of the charge at `index`.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&Policy> {
        index.checked_sub(1).map_or(Some(&self.first), |index| self.more.get(index))
    }

    fn iter(&self) -> impl Iterator<Item = &Policy> {
        std::iter::once(&self.first).chain(&self.more)
    }
}

impl AcquireRequest {
    /// Resolves the policies: `find` returns the one of a name, for a subject.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if the request has neither form or both, or too many charges, and the errors of
    /// `find`.
    pub fn resolve(
        &self,
        mut find: impl FnMut(&str, &str) -> Result<Policy, Error>,
    ) -> Result<AskPolicies, Error> {
        let invalid = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        let is_single = !self.policy.is_empty() || !self.subject.is_empty();
        let [first, more @ ..] = &*self.charges else {
            if self.policy.is_empty() {
                return invalid(
                    "missing field `policy`; name a policy and a subject, or charges".to_owned(),
                );
            }
            return Ok(AskPolicies { first: find(&self.policy, &self.subject)?, more: Vec::new() });
        };
        if is_single {
            return invalid(
                "charges: name either a policy and a subject, or charges, not both".to_owned(),
            );
        }
        if CHARGES_MAX <= more.len() {
            let count = self.charges.len();
            return invalid(format!(
                "charges: an ask has at most {CHARGES_MAX} charges, not {count}"
            ));
        }
        if !self.behind.is_empty() && !more.is_empty() {
            return invalid("behind: an ask with several charges has no others ahead".to_owned());
        }
        let first = find(&first.policy, &first.subject)?;
        let more = more.iter().map(|charge| find(&charge.policy, &charge.subject));
        Ok(AskPolicies { first, more: more.collect::<Result<_, _>>()? })
    }

    /// Returns the subject of the charge at `index`; empty if there is none.
    #[must_use]
    pub fn subject_of(&self, index: usize) -> &str {
        match self.charges.get(index) {
            Some(charge) => &charge.subject,
            None => &self.subject,
        }
    }

    /// Converts to an ask under `policies`.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for costs that apply to no charge.
    pub fn ask<'a>(&'a self, policies: &'a AskPolicies) -> Result<Ask<'a>, Error> {
        let ask = match &self.tenant {
            // Its weight is that of the first policy, or of its override there.
            Some(tenant) => {
                let weight = policies.first.for_subject(tenant).weight();
                self.charged(policies)?.for_tenant(tenant.as_str(), weight)
            }
            None => self.charged(policies)?,
        };
        Ok(with_id(ask, self.id.as_deref(), self.id_ttl_ms, ID_HORIZON))
    }

    /// Converts to a charge under `policies`. Its id may be remembered for as long as a permit lives, because arrears of an
    /// outage and foreign permits may be posted that late.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for costs that apply to no charge.
    pub fn charge<'a>(&'a self, policies: &'a AskPolicies) -> Result<Ask<'a>, Error> {
        Ok(with_id(self.charged(policies)?, self.id.as_deref(), self.id_ttl_ms, PERMIT_TTL))
    }

    fn charged<'a>(&'a self, policies: &'a AskPolicies) -> Result<Ask<'a>, Error> {
        let [first, more @ ..] = &*self.charges else {
            return Ok(Ask::new(&policies.first, &*self.subject).with_costs(&self.costs));
        };
        if more.is_empty() {
            // The costs of one charge are those of the ask.
            let costs = match &first.costs {
                Some(_) if !self.costs.is_empty() => {
                    let text =
                        "costs: the only charge has costs of its own; name them in one place";
                    return Err(Error::new(ErrorKind::Invalid, text));
                }
                own => own.as_ref().unwrap_or(&self.costs),
            };
            return Ok(Ask::new(&policies.first, &*first.subject).with_costs(costs));
        }
        self.check_units(policies)?;
        let mut ask = match &first.costs {
            Some(costs) => Ask::new_costing(&policies.first, &*first.subject, costs),
            None => Ask::new(&policies.first, &*first.subject),
        };
        for (charge, policy) in more.iter().zip(&policies.more) {
            ask = match &charge.costs {
                Some(costs) => ask.and_costing(policy, &*charge.subject, costs),
                None => ask.and(policy, &*charge.subject),
            };
        }
        Ok(ask.with_costs(&self.costs))
    }

    /// Reports costs that apply to no charge.
    fn check_units(&self, policies: &AskPolicies) -> Result<(), Error> {
        let sharing = || {
            let charges = self.charges.iter().zip(policies.iter());
            charges.filter(|(charge, _)| charge.costs.is_none()).map(|(_, policy)| policy)
        };
        let is_placed = |unit: &str| sharing().any(|policy| policy.units().any(|own| own == unit));
        let Some((unit, _)) = self.costs.iter().find(|(unit, _)| !is_placed(unit)) else {
            return Ok(());
        };
        let mut units: Vec<&str> = sharing().flat_map(Policy::units).collect();
        units.sort_unstable();
        units.dedup();
        let text = match &*units {
            [] => "costs: every charge has costs of its own; leave costs out".to_owned(),
            units => format!(
                "costs: no charge without costs of its own has a limit on {unit:?}; they count {}",
                units.join(", ")
            ),
        };
        Err(Error::new(ErrorKind::Invalid, text))
    }
}

/// The body of `POST /v1/charge`: a policy and a subject, or charges.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("anyOf" = one_or_several()))]
pub struct ChargeRequest {
    /// The name of the policy.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub policy: String,
    /// The subject.
    #[serde(default, skip_serializing_if = "String::is_empty")]
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
    /// Instead of a policy and a subject: up to eight of them, charged together.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "serde_as::objects"
    )]
    pub charges: Vec<Charge>,
}

impl From<ChargeRequest> for AcquireRequest {
    fn from(request: ChargeRequest) -> Self {
        let ChargeRequest { policy, subject, costs, id, id_ttl_ms, charges } = request;
        Self { policy, subject, costs, id, id_ttl_ms, charges, ..Self::default() }
    }
}

impl From<AcquireRequest> for ChargeRequest {
    fn from(request: AcquireRequest) -> Self {
        let AcquireRequest { policy, subject, costs, id, id_ttl_ms, charges, .. } = request;
        Self { policy, subject, costs, id, id_ttl_ms, charges }
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
    /// The changed limits: the name of each, and the fields that change. Unit and rule cannot change. May be left out if the
    /// weight changes.
    #[schemars(schema_with = "limit_specs")]
    #[serde(default, deserialize_with = "serde_as::objects")]
    pub limits: Vec<LimitSpec>,
    /// 0 to block the subject: every limit is 0, and every ask that costs something is denied. Not together with `limits`.
    #[schemars(range(min = 0, max = 0))]
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "serde_as::whole"
    )]
    pub limit: Option<u64>,
    /// Whether nothing is refused; usage still counts, up to the limits. Not together with `limits` or `limit`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unlimited: bool,
    /// How often the subject is served while it waits for a limit that it shares, 1 to 1,000; the default is that of the
    /// policy.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "serde_as::whole"
    )]
    pub weight: Option<u64>,
}

impl OverrideRequest {
    /// Returns the override of `subject`.
    #[must_use]
    pub fn for_subject(self, subject: String) -> OverrideSpec {
        let Self { limits, limit, unlimited, weight } = self;
        OverrideSpec { subject, limits, limit, unlimited, weight }
    }
}

/// The body of `PUT /v1/policies/{name}`: a policy as in the configuration, without overrides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyRequest {
    /// The limits, 1 to 16.
    #[schemars(schema_with = "limit_specs")]
    #[serde(deserialize_with = "serde_as::objects")]
    pub limits: Vec<LimitSpec>,
    /// Whether denials are only recorded, not enforced.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shadow: bool,
    /// The behaviour while the store is unavailable: `closed`, `open` or `fallback`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_store_failure: Option<String>,
    /// How long a leased block of tokens may be spent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_ttl: Option<String>,
    /// The most subjects that a store in memory or a folder keeps entries for.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "serde_as::whole"
    )]
    pub subjects_max: Option<u64>,
    /// How often its subjects are served while they wait for a limit that they share, 1 to 1,000.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "serde_as::whole"
    )]
    pub weight: Option<u64>,
}

impl PolicyRequest {
    /// Returns the policy called `name`.
    #[must_use]
    pub fn named(self, name: String) -> PolicySpec {
        let Self { limits, shadow, on_store_failure, block_ttl, subjects_max, weight } = self;
        let overrides = Vec::new();
        PolicySpec {
            name,
            limits,
            shadow,
            on_store_failure,
            block_ttl,
            subjects_max,
            weight,
            overrides,
        }
    }
}

/// The body of `PUT /v1/subjects/{subject}/plan`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanRequest {
    /// The name of a plan in the configuration.
    pub plan: String,
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
    /// Actual costs of single charges. Without `actual`, only these charges are settled.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "serde_as::objects"
    )]
    pub charges: Vec<ChargeActual>,
}

impl SettleRequest {
    /// Returns the charges of `permit` with actual costs of their own, to be settled first.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if the permit has no charge of an index.
    pub fn own<'a>(
        &'a self,
        permit: &'a Permit,
    ) -> Result<Vec<(Cow<'a, Permit>, &'a Costs)>, Error> {
        let part = |ChargeActual { charge, actual }: &'a ChargeActual| {
            let (tenant, weight) = permit.tenant();
            let part = permit.parts().nth(*charge).ok_or_else(|| {
                let last = permit.more().len();
                let text = format!(
                    "there is no charge {charge}; the charges of this permit have the indexes 0 to {last}"
                );
                Error::new(ErrorKind::Invalid, text)
            })?;
            // A charge after the first counts for the tenant of the ask, too.
            let part = match charge {
                0 => part,
                _ => Cow::Owned(part.into_owned().with_tenant(tenant, weight)),
            };
            Ok((part, actual))
        };
        self.charges.iter().map(part).collect()
    }

    /// Returns whether all charges are settled, not only those with actual costs of their own.
    #[must_use]
    pub fn settles_all(&self) -> bool {
        self.charges.is_empty() || !self.actual.is_empty()
    }
}

/// The actual cost of one charge of a permit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChargeActual {
    /// The index of the charge in the ask, from 0.
    pub charge: usize,
    /// Its actual cost; a unit that is not named keeps its estimate.
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("anyOf" = charge_or_permit()))]
pub struct ViolationRequest {
    /// The name of the policy. May be left out with a permit, which is then meant with all charges.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub policy: String,
    /// The subject. May be left out with a permit.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub subject: String,
    /// The limit that the provider named, which is closed for every charge that is meant and has it; the default is the
    /// limit with the smallest share left of all.
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

/// What names the charges of a violation, as alternatives of a schema.
fn charge_or_permit() -> serde_json::Value {
    json!([{ "required": ["policy", "subject"] }, { "required": ["permit"] }])
}

impl ViolationRequest {
    /// Returns the charges of `permit` that are meant: those of the policy and the subject, as far as they are named.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if the permit has no such charge.
    pub fn charges<'a>(&self, permit: &'a Permit) -> Result<Vec<&'a Permit>, Error> {
        let is_named = |named: &str, of: &str| named.is_empty() || named == of;
        let charges = charges_of(permit).filter(|charge| {
            is_named(&self.policy, charge.policy().name())
                && is_named(&self.subject, charge.subject())
        });
        let charges: Vec<&Permit> = charges.collect();
        if charges.is_empty() {
            let own = charges_of(permit).map(|charge| {
                format!("subject {:?} of policy {:?}", charge.subject(), charge.policy().name())
            });
            let own = own.collect::<Vec<_>>().join(", ");
            let text = format!("the permit is for {own}; report the violation of that one");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(charges)
    }

    /// Reports a policy or a subject that is missing without a permit.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if one is missing.
    pub fn check_named(&self) -> Result<(), Error> {
        for (name, text) in [("policy", &self.policy), ("subject", &self.subject)] {
            if text.is_empty() && self.permit.is_none() {
                let text = format!(
                    "missing field `{name}`; name a policy and a subject, or send the permit"
                );
                return Err(Error::new(ErrorKind::Invalid, text));
            }
        }
        Ok(())
    }

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
