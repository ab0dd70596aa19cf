//! The calls that a store and a broker answer alike, and their replies.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use tollgate::incident::Incident;
use tollgate::internal::reword_serde_error;
use tollgate::spec::LimitSpec;
use tollgate::{Error, ErrorKind, Span};
use tollgate_protocol::json::{
    AcquireRequest, AcquireResponse, Changed, Charge, ChargeActual, OverrideDescription,
    OverrideRequest, PermitRequest, PoliciesResponse, Renewed, SettleRequest, StandingQuery,
    StandingResponse, ViolationRequest, named_costs,
};

use crate::args::{Acquire, Override, Settle, SubjectArgs, Violation};

/// The longest `--wait`: beyond it a schedule is the better tool.
const WAIT_MAX: Span = Span::from_hours(24);

/// A call, the same for a store that is opened here and for a broker.
#[derive(Debug)]
pub(crate) enum Call {
    Acquire(AcquireRequest),
    Settle(SettleRequest),
    Release(PermitRequest),
    Renew(PermitRequest),
    Standing(StandingQuery),
    Reset(StandingQuery),
    Violation(ViolationRequest),
    Policies,
    Override { of: StandingQuery, body: OverrideRequest },
    Restore(StandingQuery),
}

/// The reply to a [`Call`]: a body of the HTTP API.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Reply {
    /// To acquire.
    Decided(AcquireResponse),
    /// To settle, release and reset.
    Changed(Changed),
    /// To renew.
    Renewed(Renewed),
    /// To standing.
    Standing(StandingResponse),
    /// To violation.
    Incident(Box<Incident>),
    /// To policies.
    Policies(PoliciesResponse),
    /// To policies override.
    Override(OverrideDescription),
}

impl Reply {
    /// Returns whether this is a denial.
    pub(crate) const fn is_denied(&self) -> bool {
        matches!(self, Self::Decided(AcquireResponse::Denied(_)))
    }
}

impl Call {
    /// Returns whether the call is about entries of the store, not about policies and overrides alone.
    pub(crate) const fn needs_store(&self) -> bool {
        !matches!(self, Self::Policies | Self::Override { .. } | Self::Restore(_))
    }

    pub(crate) fn acquire(args: Acquire) -> Result<Self, Error> {
        let request = AcquireRequest {
            costs: named_costs(args.costs.iter().map(String::as_str))?,
            wait_ms: args.wait.as_deref().map(wait_ms).transpose()?,
            id: args.id,
            tenant: args.tenant,
            ..AcquireRequest::default()
        };
        if let [policy, subject] = &*args.subjects
            && !policy.contains(':')
        {
            let (policy, subject) = (policy.clone(), subject.clone());
            return Ok(Self::Acquire(AcquireRequest { policy, subject, ..request }));
        }
        let charges = args.subjects.iter().map(|text| match text.split_once(':') {
            Some((policy, subject)) => Ok(Charge {
                policy: policy.to_owned(),
                subject: subject.to_owned(),
                costs: None,
            }),
            None => Err(invalid(format!(
                "{text:?} is not a policy with a subject; write api alice for one, and user:u1 team:t7 for several"
            ))),
        });
        Ok(Self::Acquire(AcquireRequest { charges: charges.collect::<Result<_, _>>()?, ..request }))
    }

    pub(crate) fn settle(args: Settle) -> Result<Self, Error> {
        // The costs of each charge that is named by its index, and of all others.
        let mut charges: BTreeMap<Option<usize>, Vec<&str>> = BTreeMap::new();
        for text in &args.actual {
            let own =
                text.split_once(':').and_then(|(index, cost)| Some((index.parse().ok()?, cost)));
            let (charge, cost) = match own {
                Some((index, cost)) => (Some(index), cost),
                None => (None, &**text),
            };
            charges.entry(charge).or_default().push(cost);
        }
        let actual = named_costs(charges.remove(&None).unwrap_or_default())?;
        let charges = charges.into_iter().filter_map(|(charge, costs)| {
            let charge = charge?;
            Some(named_costs(costs).map(|actual| ChargeActual { charge, actual }))
        });
        let charges = charges.collect::<Result<_, _>>()?;
        Ok(Self::Settle(SettleRequest { permit: args.permit, actual, charges }))
    }

    pub(crate) fn violation(args: Violation) -> Result<Self, Error> {
        let request = ViolationRequest {
            retry_after_ms: args.retry_after.parse::<Span>()?.as_millis_ceil(),
            policy: args.policy.unwrap_or_default(),
            subject: args.subject.unwrap_or_default(),
            limit: args.limit,
            permit: args.permit,
        };
        request.retry_after()?;
        Ok(Self::Violation(request))
    }

    pub(crate) fn overriding(args: Override) -> Result<Self, Error> {
        let Override { of, set, block, unlimited, weight, remove } = args;
        let of = of.into();
        if remove {
            return Ok(Self::Restore(of));
        }
        let (limits, limit) = (limits(&set)?, block.then_some(0));
        Ok(Self::Override { of, body: OverrideRequest { limits, limit, unlimited, weight } })
    }
}

impl From<SubjectArgs> for StandingQuery {
    fn from(SubjectArgs { policy, subject }: SubjectArgs) -> Self {
        Self { policy, subject }
    }
}

fn wait_ms(text: &str) -> Result<u64, Error> {
    let wait: Span = text.parse()?;
    if WAIT_MAX < wait {
        return Err(invalid(format!("--wait {text} is too long; at most {WAIT_MAX}")));
    }
    Ok(wait.as_millis_ceil())
}

/// Parses the values of `--set`, in the order in which limits are named first.
fn limits(given: &[String]) -> Result<Vec<LimitSpec>, Error> {
    let mut limits: Vec<serde_json::Map<String, Value>> = Vec::new();
    for text in given {
        let parts = text.split_once('=').and_then(|(left, value)| {
            let (limit, field) = left.rsplit_once('.')?;
            Some((limit, field, value)).filter(|_| !limit.is_empty() && field != "name")
        });
        let Some((name, field, value)) = parts else {
            return Err(invalid(format!(
                "--set {text:?} is not a limit, its field and a value, as in burst.capacity=100"
            )));
        };
        let index = limits.iter().position(|limit| limit["name"] == name).unwrap_or_else(|| {
            limits.push([("name".to_owned(), Value::from(name))].into_iter().collect());
            limits.len() - 1
        });
        let value = value.parse::<u64>().map_or_else(|_| Value::from(value), Value::from);
        if limits[index].insert(field.to_owned(), value).is_some() {
            return Err(invalid(format!("--set gives {name}.{field} twice; keep one")));
        }
    }
    let limits = limits.into_iter().map(|limit| serde_json::from_value(Value::Object(limit)));
    limits.collect::<Result<_, _>>().map_err(|error| {
        invalid(format!("--set: {}", reword_serde_error(&error.to_string(), "an object")))
    })
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}
