//! The policies in force, as `GET /v1/policies` lists them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tollgate::policy::{Headroom, Period, Plan, Policies, Refill, Rule};
use tollgate::{Limit, Policy, Span};

use super::response::counted;
use crate::bounds::OVERRIDES_SHOWN_MAX;

/// The source of an override in the configuration.
pub const FROM_FILE: &str = "file";

/// The source of an override made by API.
pub const FROM_API: &str = "api";

/// The response of `GET /v1/policies`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PoliciesResponse {
    /// The policies, in the order of the configuration.
    pub policies: Vec<PolicyDescription>,
    /// The plans, in the order of the configuration; omitted if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plans: Vec<PlanDescription>,
}

impl<'a> FromIterator<&'a Policy> for PoliciesResponse {
    fn from_iter<I: IntoIterator<Item = &'a Policy>>(policies: I) -> Self {
        Self { policies: policies.into_iter().map(Into::into).collect(), plans: Vec::new() }
    }
}

impl From<&Policies> for PoliciesResponse {
    fn from(policies: &Policies) -> Self {
        let plan = |(index, plan): (usize, &Plan)| PlanDescription {
            name: plan.name.clone(),
            subjects: plan.subjects.len(),
            assigned: Vec::new(),
            policies: policies
                .iter()
                .filter_map(|policy| policy.plans().nth(index).flatten())
                .map(PlanNumbers::from)
                .collect(),
        };
        let plans = policies.plans().iter().enumerate().map(plan).collect();
        Self { plans, ..policies.iter().collect::<Self>() }
    }
}

/// A plan: the numbers of its subjects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlanDescription {
    /// The name.
    pub name: String,
    /// The number of subjects, and patterns of subjects, that the configuration puts on it.
    pub subjects: usize,
    /// The subjects that were put on it by API, in order.
    pub assigned: Vec<PlanSubject>,
    /// The policies under which its subjects have other numbers.
    pub policies: Vec<PlanNumbers>,
}

/// A subject that was put on a plan by API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlanSubject {
    /// The subject; each `*` in it matches any text.
    pub subject: String,
    /// Why it has no effect; null if it has one.
    pub unfit: Option<String>,
}

/// The numbers of a plan under one policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlanNumbers {
    /// The policy.
    pub policy: String,
    /// The limits of the subjects.
    pub limits: Vec<LimitDescription>,
    /// Whether nothing is refused; omitted if it is not so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unlimited: bool,
    /// The weight of the subjects; omitted if it is 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: u64,
}

impl From<&Policy> for PlanNumbers {
    fn from(policy: &Policy) -> Self {
        Self {
            policy: policy.name().to_owned(),
            limits: limits_of(policy),
            unlimited: policy.is_unlimited(),
            weight: policy.weight(),
        }
    }
}

/// The response of `PUT /v1/subjects/{subject}/plan`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlanAssignment {
    /// The subject; each `*` in it matches any text.
    pub subject: String,
    /// Its plan.
    pub plan: String,
}

/// One policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyDescription {
    /// The name.
    pub name: String,
    /// Its source: `api`, or omitted if it is in the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Whether denials are only recorded, not enforced.
    pub shadow: bool,
    /// The behaviour while the store is unavailable.
    pub on_store_failure: String,
    /// How long a leased block of tokens may be spent; null if the policy is not leased.
    pub block_ttl: Option<String>,
    /// How often its subjects are served while they wait for a limit that they share; omitted if it is 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: u64,
    /// The number of overridden subjects.
    pub overrides: usize,
    /// The limits, in order.
    pub limits: Vec<LimitDescription>,
    /// The overridden subjects, in order: the first thousand.
    #[serde(default)]
    pub overridden: Vec<OverrideDescription>,
}

/// An override for one subject, or for every subject that a pattern matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OverrideDescription {
    /// The subject; each `*` in it matches any text.
    pub subject: String,
    /// Its source: `file`, or `api`.
    pub source: String,
    /// The limits of the subject.
    pub limits: Vec<LimitDescription>,
    /// Whether nothing is refused; omitted if it is not so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unlimited: bool,
    /// The weight of the subject; omitted if it is 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: u64,
    /// Why it has no effect; null if it has one.
    pub unfit: Option<String>,
}

impl OverrideDescription {
    /// Describes an override in force; `policy` is the subject's.
    #[must_use]
    pub fn new(subject: &str, policy: &Policy, source: &str) -> Self {
        let (subject, source) = (subject.to_owned(), source.to_owned());
        Self {
            subject,
            source,
            limits: limits_of(policy),
            unlimited: policy.is_unlimited(),
            weight: policy.weight(),
            unfit: None,
        }
    }
}

