//! Policies as they are in force, for people and programs to read.

use serde::{Deserialize, Serialize};
use tollgate::{Headroom, Limit, Policy, Refill, Rule};
#[cfg(feature = "serve")]
use tollgate::{Period, Span};

use super::answer::counted;
use crate::bounds::OVERRIDES_SHOWN_MAX;

/// The source of an override that the configuration has.
pub const FROM_FILE: &str = "file";

/// The source of an override that was made by API.
pub const FROM_API: &str = "api";

/// The answer of `GET /v1/policies`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "serve", derive(schemars::JsonSchema))]
pub struct PoliciesResponse {
    /// Every policy, in the order of the configuration.
    pub policies: Vec<PolicyDescription>,
}

impl<'a> FromIterator<&'a Policy> for PoliciesResponse {
    fn from_iter<I: IntoIterator<Item = &'a Policy>>(policies: I) -> Self {
        Self { policies: policies.into_iter().map(Into::into).collect() }
    }
}

/// One policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "serve", derive(schemars::JsonSchema))]
pub struct PolicyDescription {
    /// The name.
    pub name: String,
    /// Whether a would-be denial admits all the same.
    pub shadow: bool,
    /// What happens when the store cannot answer.
    pub on_store_failure: String,
    /// How long a block of tokens taken in advance may be spent; null if the policy is not leased.
    pub block_ttl: Option<String>,
    /// How many subjects have limits of their own.
    pub overrides: usize,
    /// The limits, in order.
    pub limits: Vec<LimitDescription>,
    /// The subjects with limits of their own, in order: the first thousand.
    #[serde(default)]
    pub overridden: Vec<OverrideDescription>,
}

/// What differs for one subject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "serve", derive(schemars::JsonSchema))]
pub struct OverrideDescription {
    /// For whom.
    pub subject: String,
    /// Who said so: `file`, or `api` for one that was made while the broker ran.
    pub source: String,
    /// The limits that are in force for the subject.
    pub limits: Vec<LimitDescription>,
    /// Why it has no effect; null if it has.
    pub unfit: Option<String>,
}

impl OverrideDescription {
    /// An override that is in force: `policy` is what applies to `subject`.
    #[must_use]
    pub fn of(subject: &str, policy: &Policy, source: &str) -> Self {
        let (subject, source) = (subject.to_owned(), source.to_owned());
        Self { subject, source, limits: limits_of(policy), unfit: None }
    }
}

fn limits_of(policy: &Policy) -> Vec<LimitDescription> {
    let limits = policy.limits().zip(policy.effective());
    limits.map(|(limit, effective)| LimitDescription::of(limit, effective)).collect()
}

impl From<&Policy> for PolicyDescription {
    fn from(policy: &Policy) -> Self {
        let ttl = policy.block_ttl();
        let mut overridden: Vec<_> = policy.overrides().collect();
        overridden.sort_unstable_by_key(|(subject, _)| *subject);
        overridden.truncate(OVERRIDES_SHOWN_MAX);
        Self {
            name: policy.name().to_owned(),
            shadow: policy.is_shadow(),
            on_store_failure: policy.on_store_failure().to_string(),
            block_ttl: (!ttl.is_zero()).then(|| ttl.to_string()),
            overrides: policy.overrides().len(),
            limits: limits_of(policy),
            overridden: overridden
                .into_iter()
                .map(|(subject, policy)| OverrideDescription::of(subject, policy, FROM_FILE))
                .collect(),
        }
    }
}

/// One limit: what was configured, and what follows from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "serve", derive(schemars::JsonSchema))]
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
    /// The headroom, as configured; null if there is none.
    pub headroom: Option<String>,
    /// The margin, as configured; null if there is none.
    pub margin: Option<String>,
    /// The number of slots in the grid of a rolling window; absent for an exact log and for the other rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolution: Option<u32>,
}

/// The number of slots in the grid of a rolling window; `None` for an exact log and for the other rules.
pub(super) fn slots_of(limit: &Limit) -> Option<u32> {
    match limit.rule() {
        Rule::RollingWindow(rule) => rule.slots(),
        _ => None,
    }
}

impl LimitDescription {
    fn of(limit: &Limit, effective: u64) -> Self {
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

/// The window of `rule` in whole seconds, rounded up, where it has one of a known length: for a bucket the time in
/// which it fills, for a calendar its nominal length.
#[cfg(feature = "serve")]
pub(crate) fn window_secs(rule: &Rule) -> Option<u64> {
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
