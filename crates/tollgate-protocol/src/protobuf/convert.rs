//! Conversion between core types and messages.

use tollgate::core::{ChargeStandings, JointDenial, Wait};
use tollgate::{Decision, Denial, Error, Permit, Policy, Span, Standing, Timestamp};

use super::tollgate::v1::acquire_response::Decision as DecisionMessage;
use super::tollgate::v1::{
    AcquireResponse, Admitted, Charge, ChargeStanding, Costs as CostsMessage, Denied,
    LimitStanding, RefusedLimit,
};
use super::{Time, instant, time};
use crate::json::{self, detail_of};
use crate::permit_token::{self, Key};
use crate::unexpected;

impl AcquireResponse {
    /// Returns `decision` as a message; a permit is sealed with `key`.
    #[must_use]
    pub fn new(decision: &Decision, key: &Key) -> Self {
        let decision = match decision {
            Decision::Admitted(permit) => DecisionMessage::Admitted(Admitted::new(permit, key)),
            Decision::Denied(denial) => DecisionMessage::Denied(denial.into()),
        };
        Self { decision: Some(decision) }
    }

    /// Returns the decision about an ask whose charges are under `policies`.
    ///
    /// # Errors
    /// [`Corrupt`](tollgate::ErrorKind::Corrupt) if required members are missing.
    pub fn into_decision<'a>(
        self,
        policies: impl IntoIterator<Item = &'a Policy>,
    ) -> Result<Decision, Error> {
        match self.decision {
            Some(DecisionMessage::Admitted(admitted)) => {
                admitted.into_permit(policies).map(Decision::Admitted)
            }
            Some(DecisionMessage::Denied(denied)) => denied.try_into().map(Decision::Denied),
            None => Err(unexpected("the response has neither a permit nor a denial")),
        }
    }
}

impl Admitted {
    /// Returns `permit` as a message, sealed with `key`.
    #[must_use]
    pub fn new(permit: &Permit, key: &Key) -> Self {
        Self {
            permit: permit_token::encode(permit, key),
            limits: permit.limits.iter().map(Into::into).collect(),
            degraded: json::is_degraded(permit),
            use_by: permit.use_by().map(time),
            expires_at: permit.expires_at().map(time),
            shadow_denied: permit.shadow_denied.as_deref().map(Into::into),
            charges: match permit.more() {
                [] => Vec::new(),
                _ => permit_token::charges_of(permit).map(ChargeStanding::from).collect(),
            },
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
            permit.limits = standings(limits)?;
            permit.shadow_denied = shadow_denied.map(Denial::try_from).transpose()?.map(Box::new);
            Ok(())
        })
    }
}

/// The first charge of the permit.
impl From<&Permit> for ChargeStanding {
    fn from(permit: &Permit) -> Self {
        Self {
            policy: permit.policy().name().to_owned(),
            subject: permit.subject().to_owned(),
            limits: permit.limits.iter().map(Into::into).collect(),
            shadow_denied: permit.shadow_denied.as_deref().map(Into::into),
        }
    }
}

impl From<&ChargeStandings> for ChargeStanding {
    fn from(charge: &ChargeStandings) -> Self {
        Self {
            policy: charge.policy.to_string(),
            subject: charge.subject.to_string(),
            limits: charge.limits.iter().map(Into::into).collect(),
            shadow_denied: None,
        }
    }
}

impl From<Charge> for json::Charge {
    fn from(charge: Charge) -> Self {
        let Charge { policy, subject, costs } = charge;
        let costs = costs.map(|CostsMessage { amounts }| amounts.into_iter().collect());
        Self { policy, subject, costs }
    }
}

impl From<json::Charge> for Charge {
    fn from(charge: json::Charge) -> Self {
        let json::Charge { policy, subject, costs } = charge;
        let costs = costs.map(|costs| CostsMessage {
            amounts: costs.iter().map(|(unit, amount)| (unit.to_owned(), amount)).collect(),
        });
        Self { policy, subject, costs }
    }
}

fn refused_limit(refused: &tollgate::core::RefusedLimit, decided_at: Timestamp) -> RefusedLimit {
    let reset_at = match refused.wait {
        Wait::Until(until) => Some(until),
        Wait::Never => None,
    };
    RefusedLimit {
        charge: narrow(refused.charge),
        policy: refused.policy.to_string(),
        subject: refused.subject.to_string(),
        limit: refused.limit.to_string(),
        unit: refused.unit.to_string(),
        reset_at: reset_at.map(time),
        retry_after_ms: reset_at.map(|at| at.since(decided_at).as_millis_ceil()),
    }
}

