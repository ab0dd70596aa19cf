//! What callers get.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tollgate::core::ahead_for_people;
use tollgate::{Decision, Denial, Limit, Permit, Policy, Span, Standing, Timestamp};

use super::policy::slots_of;
use super::problem::{Problem, QUOTA_EXCEEDED};
use super::text;
use crate::token;

/// Where a subject stands on one limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "serve", derive(schemars::JsonSchema))]
pub struct LimitStanding {
    /// The name of the limit.
    pub name: Arc<str>,
    /// The unit it counts.
    pub unit: Arc<str>,
    /// The limit, as configured.
    pub limit: u64,
    /// What is used now.
    pub used: u64,
    /// What could be asked for now.
    pub remaining: u64,
    /// When `remaining` next grows; null if it is as large as it gets.
    #[serde(with = "text::MaybeTime")]
    pub reset_at: Option<Timestamp>,
    /// The same as a length of time for people, as in `2h 15m`.
    pub reset_in: Option<String>,
    /// When nothing is used any more; null if nothing is used now.
    #[serde(with = "text::MaybeTime")]
    pub full_at: Option<Timestamp>,
    /// When a bucket was last refilled; null for the other rules.
    #[serde(default, with = "text::MaybeTime")]
    pub refilled_at: Option<Timestamp>,
    /// The number of slots in the grid of a rolling window, in the answer to `GET /v1/standing`; absent for an exact log and
    /// for the other rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolution: Option<u32>,
}

impl LimitStanding {
    /// `standing` as it is read at `now`.
    #[must_use]
    pub fn of(standing: &Standing, now: Timestamp) -> Self {
        Self {
            name: Arc::clone(&standing.name),
            unit: Arc::clone(&standing.unit),
            limit: standing.limit,
            used: standing.used,
            remaining: standing.remaining,
            reset_at: standing.reset_at,
            reset_in: standing.reset_at.map(|at| at.since(now).for_people()),
            full_at: standing.full_at,
            refilled_at: standing.refilled_at,
            resolution: None,
        }
    }

    /// Every one of `standings` as it is read at `now`.
    #[must_use]
    pub fn all(standings: &[Standing], now: Timestamp) -> Vec<Self> {
        standings.iter().map(|standing| Self::of(standing, now)).collect()
    }
}

/// The answer to an ask that went through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "serve", derive(schemars::JsonSchema))]
pub struct Admitted {
    /// Always true.
    pub admitted: bool,
    /// The permit, to be settled, released or renewed.
    pub permit: String,
    /// Where the subject stands now.
    pub limits: Vec<LimitStanding>,
    /// Whether this was decided without the store.
    pub degraded: bool,
    /// Until when the admitted call should reach the provider.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text::MaybeTime")]
    pub use_by: Option<Timestamp>,
    /// When the slots it holds expire.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text::MaybeTime")]
    pub expires_at: Option<Timestamp>,
    /// The denial that a policy in shadow mode did not enforce; nothing was charged then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow_denied: Option<Box<Denied>>,
}

impl Admitted {
    /// The answer that carries `permit`, sealed with `key`, as it is read at `now`.
    #[must_use]
    pub fn of(permit: &Permit, key: &token::Key, now: Timestamp) -> Self {
        Self {
            admitted: true,
            permit: token::encode(permit, key),
            limits: LimitStanding::all(&permit.limits, now),
            degraded: permit.degraded,
            use_by: permit.use_by(),
            expires_at: permit.expires_at(),
            shadow_denied: permit.shadow_denied.as_deref().map(|denial| Box::new(denial.into())),
        }
    }
}

/// The answer to an ask that did not go through: a problem document of status 429.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "serve", derive(schemars::JsonSchema))]
pub struct Denied {
    /// The problem type: [`QUOTA_EXCEEDED`].
    #[serde(rename = "type")]
    pub type_uri: String,
    /// The problem type in words.
    pub title: String,
    /// Always 429.
    pub status: u16,
    /// What binds, and until when, in a sentence.
    pub detail: String,
    /// Always false.
    pub admitted: bool,
    /// The name of the policy.
    pub policy: Arc<str>,
    /// The name of the binding limit.
    pub limit: Arc<str>,
    /// The same for programs that know the problem type.
    #[serde(rename = "violated-policies")]
    pub violated_policies: Vec<Arc<str>>,
    /// The unit of the binding limit.
    pub unit: Arc<str>,
    /// How much of that unit was asked for.
    pub asked: u64,
    /// The most that could ever be asked for at once.
    pub most: u64,
    /// How long to wait, in milliseconds, rounded up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// The instant from which the ask would be admitted.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text::MaybeTime")]
    pub reset_at: Option<Timestamp>,
    /// True if `retry_after_ms` and `reset_at` are estimates, because slots of a concurrency limit bind, which their
    /// holders may release at any time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
    /// With `estimated`: the instant at which enough slots have expired, if none is released before.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text::MaybeTime")]
    pub expires_at: Option<Timestamp>,
    /// How many asks wait ahead of this one; left out if none does. The wait includes theirs.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub waiting_ahead: usize,
    /// When it was decided, on the clock that decided.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text::MaybeTime")]
    pub decided_at: Option<Timestamp>,
    /// True if waiting does not help, because the cost is larger than the limit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub never: bool,
    /// Where the subject stands now.
    pub limits: Vec<LimitStanding>,
    /// Whether this was decided without the store.
    pub degraded: bool,
}

