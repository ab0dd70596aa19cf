//! Responses to asks and to operations on permits.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tollgate::core::{ChargeStandings, JointDenial, Wait, humanize_ahead};
use tollgate::{Decision, Denial, Error, Limit, Permit, Policy, Span, Standing, Timestamp};

use super::policy::slots_of;
use super::problem::{Problem, QUOTA_EXCEEDED};
use super::serde_as;
use crate::{permit_token, unexpected};

/// The standing of a subject on one limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LimitStanding {
    /// The name of the limit.
    pub name: Arc<str>,
    /// Its unit.
    pub unit: Arc<str>,
    /// The limit, as configured.
    pub limit: u64,
    /// How much is used.
    pub used: u64,
    /// How much could be acquired now.
    pub remaining: u64,
    /// When `remaining` next grows; null if it is at its maximum.
    #[serde(with = "serde_as::MaybeTime")]
    pub reset_at: Option<Timestamp>,
    /// The time until `reset_at` for people, as in `2h 15m`.
    pub reset_in: Option<String>,
    /// When nothing will be used; null if nothing is used now.
    #[serde(with = "serde_as::MaybeTime")]
    pub full_at: Option<Timestamp>,
    /// When a bucket was last refilled; null for other rules.
    #[serde(default, with = "serde_as::MaybeTime")]
    pub refilled_at: Option<Timestamp>,
    /// The number of slots of a rolling window, in `GET /v1/standing`; absent for an exact log and other rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolution: Option<u32>,
}

impl LimitStanding {
    /// Converts `standing` as of `now`.
    #[must_use]
    pub fn new(standing: &Standing, now: Timestamp) -> Self {
        Self {
            name: Arc::clone(&standing.name),
            unit: Arc::clone(&standing.unit),
            limit: standing.limit,
            used: standing.used,
            remaining: standing.remaining,
            reset_at: standing.reset_at,
            reset_in: standing.reset_at.map(|at| at.since(now).humanize()),
            full_at: standing.full_at,
            refilled_at: standing.refilled_at,
            resolution: None,
        }
    }

    /// Converts `standings` as of `now`.
    #[must_use]
    pub fn all(standings: &[Standing], now: Timestamp) -> Vec<Self> {
        standings.iter().map(|standing| Self::new(standing, now)).collect()
    }
}

impl From<LimitStanding> for Standing {
    fn from(limit: LimitStanding) -> Self {
        Self {
            name: limit.name,
            unit: limit.unit,
            limit: limit.limit,
            used: limit.used,
            remaining: limit.remaining,
            reset_at: limit.reset_at,
            full_at: limit.full_at,
            refilled_at: limit.refilled_at,
        }
    }
}

/// The response to an admitted ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Admitted {
    /// Always true.
    pub admitted: bool,
    /// The permit token, to settle, release or renew.
    pub permit: String,
    /// The standing of the subject.
    pub limits: Vec<LimitStanding>,
    /// Whether this was decided without the store.
    pub degraded: bool,
    /// Until when the admitted call should reach the provider.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "serde_as::MaybeTime")]
    pub use_by: Option<Timestamp>,
    /// When the slots it holds expire.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "serde_as::MaybeTime")]
    pub expires_at: Option<Timestamp>,
    /// The denial that shadow mode did not enforce; nothing was charged then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow_denied: Option<Box<Denied>>,
    /// The standing of every charge, if the ask had several; `limits` is that of the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub charges: Vec<ChargeStanding>,
}

/// The standing of the subject of one charge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChargeStanding {
    /// The name of the policy.
    pub policy: Arc<str>,
    /// The subject.
    pub subject: Arc<str>,
    /// The standing on each limit.
    pub limits: Vec<LimitStanding>,
    /// The denial that its policy, in shadow mode, did not enforce; nothing was charged to it then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow_denied: Option<Box<Denied>>,
}

