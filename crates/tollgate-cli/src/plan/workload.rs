//! The workload of a plan: a policy, a fleet, its traffic and its store.

use serde::{Serialize, Serializer};
use serde_json::json;
use tollgate::core::Amounts;
use tollgate::core::bounds::CHARGES_MAX;
use tollgate::{Ask, Costs, Error, ErrorKind, Policy, Span};
use tollgate_dynamodb::DynamoDb;
use tollgate_protocol::json::named_costs;

use crate::args::{PlanFlags, PlanStore};
use tollgate_config::Config;

use super::measure;
use super::price::Prices;

/// The most instances of a plan.
const INSTANCES_MAX: u64 = 1_000;
/// The most brokers.
const BROKERS_MAX: u64 = 100;
/// The most asks per second.
const RATE_MAX: u64 = 1_000_000;
/// The most subjects.
const SUBJECTS_MAX: u64 = 100_000;
/// The largest mean burst.
const BURSTINESS_MAX: u64 = 1_000;
/// The most asks of one simulated run, so that a plan takes seconds. A longer plan is cut.
pub(super) const ASKS_MAX: u64 = 60_000;
/// The longest simulated time.
const DURATION_MAX: Span = Span::from_hours(24);
/// The length of a subject, for the size of its item.
const SUBJECT_BYTES: usize = 36;
/// The longest round trip to the store, or to a broker.
const LATENCY_MAX: Span = Span::from_secs(10);

/// A policy that every ask is charged to as well, with subjects that those of the first policy share.
#[derive(Clone, Debug)]
pub(crate) struct Parent {
    pub(crate) policy: Policy,
    /// The subject at an index belongs to the parent's subject at that index modulo this number.
    pub(crate) subjects: u64,
}

/// A policy, a fleet, its traffic and its store.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub(crate) policy: Policy,
    pub(crate) parents: Vec<Parent>,
    pub(crate) instances: u64,
    /// Asks per second of the whole fleet.
    pub(crate) rate: u64,
    /// The mean number of asks that arrive together.
    pub(crate) burstiness: u64,
    pub(crate) subjects: u64,
    pub(crate) costs: Costs,
    pub(crate) store: PlanStore,
    /// The usual round trip.
    pub(crate) latency: Span,
    pub(crate) duration: Span,
    /// The length of the simulated outage.
    pub(crate) outage: Span,
    /// The length that was asked for. It is cut to a third of the duration, because the run of an outage takes three times as
    /// long.
    pub(crate) outage_wanted: Span,
    pub(crate) unposted_max: Option<u64>,
    pub(crate) headroom_percent: u8,
    pub(crate) brokers: u64,
    /// The usual round trip to a broker.
    pub(crate) broker_latency: Span,
    pub(crate) seed: u64,
    pub(crate) prices: Prices,
    /// The length of a measured run.
    pub(crate) measure_for: Span,
}

impl Serialize for Workload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let parents = self.parents.iter().map(|Parent { policy, subjects }| {
            let bytes = dynamodb_item_bytes(policy);
            json!({ "policy": policy.name(), "subjects": subjects, "dynamodb_item_bytes": bytes })
        });
        let value = json!({
            "policy": self.policy.name(),
            "parents": parents.collect::<Vec<_>>(),
            "instances": self.instances,
            "rate": self.rate,
            "burstiness": self.burstiness,
            "subjects": self.subjects,
            "store": self.store.name(),
            "store_latency_us": self.latency.as_micros(),
            "brokers": self.brokers,
            "broker_latency_us": self.broker_latency.as_micros(),
            "duration_us": self.duration.as_micros(),
            "outage_us": self.outage.as_micros(),
            "outage_wanted_us": self.outage_wanted.as_micros(),
            "seed": self.seed,
        });
        value.serialize(serializer)
    }
}

