//! Incidents: a provider refused an admitted call. An incident has the data for a post-mortem.
//!
//! A [`Recorder`] is an observer that keeps the last acquisitions of each subject and which permits are open. When the
//! provider answers 429, [`report_violation`] combines that with the standing of the subject, closes the gate until
//! the provider's retry time, and reports to the observer, whose sinks log it and alert people.

mod recorder;
mod short_list;

use serde::{Deserialize, Serialize};
use tollgate_core::{Ask, Limit, Policy, Span, Standing, Timestamp};

use crate::clock::Clock;
use crate::error::{Error, ErrorKind};
use crate::gate::{Gate, GateExt};
use crate::internal::edge;
use crate::observe::{Event, Observer};

pub use recorder::{ACQUISITIONS_MAX, OPEN_MAX, Recorder, SUBJECTS_MAX};

/// The longest time for which a provider's word closes a gate: a month has at most this many days.
pub const RETRY_AFTER_MAX: Span = Span::from_hours(31 * 24);

/// A provider's refusal of something that was admitted here.
#[derive(Clone, Debug)]
pub struct Violation<'a> {
    /// The admitted ask.
    pub ask: &'a Ask<'a>,
    /// The limit that the provider named: it is closed for every charge whose policy has it. Without one, the limit with the
    /// smallest part left of all charges is closed: it is the likeliest, and any closes the ask, since every limit must
    /// admit.
    pub limit: Option<&'a str>,
    /// How long the provider wants to be left alone.
    pub retry_after: Span,
}

/// The data about one refusal by a provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incident {
    /// Finds the same incident in the log, the notification and the file.
    pub id: String,
    /// When it was reported.
    #[serde(with = "text")]
    pub at: Timestamp,
    /// The name of the policy.
    pub policy: String,
    /// The subject.
    pub subject: String,
    /// The limit that was closed.
    pub limit: String,
    /// Until when the provider wants to be left alone.
    #[serde(with = "text")]
    pub until: Timestamp,
    /// Whether the gate is closed until then.
    pub closed: bool,
    /// Why it is not, or why the standing of the limits is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// The standing on every limit, before the gate was closed.
    pub limits: Vec<LimitState>,
    /// Permits that were neither settled nor released at that moment, up to [`OPEN_MAX`].
    pub in_flight: usize,
    /// The last acquisitions of the subject, oldest first, at most [`ACQUISITIONS_MAX`].
    pub acquisitions: Vec<Acquisition>,
    /// The incidents of the other charges of the ask that were closed. Each is reported on its own, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Self>,
}

/// The record of an incident of either kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Recorded {
    /// Of the store.
    Store(StoreIncident),
    /// Of the gateway.
    Gateway(GatewayIncident),
    /// A provider refused an admitted call.
    Violated(Box<Incident>),
}

/// An incident of the store, for its operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum StoreIncident {
    /// It can be reached but does not serve this program until the operator changes something.
    Misconfigured {
        /// Finds the same incident in the log, the notification and the file.
        id: String,
        /// When it was noticed.
        #[serde(with = "text")]
        at: Timestamp,
        /// The mistake and its remedy.
        error: String,
    },
}

/// An incident of the gateway for LLM APIs, for its operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum GatewayIncident {
    /// A provider reports another limit than the policy has.
    LimitDiffers {
        /// Finds the same incident in the log, the notification and the file.
        id: String,
        /// When it was noticed.
        #[serde(with = "text")]
        at: Timestamp,
        /// The numbers.
        #[serde(flatten)]
        limit: DifferentLimit,
    },
}

/// A limit of a provider that differs from the policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DifferentLimit {
    /// The upstream, as the configuration names it.
    pub upstream: String,
    /// The model, as the configuration names it.
    pub model: String,
    /// The policy that charges the upstream.
    pub policy: String,
    /// The unit.
    pub unit: String,
    /// The limit of the policy.
    pub ours: u64,
    /// The limit that the provider reports.
    pub theirs: u64,
}

impl Recorded {
    /// Returns when it was noticed or reported.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        match self {
            Self::Store(StoreIncident::Misconfigured { at, .. })
            | Self::Gateway(GatewayIncident::LimitDiffers { at, .. }) => *at,
            Self::Violated(incident) => incident.at,
        }
    }

    /// Returns the policy of a violation or a different limit; `None` for an incident of the store.
    #[must_use]
    pub fn policy(&self) -> Option<&str> {
        match self {
            Self::Store(_) => None,
            Self::Gateway(GatewayIncident::LimitDiffers { limit, .. }) => Some(&limit.policy),
            Self::Violated(incident) => Some(&incident.policy),
        }
    }
}

/// The standing on one limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitState {
    /// The name of the limit.
    pub name: String,
    /// The unit it counts.
    pub unit: String,
    /// The limit, as configured.
    pub limit: u64,
    /// The usage.
    pub used: u64,
    /// The remaining amount.
    pub remaining: u64,
}

impl From<&Standing> for LimitState {
    fn from(standing: &Standing) -> Self {
        Self {
            name: standing.name.to_string(),
            unit: standing.unit.to_string(),
            limit: standing.limit,
            used: standing.used,
            remaining: standing.remaining,
        }
    }
}