impl ChargeStanding {
    /// Converts the charges of `permit` as of `now`; none if it has only one.
    pub(crate) fn of_permit(permit: &Permit, now: Timestamp) -> Vec<Self> {
        if !permit.has_several_charges() {
            return Vec::new();
        }
        let standing = |permit: &Permit| Self {
            policy: permit.policy().name().into(),
            subject: permit.subject().into(),
            limits: LimitStanding::all(&permit.limits, now),
            shadow_denied: permit.shadow_denied.as_deref().map(|denial| Box::new(denial.into())),
        };
        permit_token::charges_of(permit).map(standing).collect()
    }
}

impl Admitted {
    /// Converts `permit` as of `now`, sealed with `key`.
    #[must_use]
    pub fn new(permit: &Permit, key: &permit_token::Key, now: Timestamp) -> Self {
        Self {
            admitted: true,
            permit: permit_token::encode(permit, key),
            limits: LimitStanding::all(&permit.limits, now),
            degraded: is_degraded(permit),
            use_by: permit.use_by(),
            expires_at: permit.expires_at(),
            shadow_denied: permit.shadow_denied.as_deref().map(|denial| Box::new(denial.into())),
            charges: ChargeStanding::of_permit(permit, now),
        }
    }

    /// Returns the permit, whose charges were issued under `policies`.
    ///
    /// # Errors
    /// [`Invalid`](tollgate::ErrorKind::Invalid) or [`Corrupt`](tollgate::ErrorKind::Corrupt) if this version cannot
    /// read it.
    pub fn into_permit<'a>(
        self,
        policies: impl IntoIterator<Item = &'a Policy>,
    ) -> Result<Permit, Error> {
        let first = (self.limits, self.shadow_denied);
        let charges = self.charges.into_iter().map(|charge| (charge.limits, charge.shadow_denied));
        let charges = charges.collect();
        permit_token::read_admission(&self.permit, policies, first, charges, |charge, permit| {
            let (limits, shadow_denied) = charge;
            permit.limits = limits.into_iter().map(Into::into).collect();
            permit.shadow_denied =
                shadow_denied.map(|denied| Denial::try_from(*denied)).transpose()?.map(Box::new);
            Ok(())
        })
    }
}

/// Returns whether any charge of `permit` was decided without the store.
pub(crate) fn is_degraded(permit: &Permit) -> bool {
    permit_token::charges_of(permit).any(|permit| permit.degraded)
}

/// The response to a denied ask: a problem document of status 429.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Denied {
    /// The problem type: [`QUOTA_EXCEEDED`].
    #[serde(rename = "type")]
    pub type_uri: String,
    /// The title of the problem type.
    pub title: String,
    /// Always 429.
    pub status: u16,
    /// The reason and the wait in a sentence.
    pub detail: String,
    /// Always false.
    pub admitted: bool,
    /// The name of the policy.
    pub policy: Arc<str>,
    /// The name of the binding limit.
    pub limit: Arc<str>,
    /// The binding limit, as the problem type requires it.
    #[serde(rename = "violated-policies")]
    pub violated_policies: Vec<Arc<str>>,
    /// The unit of the binding limit.
    pub unit: Arc<str>,
    /// The cost of the ask in that unit.
    pub asked: u64,
    /// The most that one ask can ever cost.
    pub most: u64,
    /// The wait in milliseconds, rounded up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// When the ask would be admitted.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "serde_as::MaybeTime")]
    pub reset_at: Option<Timestamp>,
    /// True if the wait is an estimate, because holders may release slots of a concurrency limit at any time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
    /// With `estimated`: when enough slots will have expired, if none is released before.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "serde_as::MaybeTime")]
    pub expires_at: Option<Timestamp>,
    /// How many asks are queued ahead; omitted if none. The wait includes theirs.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub waiting_ahead: usize,
    /// When it was decided, on the clock that decided.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "serde_as::MaybeTime")]
    pub decided_at: Option<Timestamp>,
    /// True if waiting does not help, because the cost is larger than the limit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub never: bool,
    /// The standing of the subject.
    pub limits: Vec<LimitStanding>,
    /// Whether this was decided without the store.
    pub degraded: bool,
    /// If the ask had several charges: the index of the one that binds, which the members above are about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub charge: Option<usize>,
    /// If the ask had several charges: every limit that refuses, in the order of the ask.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedLimit>,
    /// If the ask had several charges: the standing of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub charges: Vec<ChargeStanding>,
}