impl Workload {
    /// Checks `flags` against `config`.
    pub(super) fn new(flags: &PlanFlags, config: &Config) -> Result<Self, Error> {
        let policy = config.policies.get(&flags.policy)?.clone();
        let between = |name: &str, number: u64, most: u64| {
            if number == 0 || most < number {
                return Err(invalid(format!("--{name} must be 1 to {most}, not {number}")));
            }
            Ok(number)
        };
        let subjects = between("subjects", flags.subjects, SUBJECTS_MAX)?;
        let parents = parents(flags, config, subjects)?;
        let costs = named_costs(flags.costs.iter().map(String::as_str))?;
        check_costs(&policy, &parents, &costs)?;
        if flags.store == PlanStore::Dynamodb {
            let parents = parents.iter().map(|parent| &parent.policy);
            std::iter::once(&policy).chain(parents).try_for_each(DynamoDb::check)?;
        }
        let rate = flags.rate.parse().map_err(|_| {
            let given = &flags.rate;
            invalid(format!(
                "--rate {given:?} is not a number of asks per second, as in --rate 200"
            ))
        })?;
        let rate = between("rate", rate, RATE_MAX)?;
        let latency = match &flags.store_latency {
            Some(text) => span("store-latency", text, LATENCY_MAX)?,
            None => flags.store.latency(),
        };
        let wanted = span("duration", &flags.duration, DURATION_MAX)?;
        let longest = Span::from_micros(ASKS_MAX * 1_000_000 / rate);
        let duration = wanted.min(longest);
        let outage_wanted = span("outage", &flags.outage, DURATION_MAX)?;
        if 90 < flags.headroom {
            return Err(invalid(format!(
                "--headroom is a percentage up to 90, not {}",
                flags.headroom
            )));
        }
        Ok(Self {
            policy,
            parents,
            instances: between("instances", flags.instances, INSTANCES_MAX)?,
            rate,
            burstiness: between("burstiness", flags.burstiness, BURSTINESS_MAX)?,
            subjects,
            costs,
            store: flags.store,
            latency,
            duration,
            outage: outage_wanted.min(Span::from_micros(duration.as_micros() / 3)),
            outage_wanted,
            unposted_max: flags.unposted_max,
            headroom_percent: flags.headroom,
            brokers: between("brokers", flags.brokers, BROKERS_MAX)?,
            broker_latency: span("broker-latency", &flags.broker_latency, LATENCY_MAX)?,
            seed: flags.seed,
            prices: Prices::new(flags)?,
            measure_for: span("measure-for", &flags.measure_for, measure::LONGEST)?,
        })
    }

    /// Returns one ask per second on `policy`, and defaults for the rest.
    pub(super) fn minimal(policy: Policy) -> Self {
        Self {
            policy,
            parents: Vec::new(),
            instances: 1,
            rate: 1,
            burstiness: 1,
            subjects: 1,
            costs: Costs::new(),
            store: PlanStore::Redis,
            latency: PlanStore::Redis.latency(),
            duration: Span::from_secs(1),
            outage: Span::ZERO,
            outage_wanted: Span::ZERO,
            unposted_max: None,
            headroom_percent: 0,
            brokers: 2,
            broker_latency: Span::from_millis(1),
            seed: 0,
            prices: Prices::DEFAULT,
            measure_for: Span::from_secs(1),
        }
    }

    /// Returns the policy of each charge of an ask, and its number of subjects.
    pub(super) fn charges(&self) -> impl Iterator<Item = (&Policy, u64)> {
        let parents = self.parents.iter().map(|parent| (&parent.policy, parent.subjects));
        std::iter::once((&self.policy, self.subjects)).chain(parents)
    }

    pub(super) const fn has_parents(&self) -> bool {
        !self.parents.is_empty()
    }

    /// Returns the names of its policies, as in `user, team, account`.
    pub(super) fn policy_names(&self) -> String {
        self.charges().map(|(policy, _)| policy.name()).collect::<Vec<_>>().join(", ")
    }