const fn one() -> u64 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
const fn is_one(weight: &u64) -> bool {
    *weight == 1
}

fn limits_of(policy: &Policy) -> Vec<LimitDescription> {
    let limits = policy.limits().zip(policy.effective());
    limits.map(|(limit, effective)| LimitDescription::new(limit, effective)).collect()
}

impl From<&Policy> for PolicyDescription {
    fn from(policy: &Policy) -> Self {
        let ttl = policy.block_ttl();
        let mut overridden: Vec<_> = policy.overrides().collect();
        overridden.sort_unstable_by_key(|(subject, _)| *subject);
        overridden.truncate(OVERRIDES_SHOWN_MAX);
        Self {
            name: policy.name().to_owned(),
            source: None,
            shadow: policy.is_shadow(),
            on_store_failure: policy.on_store_failure().to_string(),
            block_ttl: (!ttl.is_zero()).then(|| ttl.to_string()),
            weight: policy.weight(),
            overrides: policy.overrides().len(),
            limits: limits_of(policy),
            overridden: overridden
                .into_iter()
                .map(|(subject, policy)| OverrideDescription::new(subject, policy, FROM_FILE))
                .collect(),
        }
    }
}

/// One limit, as configured and as enforced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LimitDescription {
    /// The name.
    pub name: String,
    /// The unit it counts.
    pub unit: String,
    /// The rule's name, as in configuration.
    pub rule: String,
    /// The limit or capacity, as configured.
    pub limit: u64,
    /// The most that can be issued at once, after headroom, margin and `block_ttl`.
    pub effective: u64,
    /// The rule in words, as in `5 in any 1m`.
    pub summary: String,
    /// The headroom, as configured; null without one.
    pub headroom: Option<String>,
    /// The margin, as configured; null without one.
    pub margin: Option<String>,
    /// The number of slots of a rolling window; absent for an exact log and other rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolution: Option<u32>,
}

/// Returns the number of slots of a rolling window; `None` for an exact log and other rules.
pub(super) fn slots_of(limit: &Limit) -> Option<u32> {
    match limit.rule() {
        Rule::RollingWindow(rule) => rule.slots(),
        _ => None,
    }
}

impl LimitDescription {
    fn new(limit: &Limit, effective: u64) -> Self {
        let margin = limit.margin_setting();
        Self {
            name: limit.name().to_owned(),
            unit: limit.unit().to_owned(),
            rule: limit.rule().name().to_owned(),
            limit: limit.rule().limit(),
            effective,
            summary: summary_of(limit.rule()),
            headroom: match limit.headroom_setting() {
                Headroom::Units(0) | Headroom::Percent(0) => None,
                Headroom::Units(units) => Some(units.to_string()),
                Headroom::Percent(percent) => Some(format!("{percent}%")),
            },
            margin: (!margin.is_zero()).then(|| margin.to_string()),
            resolution: slots_of(limit),
        }
    }
}

fn summary_of(rule: &Rule) -> String {
    match rule {
        Rule::TokenBucket(rule) => {
            let back = match rule.mode {
                Refill::Continuous => "back",
                Refill::Interval => "back at once",
            };
            format!("{} at once, {} {back} per {}", rule.capacity, rule.refill, rule.period)
        }
        Rule::RollingWindow(rule) => match rule.slots() {
            Some(slots) => {
                let slots = counted(slots.into(), "slots");
                format!("{} in any {}, on a grid of {slots}", rule.limit, rule.window)
            }
            None => format!("{} in any {}", rule.limit, rule.window),
        },
        Rule::CalendarWindow(rule) => {
            format!("{} per {} in {}", rule.limit, rule.period, rule.zone)
        }
        Rule::Concurrency(rule) => {
            format!("{} at the same time, each for {}", rule.limit, rule.ttl)
        }
        other => other.name().to_owned(),
    }
}

/// Returns the window of `rule` in seconds, rounded up, if its length is known: the fill time of a bucket, the nominal
/// length of a calendar window.
pub fn window_secs(rule: &Rule) -> Option<u64> {
    match rule {
        Rule::TokenBucket(rule) => {
            let period = u128::from(rule.period.as_micros());
            let micros = (u128::from(rule.capacity) * period).div_ceil(u128::from(rule.refill));
            let micros = u64::try_from(micros).unwrap_or(u64::MAX);
            Some(Span::from_micros(micros).as_secs_ceil())
        }
        Rule::RollingWindow(rule) => Some(rule.window.as_secs_ceil()),
        Rule::CalendarWindow(rule) => match rule.period {
            Period::Minute => Some(60),
            Period::Hour => Some(3_600),
            Period::Day => Some(86_400),
            Period::Week => Some(604_800),
            Period::Month => None,
        },
        _ => None,
    }
}