/// A limit that refuses one charge of an ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RefusedLimit {
    /// The index of the charge in the ask.
    pub charge: usize,
    /// The name of its policy.
    pub policy: Arc<str>,
    /// Its subject.
    pub subject: Arc<str>,
    /// The name of the limit.
    pub limit: Arc<str>,
    /// The unit of the limit.
    pub unit: Arc<str>,
    /// The wait in milliseconds, rounded up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Until when it refuses; for slots, when enough of them have expired.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "serde_as::MaybeTime")]
    pub reset_at: Option<Timestamp>,
    /// True if waiting does not help, because the cost is larger than the limit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub never: bool,
}

impl RefusedLimit {
    fn new(refused: &tollgate::core::RefusedLimit, decided_at: Timestamp) -> Self {
        let reset_at = match refused.wait {
            Wait::Until(until) => Some(until),
            Wait::Never => None,
        };
        Self {
            charge: refused.charge,
            policy: Arc::clone(&refused.policy),
            subject: Arc::clone(&refused.subject),
            limit: Arc::clone(&refused.limit),
            unit: Arc::clone(&refused.unit),
            retry_after_ms: reset_at.map(|at| at.since(decided_at).as_millis_ceil()),
            reset_at,
            never: reset_at.is_none(),
        }
    }
}

impl From<RefusedLimit> for tollgate::core::RefusedLimit {
    fn from(refused: RefusedLimit) -> Self {
        let RefusedLimit { charge, policy, subject, limit, unit, reset_at, .. } = refused;
        let wait = reset_at.map_or(Wait::Never, Wait::Until);
        Self { charge, policy, subject, limit, unit, wait }
    }
}

impl From<&Denial> for Denied {
    fn from(denial: &Denial) -> Self {
        let wait = denial.retry_after();
        let (refused, charges) = match denial.joint.as_deref() {
            Some(JointDenial { refused, charges }) => {
                let at = denial.decided_at;
                let standing = |charge: &ChargeStandings| ChargeStanding {
                    policy: Arc::clone(&charge.policy),
                    subject: Arc::clone(&charge.subject),
                    limits: LimitStanding::all(&charge.limits, at),
                    shadow_denied: None,
                };
                let refused = refused.iter().map(|refused| RefusedLimit::new(refused, at));
                (refused.collect(), charges.iter().map(standing).collect())
            }
            None => (Vec::new(), Vec::new()),
        };
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
            charge: denial.binding_charge(),
            refused,
            charges,
        }
    }
}

impl TryFrom<Denied> for Denial {
    type Error = Error;