    /// Returns the ask of the subject with `number` under `policy` and `parents`, which are those of this workload as a strategy
    /// enforces them. Subjects begin with `prefix`.
    pub(super) fn ask<'a>(
        &self,
        policy: &'a Policy,
        parents: &'a [Policy],
        prefix: &str,
        number: u64,
    ) -> Ask<'a> {
        let ask = Ask::new(policy, format!("{prefix}s{number}"));
        let parents = parents.iter().zip(&self.parents);
        let ask = parents.fold(ask, |ask, (policy, Parent { subjects, .. })| {
            ask.and(policy, format!("{prefix}s{}", number % subjects))
        });
        ask.with_costs(&self.costs)
    }

    /// Returns the mean time between two bursts on one instance, in microseconds.
    pub(super) const fn mean_gap(&self) -> u64 {
        self.burstiness * self.instances * 1_000_000 / self.rate
    }
}

/// Returns the size of the item of a subject that uses all limits of `policy`, as DynamoDB bills it; 0 if it cannot keep the
/// policy.
pub(super) fn dynamodb_item_bytes(policy: &Policy) -> usize {
    DynamoDb::item_bytes(policy, &"s".repeat(SUBJECT_BYTES)).unwrap_or(0)
}

/// Parses `--parent`, for asks of `subjects` subjects.
fn parents(flags: &PlanFlags, config: &Config, subjects: u64) -> Result<Vec<Parent>, Error> {
    let mut parents: Vec<Parent> = Vec::new();
    for text in &flags.parents {
        let (name, count) = text.split_once('=').unwrap_or((text, "1"));
        let policy = config.policies.get(name)?.clone();
        let count = count.parse().ok().filter(|count| (1..=subjects).contains(count));
        let count = count.ok_or_else(|| {
            invalid(format!(
                "--parent {text} must name a policy and 1 to {subjects} of its subjects, which the {subjects} of --subjects \
                 share, as in --parent {name}={}",
                20.min(subjects)
            ))
        })?;
        if name == flags.policy || parents.iter().any(|other| other.policy.name() == name) {
            return Err(invalid(format!(
                "policy {name:?} is named twice; each --parent is another policy than --policy and the other parents"
            )));
        }
        parents.push(Parent { policy, subjects: count });
    }
    if CHARGES_MAX <= parents.len() {
        return Err(invalid(format!(
            "an ask has at most {CHARGES_MAX} charges, so at most {} --parent, not {}",
            CHARGES_MAX - 1,
            parents.len()
        )));
    }
    Ok(parents)
}

/// Refuses an ask that is never denied or never admitted: there would be nothing to compare.
fn check_costs(policy: &Policy, parents: &[Parent], costs: &Costs) -> Result<(), Error> {
    let ask =
        parents.iter().fold(Ask::new(policy, "s"), |ask, parent| ask.and(&parent.policy, "s"));
    let ask = ask.with_costs(costs);
    ask.check()?;
    ask.charges().try_for_each(|charge| check_charge(charge.policy(), *charge.amounts()))
}

fn check_charge(policy: &Policy, amounts: Amounts) -> Result<(), Error> {
    for (limit, (place, most)) in policy.limits().zip(policy.unit_indexes().zip(policy.effective()))
    {
        let cost = amounts.at(place);
        if most < cost {
            let (name, unit) = (limit.name(), limit.unit());
            return Err(invalid(format!(
                "an ask that costs {unit}={cost} never fits: limit {name:?} of policy {:?} admits at most {most} at once; lower \
                 --cost {unit}={most}, or raise the limit",
                policy.name()
            )));
        }
    }
    if policy.unit_indexes().all(|place| amounts.at(place) == 0) {
        let units: Vec<&str> = policy.units().collect();
        return Err(invalid(format!(
            "an ask costs nothing that policy {:?} limits, so everything would be admitted; it limits {}: add --cost {}=1, \
             or whatever an ask costs",
            policy.name(),
            units.join(", "),
            units.first().copied().unwrap_or("requests")
        )));
    }
    Ok(())
}

fn span(name: &str, text: &str, most: Span) -> Result<Span, Error> {
    let span: Span = text.parse().map_err(|error| invalid(format!("--{name}: {error}")))?;
    if span.is_zero() || most < span {
        return Err(invalid(format!(
            "--{name} must be more than 0 and at most {most}, not {text}"
        )));
    }
    Ok(span)
}

pub(super) fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, text)
}
