//! Answers as core types, from either transport.

use tollgate::{
    Ask, Decision, Denial, Error, ErrorKind, Permit, Policy, Span, Standing, Timestamp, Wait,
};
use tollgate_server::proto::tollgate::v1 as messages;
use tollgate_server::proto::tollgate::v1::acquire_response::Decision as Answer;
use tollgate_server::{proto, token, wire};

type Time = Option<proto::Time>;

/// What the seal does not carry.
pub(crate) struct Details {
    pub(crate) limits: Vec<Standing>,
    pub(crate) shadow_denied: Option<Denial>,
}

/// The permit that `seal` stands for under `policy`.
pub(crate) fn permit(seal: &str, policy: &Policy, details: Details) -> Result<Permit, Error> {
    let mut permit = token::read(seal, policy)?;
    permit.limits = details.limits;
    permit.shadow_denied = details.shadow_denied.map(Box::new);
    Ok(permit)
}

pub(crate) fn decision(
    answer: messages::AcquireResponse,
    ask: &Ask<'_>,
) -> Result<Decision, Error> {
    match answer.decision {
        Some(Answer::Admitted(admitted)) => {
            permit_of(admitted, ask.policy()).map(Decision::Admitted)
        }
        Some(Answer::Denied(denied)) => denial(denied).map(Decision::Denied),
        None => Err(odd("the broker answered with neither a permit nor a denial")),
    }
}

pub(crate) fn permit_of(admitted: messages::Admitted, policy: &Policy) -> Result<Permit, Error> {
    let details = Details {
        limits: standings(admitted.limits)?,
        shadow_denied: admitted.shadow_denied.map(denial).transpose()?,
    };
    permit(&admitted.permit, policy, details)
}

fn denial(denied: messages::Denied) -> Result<Denial, Error> {
    let decided_at = time(denied.decided_at)?;
    Ok(Denial {
        policy: denied.policy.into(),
        limit: denied.limit.into(),
        unit: denied.unit.into(),
        asked: denied.asked,
        most: denied.most,
        wait: time(denied.reset_at)?.map_or(Wait::Never, Wait::Until),
        expires_at: time(denied.expires_at)?,
        slots: None,
        waiting_ahead: usize::try_from(denied.waiting_ahead).unwrap_or(usize::MAX),
        decided_at: decided_at.ok_or_else(|| odd("a denial without the time of its decision"))?,
        limits: standings(denied.limits)?,
        degraded: denied.degraded,
    })
}

pub(crate) fn standings(limits: Vec<messages::LimitStanding>) -> Result<Vec<Standing>, Error> {
    let of = |limit: messages::LimitStanding| {
        Ok(Standing {
            name: limit.name.into(),
            unit: limit.unit.into(),
            limit: limit.limit,
            used: limit.used,
            remaining: limit.remaining,
            reset_at: time(limit.reset_at)?,
            full_at: time(limit.full_at)?,
            refilled_at: time(limit.refilled_at)?,
        })
    };
    limits.into_iter().map(of).collect()
}

fn time(time: Time) -> Result<Option<Timestamp>, Error> {
    time.map(proto::instant).transpose()
}

/// The same from JSON.
pub(crate) mod json {
    use super::{Denial, Details, Error, Permit, Policy, Span, Standing, Wait, odd, wire};

    pub(crate) fn permit_of(admitted: wire::Admitted, policy: &Policy) -> Result<Permit, Error> {
        let shadow_denied = admitted.shadow_denied.map(|denied| denial(*denied)).transpose()?;
        let details = Details { limits: standings(admitted.limits), shadow_denied };
        super::permit(&admitted.permit, policy, details)
    }

    pub(crate) fn denial(denied: wire::Denied) -> Result<Denial, Error> {
        // A broker that does not say when it decided says how long to wait, rounded up.
        let wait = denied.retry_after_ms.map(Span::from_millis);
        let decided_at = denied
            .decided_at
            .or_else(|| Some(denied.reset_at? - wait?))
            .ok_or_else(|| odd("a denial without the time of its decision"))?;
        Ok(Denial {
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
            limits: standings(denied.limits),
            degraded: denied.degraded,
        })
    }

    pub(crate) fn standings(limits: Vec<wire::LimitStanding>) -> Vec<Standing> {
        let of = |limit: wire::LimitStanding| Standing {
            name: limit.name,
            unit: limit.unit,
            limit: limit.limit,
            used: limit.used,
            remaining: limit.remaining,
            reset_at: limit.reset_at,
            full_at: limit.full_at,
            refilled_at: limit.refilled_at,
        };
        limits.into_iter().map(of).collect()
    }
}

pub(crate) fn odd(text: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{text}; is it another version?"))
}

/// `permit` after it was renewed under a new seal.
pub(crate) fn renewed(permit: &Permit, seal: &str) -> Result<Permit, Error> {
    let grant = *token::read(seal, permit.policy())?.grant();
    Ok(permit.clone().with_grant(grant).with_seal(seal))
}