    fn try_from(denied: Denied) -> Result<Self, Error> {
        // Older brokers omit `decided_at`, but not the wait, rounded up.
        let wait = denied.retry_after_ms.map(Span::from_millis);
        let decided_at = denied
            .decided_at
            .or_else(|| Some(denied.reset_at? - wait?))
            .ok_or_else(|| unexpected("a denial without decided_at"))?;
        let standings = |charge: ChargeStanding| ChargeStandings {
            policy: charge.policy,
            subject: charge.subject,
            limits: charge.limits.into_iter().map(Into::into).collect(),
        };
        let joint = (!denied.charges.is_empty()).then(|| {
            Box::new(JointDenial {
                refused: denied.refused.into_iter().map(Into::into).collect(),
                charges: denied.charges.into_iter().map(standings).collect(),
            })
        });
        Ok(Self {
            policy: denied.policy,
            limit: denied.limit,
            unit: denied.unit,
            asked: denied.asked,
            most: denied.most,
            wait: denied.reset_at.map_or(Wait::Never, Wait::Until),
            expires_at: denied.expires_at,
            slots: None,
            waiting_ahead: denied.waiting_ahead,
            decided_at,
            limits: denied.limits.into_iter().map(Into::into).collect(),
            degraded: denied.degraded,
            joint,
        })
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
const fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// Formats an amount for people, as in `1 request` and `5 requests`. Units are named in the plural.
#[must_use]
pub fn counted(amount: u64, unit: &str) -> String {
    // A word such as "bus" or "class" is not a plural.
    let one = unit.strip_suffix('s').filter(|one| amount == 1 && !one.ends_with(['s', 'u', 'i']));
    format!("{amount} {}", one.unwrap_or(unit))
}

/// Returns the reason and the wait of a denial in a sentence.
pub fn detail_of(denial: &Denial) -> String {
    let Denial { limit, unit, asked, most, waiting_ahead, .. } = denial;
    let charge = denial.binding_charge().zip(denial.joint.as_deref());
    let limit_name = match charge.and_then(|(index, joint)| joint.charges.get(index)) {
        Some(ChargeStandings { policy, subject, .. }) => {
            format!("limit {limit:?} of policy {policy:?} for {subject:?}")
        }
        None => format!("limit {limit:?}"),
    };
    let Some(wait) = denial.humanize_wait() else {
        return format!(
            "{limit_name} never admits {} at once, at most {most}; ask for less",
            counted(*asked, unit)
        );
    };
    let binding = denial.limits.iter().find(|standing| standing.name == *limit);
    let has_room = binding.is_some_and(|standing| *asked <= standing.remaining);
    let why = match (waiting_ahead, has_room) {
        (0, _) => format!("{limit_name} has no room for {} now", counted(*asked, unit)),
        (asks, true) => format!("{} for {limit_name}", humanize_ahead(*asks)),
        (asks, false) => format!(
            "{limit_name} has no room for {} now, and {}",
            counted(*asked, unit),
            humanize_ahead(*asks)
        ),
    };
    format!("{why}; ask again in {wait}")
}

/// The response to one ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Answer")]
pub enum AcquireResponse {
    /// It is admitted.
    Admitted(Admitted),
    /// It is denied.
    Denied(Box<Denied>),
    /// It could not be decided.
    Failed(Problem),
}

impl AcquireResponse {
    /// Converts `decision` as of `now`; a permit is sealed with `key`.
    #[must_use]
    pub fn new(decision: &Decision, key: &permit_token::Key, now: Timestamp) -> Self {
        match decision {
            Decision::Admitted(permit) => Self::Admitted(Admitted::new(permit, key, now)),
            Decision::Denied(denial) => Self::Denied(Box::new(denial.into())),
        }
    }
}

/// The response to a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BatchResponse {
    /// One response per ask, in order.
    pub answers: Vec<AcquireResponse>,
}

/// The response to settle, release and reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Changed {
    /// Whether anything changed; false for a repeat.
    pub changed: bool,
}

/// The response to renew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Renewed {
    /// The permit to use from now on.
    pub permit: String,
    /// Until when the admitted call should reach the provider.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "serde_as::MaybeTime")]
    pub use_by: Option<Timestamp>,
    /// When the slots it holds expire; omitted if it holds none.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "serde_as::MaybeTime")]
    pub expires_at: Option<Timestamp>,
}

impl Renewed {
    /// Converts `permit`, sealed with `key`.
    #[must_use]
    pub fn new(permit: &Permit, key: &permit_token::Key) -> Self {
        Self {
            permit: permit_token::encode(permit, key),
            use_by: permit.use_by(),
            expires_at: permit.expires_at(),
        }
    }
}

/// The response of `GET /v1/standing`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StandingResponse {
    /// The name of the policy.
    pub policy: String,
    /// The subject.
    pub subject: String,
    /// Its standing on each limit.
    pub limits: Vec<LimitStanding>,
}

impl StandingResponse {
    /// Converts the standings of `subject` under `policy` as of `now`.
    #[must_use]
    pub fn new(policy: &Policy, subject: &str, standings: &[Standing], now: Timestamp) -> Self {
        let mut limits = LimitStanding::all(standings, now);
        for standing in &mut limits {
            let is_same = |limit: &&Limit| limit.name() == &*standing.name;
            standing.resolution =
                policy.for_subject(subject).limits().find(is_same).and_then(slots_of);
        }
        Self { policy: policy.name().to_owned(), subject: subject.to_owned(), limits }
    }
}