/// A decision on an ask of the subject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquisition {
    /// When it was decided, on the clock that decided.
    #[serde(with = "text")]
    pub at: Timestamp,
    /// Whether it went through.
    pub admitted: bool,
    /// Whether it was decided without the store.
    pub degraded: bool,
    /// The costs, as in `requests=1 tokens=3750`.
    pub costs: String,
}

/// Reports that a provider refused a call that `gate` admitted, and closes the gate until the provider's retry time.
///
/// An ask with several charges is closed where the limit is that the provider refused; see [`Violation::limit`]. Each charge
/// that is closed is an incident: the first is returned, with the [others](Incident::others).
///
/// The incident is reported and returned even if the store is unreachable; it then says what is missing.
///
/// # Errors
/// [`ErrorKind::Invalid`] for a limit that no policy of the ask has, a retry time beyond [`RETRY_AFTER_MAX`] or a wrong
/// subject. Nothing was changed or reported then.
pub async fn report_violation(
    gate: &dyn Gate,
    recorder: &Recorder,
    observer: &dyn Observer,
    clock: &dyn Clock,
    violation: &Violation<'_>,
) -> Result<Incident, Error> {
    let Violation { ask, limit, retry_after } = violation;
    check(ask, *limit, *retry_after)?;
    let at = clock.now();
    let until = at + *retry_after;
    let mut charges = Vec::new();
    for part in (0..ask.charges().len()).filter_map(|index| ask.part(index)) {
        if limit.is_none_or(|limit| has_limit(part.policy(), limit)) {
            let standing = gate.standing(part.policy(), part.subject()).await;
            charges.push((part, standing));
        }
    }
    if limit.is_none() {
        let tightest = charges.iter().enumerate().filter_map(|(index, (_, standing))| {
            Some((index, part_left(tightest(standing.as_deref().ok()?)?)))
        });
        // The first of several.
        let index = tightest.min_by_key(|(_, left)| *left).map_or(0, |(index, _)| index);
        charges = vec![charges.swap_remove(index)];
    }
    let mut incidents = Vec::with_capacity(charges.len());
    for (part, standing) in charges {
        let (policy, subject) = (part.policy(), part.subject());
        let (in_flight, acquisitions) = recorder.about(policy, subject, at);
        let first = || policy.limits().next().map_or("", Limit::name);
        let likeliest = || standing.as_deref().ok().and_then(tightest).map(|it| &*it.name);
        let limit = limit.or_else(likeliest).unwrap_or_else(first);
        let closing = gate.close_until(&part, limit, until).await;
        let trouble = standing.as_ref().err().or(closing.as_ref().err()).map(ToString::to_string);
        let incident = Incident {
            id: format!("{:08x}{:08x}", edge::random(), edge::random()),
            at,
            policy: policy.name().to_owned(),
            subject: subject.to_owned(),
            limit: limit.to_owned(),
            until,
            // A limit that was closed for longer already is closed too, so an unchanged one is no trouble.
            closed: closing.is_ok(),
            trouble,
            limits: standing.iter().flatten().map(LimitState::from).collect(),
            in_flight,
            acquisitions,
            others: Vec::new(),
        };
        observer.observe(&Event::Violated { policy, incident: &incident });
        incidents.push(incident);
    }
    let mut incidents = incidents.into_iter();
    let first = incidents.next().expect("the limit was checked, so a charge has it");
    Ok(Incident { others: incidents.collect(), ..first })
}

/// Returns the limit with the smallest part left; the first of several.
fn tightest(standings: &[Standing]) -> Option<&Standing> {
    standings.iter().min_by_key(|standing| part_left(standing))
}

fn part_left(standing: &Standing) -> u128 {
    u128::from(standing.remaining) * u128::from(u64::MAX) / u128::from(standing.limit.max(1))
}

fn has_limit(policy: &Policy, name: &str) -> bool {
    policy.limits().any(|limit| limit.name() == name)
}

fn check(ask: &Ask<'_>, limit: Option<&str>, retry_after: Span) -> Result<(), Error> {
    ask.check()?;
    if RETRY_AFTER_MAX < retry_after {
        let text = format!("retry_after {retry_after} must be at most {RETRY_AFTER_MAX}");
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    let Some(wanted) = limit.filter(|limit| !ask.charges().any(|it| has_limit(it.policy(), limit)))
    else {
        return Ok(());
    };
    let has: Vec<(&str, String)> = ask
        .charges()
        .map(|charge| {
            let names: Vec<&str> = charge.policy().limits().map(Limit::name).collect();
            (charge.policy().name(), names.join(", "))
        })
        .collect();
    let text = match &*has {
        [(policy, names)] => format!("policy {policy:?} has no limit {wanted:?}; it has {names}"),
        policies => {
            let has: Vec<String> =
                policies.iter().map(|(name, names)| format!("{name} has {names}")).collect();
            format!("no charge has a limit {wanted:?}; {}", has.join("; "))
        }
    };
    Err(Error::new(ErrorKind::Invalid, text))
}

/// Times as RFC 3339.
mod text {
    use serde::{Deserialize, Deserializer, Serializer, de};
    use tollgate_core::Timestamp;

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
    pub(super) fn serialize<S: Serializer>(time: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(time)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}