fn narrow(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

fn joint_denial(
    refused: Vec<RefusedLimit>,
    charges: Vec<ChargeStanding>,
) -> Result<JointDenial, Error> {
    let refused = refused.into_iter().map(|refused| {
        Ok(tollgate::core::RefusedLimit {
            charge: usize::try_from(refused.charge).unwrap_or(usize::MAX),
            policy: refused.policy.into(),
            subject: refused.subject.into(),
            limit: refused.limit.into(),
            unit: refused.unit.into(),
            wait: optional(refused.reset_at)?.map_or(Wait::Never, Wait::Until),
        })
    });
    let charges = charges.into_iter().map(|charge| {
        Ok(ChargeStandings {
            policy: charge.policy.into(),
            subject: charge.subject.into(),
            limits: standings(charge.limits)?,
        })
    });
    Ok(JointDenial {
        refused: refused.collect::<Result<_, Error>>()?,
        charges: charges.collect::<Result<_, Error>>()?,
    })
}

impl From<&Denial> for Denied {
    fn from(denial: &Denial) -> Self {
        let joint = denial.joint.as_deref();
        let (refused, charges) = joint.map_or((&[][..], &[][..]), |joint| {
            (joint.refused.as_slice(), joint.charges.as_slice())
        });
        Self {
            policy: denial.policy.to_string(),
            limit: denial.limit.to_string(),
            unit: denial.unit.to_string(),
            asked: denial.asked,
            most: denial.most,
            reset_at: denial.reset_at().map(time),
            retry_after_ms: denial.retry_after().map(Span::as_millis_ceil),
            decided_at: Some(time(denial.decided_at)),
            limits: denial.limits.iter().map(Into::into).collect(),
            degraded: denial.degraded,
            detail: detail_of(denial),
            estimated: denial.is_estimated(),
            expires_at: denial.expires_at.map(time),
            waiting_ahead: u64::try_from(denial.waiting_ahead).unwrap_or(u64::MAX),
            refused: refused
                .iter()
                .map(|refused| refused_limit(refused, denial.decided_at))
                .collect(),
            charges: charges.iter().map(Into::into).collect(),
            charge: denial.binding_charge().map(narrow),
        }
    }
}

impl TryFrom<Denied> for Denial {
    type Error = Error;

    fn try_from(denied: Denied) -> Result<Self, Error> {
        let decided_at = optional(denied.decided_at)?;
        Ok(Self {
            policy: denied.policy.into(),
            limit: denied.limit.into(),
            unit: denied.unit.into(),
            asked: denied.asked,
            most: denied.most,
            wait: optional(denied.reset_at)?.map_or(Wait::Never, Wait::Until),
            expires_at: optional(denied.expires_at)?,
            slots: None,
            waiting_ahead: usize::try_from(denied.waiting_ahead).unwrap_or(usize::MAX),
            decided_at: decided_at.ok_or_else(|| unexpected("a denial without decided_at"))?,
            limits: standings(denied.limits)?,
            degraded: denied.degraded,
            joint: match denied.charges.is_empty() {
                true => None,
                false => Some(Box::new(joint_denial(denied.refused, denied.charges)?)),
            },
        })
    }
}

impl From<&Standing> for LimitStanding {
    fn from(standing: &Standing) -> Self {
        Self {
            name: standing.name.to_string(),
            unit: standing.unit.to_string(),
            limit: standing.limit,
            used: standing.used,
            remaining: standing.remaining,
            reset_at: standing.reset_at.map(time),
            full_at: standing.full_at.map(time),
            refilled_at: standing.refilled_at.map(time),
        }
    }
}

/// Converts the standings of a message.
///
/// # Errors
/// [`Invalid`](tollgate::ErrorKind::Invalid) for a time that is out of range.
pub fn standings(limits: Vec<LimitStanding>) -> Result<Vec<Standing>, Error> {
    let standing = |limit: LimitStanding| {
        Ok(Standing {
            name: limit.name.into(),
            unit: limit.unit.into(),
            limit: limit.limit,
            used: limit.used,
            remaining: limit.remaining,
            reset_at: optional(limit.reset_at)?,
            full_at: optional(limit.full_at)?,
            refilled_at: optional(limit.refilled_at)?,
        })
    };
    limits.into_iter().map(standing).collect()
}

fn optional(time: Option<Time>) -> Result<Option<Timestamp>, Error> {
    time.map(instant).transpose()
}