impl From<&Denial> for Denied {
    fn from(denial: &Denial) -> Self {
        let wait = denial.retry_after();
        Self {
            type_uri: QUOTA_EXCEEDED.to_owned(),
            title: "Quota exceeded".to_owned(),
            status: 429,
            detail: detail_of(denial),
            admitted: false,
            policy: Arc::clone(&denial.policy),
            limit: Arc::clone(&denial.limit),
            violated_policies: vec![Arc::clone(&denial.limit)],
            unit: Arc::clone(&denial.unit),
            asked: denial.asked,
            most: denial.most,
            retry_after_ms: wait.map(Span::as_millis_ceil),
            reset_at: denial.reset_at(),
            estimated: denial.is_estimated(),
            expires_at: denial.expires_at,
            waiting_ahead: denial.waiting_ahead,
            decided_at: Some(denial.decided_at),
            never: wait.is_none(),
            limits: LimitStanding::all(&denial.limits, denial.decided_at),
            degraded: denial.degraded,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
const fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// An amount of a unit for people, as in `1 request` and `5 requests`. Units are named in the plural.
#[must_use]
pub fn counted(amount: u64, unit: &str) -> String {
    // A word such as "bus" or "class" is no plural.
    let one = unit.strip_suffix('s').filter(|one| amount == 1 && !one.ends_with(['s', 'u', 'i']));
    format!("{amount} {}", one.unwrap_or(unit))
}

/// The reason of a denial, in a sentence.
pub(crate) fn detail_of(denial: &Denial) -> String {
    let Denial { limit, unit, asked, most, waiting_ahead, .. } = denial;
    let Some(wait) = denial.wait_for_people() else {
        return format!(
            "limit {limit:?} never admits {} at once, at most {most}; ask for less",
            counted(*asked, unit)
        );
    };
    let binding = denial.limits.iter().find(|standing| standing.name == *limit);
    let has_room = binding.is_some_and(|standing| *asked <= standing.remaining);
    let why = match (waiting_ahead, has_room) {
        (0, _) => format!("limit {limit:?} has no room for {} now", counted(*asked, unit)),
        (asks, true) => format!("{} for limit {limit:?}", ahead_for_people(*asks)),
        (asks, false) => format!(
            "limit {limit:?} has no room for {} now, and {}",
            counted(*asked, unit),
            ahead_for_people(*asks)
        ),
    };
    format!("{why}; ask again in {wait}")
}

/// One answer to one ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "serve", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Answer {
    /// It went through.
    Admitted(Admitted),
    /// It did not go through.
    Denied(Box<Denied>),
    /// It could not be decided.
    Failed(Problem),
}

impl Answer {
    /// `decision` as it is read at `now`, with permits sealed with `key`.
    #[must_use]
    pub fn of(decision: &Decision, key: &token::Key, now: Timestamp) -> Self {
        match decision {
            Decision::Admitted(permit) => Self::Admitted(Admitted::of(permit, key, now)),
            Decision::Denied(denial) => Self::Denied(Box::new(denial.into())),
        }
    }
}

/// The answer to a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "serve", derive(schemars::JsonSchema))]
pub struct BatchResponse {
    /// One answer for each ask, in the order of the asks.
    pub answers: Vec<Answer>,
}

/// The answer to settle, release and reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "serve", derive(schemars::JsonSchema))]
pub struct Changed {
    /// Whether anything changed; false if it was done before.
    pub changed: bool,
}

/// The answer to renew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "serve", derive(schemars::JsonSchema))]
pub struct Renewed {
    /// The permit to use from now on.
    pub permit: String,
    /// Until when the admitted call should reach the provider.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text::MaybeTime")]
    pub use_by: Option<Timestamp>,
    /// When the slots it holds expire; left out if it holds none.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text::MaybeTime")]
    pub expires_at: Option<Timestamp>,
}

impl Renewed {
    /// The answer that carries `permit`, sealed with `key`.
    #[must_use]
    pub fn of(permit: &Permit, key: &token::Key) -> Self {
        Self {
            permit: token::encode(permit, key),
            use_by: permit.use_by(),
            expires_at: permit.expires_at(),
        }
    }
}

/// Where a subject stands, having consumed nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "serve", derive(schemars::JsonSchema))]
pub struct StandingResponse {
    /// The name of the policy.
    pub policy: String,
    /// For whom.
    pub subject: String,
    /// Where the subject stands on each limit.
    pub limits: Vec<LimitStanding>,
}

impl StandingResponse {
    /// `standings` of `subject` under `policy` as they are read at `now`.
    #[must_use]
    pub fn of(policy: &Policy, subject: &str, standings: &[Standing], now: Timestamp) -> Self {
        let mut limits = LimitStanding::all(standings, now);
        for standing in &mut limits {
            let of = |limit: &&Limit| limit.name() == &*standing.name;
            standing.resolution = policy.for_subject(subject).limits().find(of).and_then(slots_of);
        }
        Self { policy: policy.name().to_owned(), subject: subject.to_owned(), limits }
    }
}
