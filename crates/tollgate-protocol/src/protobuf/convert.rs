//! Conversion between core types and messages.

use tollgate::core::Wait;
use tollgate::{Decision, Denial, Error, Permit, Policy, Span, Standing, Timestamp};

use super::tollgate::v1::acquire_response::Decision as DecisionMessage;
use super::tollgate::v1::{AcquireResponse, Admitted, Denied, LimitStanding};
use super::{Time, instant, time};
use crate::json::detail_of;
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

    /// Returns the decision about an ask under `policy`.
    ///
    /// # Errors
    /// [`Corrupt`](tollgate::ErrorKind::Corrupt) if required members are missing.
    pub fn into_decision(self, policy: &Policy) -> Result<Decision, Error> {
        match self.decision {
            Some(DecisionMessage::Admitted(admitted)) => {
                admitted.into_permit(policy).map(Decision::Admitted)
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
            degraded: permit.degraded,
            use_by: permit.use_by().map(time),
            expires_at: permit.expires_at().map(time),
            shadow_denied: permit.shadow_denied.as_deref().map(Into::into),
        }
    }

    /// Returns the permit, which was issued under `policy`.
    ///
    /// # Errors
    /// [`Invalid`](tollgate::ErrorKind::Invalid) or [`Corrupt`](tollgate::ErrorKind::Corrupt) if this version cannot
    /// read it.
    pub fn into_permit(self, policy: &Policy) -> Result<Permit, Error> {
        let mut permit = permit_token::read(&self.permit, policy)?;
        permit.limits = standings(self.limits)?;
        permit.shadow_denied = self.shadow_denied.map(Denial::try_from).transpose()?.map(Box::new);
        Ok(permit)
    }
}

impl From<&Denial> for Denied {
    fn from(denial: &Denial) -> Self {
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
