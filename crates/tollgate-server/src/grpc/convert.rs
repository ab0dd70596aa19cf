//! Messages from core types: standings, answers, costs.

use std::collections::BTreeMap;

use tollgate::{Costs, Decision, Denial, Permit, Span, Standing};

use crate::proto::time;
use crate::proto::tollgate::v1 as messages;
use crate::proto::tollgate::v1::acquire_response::Decision as Answer;
use crate::token;
use crate::wire::detail_of;

pub(super) fn costs(named: BTreeMap<String, u64>) -> Costs {
    named.into_iter().collect()
}

pub(super) fn standings(standings: &[Standing]) -> Vec<messages::LimitStanding> {
    let of = |standing: &Standing| messages::LimitStanding {
        name: standing.name.to_string(),
        unit: standing.unit.to_string(),
        limit: standing.limit,
        used: standing.used,
        remaining: standing.remaining,
        reset_at: standing.reset_at.map(time),
        full_at: standing.full_at.map(time),
        refilled_at: standing.refilled_at.map(time),
    };
    standings.iter().map(of).collect()
}

pub(super) fn decision(decision: &Decision, key: &token::Key) -> messages::AcquireResponse {
    let answer = match decision {
        Decision::Admitted(permit) => Answer::Admitted(admitted(permit, key)),
        Decision::Denied(denial) => Answer::Denied(denied(denial)),
    };
    messages::AcquireResponse { decision: Some(answer) }
}

pub(super) fn admitted(permit: &Permit, key: &token::Key) -> messages::Admitted {
    messages::Admitted {
        permit: token::encode(permit, key),
        limits: standings(&permit.limits),
        degraded: permit.degraded,
        use_by: permit.use_by().map(time),
        expires_at: permit.expires_at().map(time),
        shadow_denied: permit.shadow_denied.as_deref().map(denied),
    }
}

fn denied(denial: &Denial) -> messages::Denied {
    messages::Denied {
        policy: denial.policy.to_string(),
        limit: denial.limit.to_string(),
        unit: denial.unit.to_string(),
        asked: denial.asked,
        most: denial.most,
        reset_at: denial.reset_at().map(time),
        retry_after_ms: denial.retry_after().map(Span::as_millis_ceil),
        decided_at: Some(time(denial.decided_at)),
        limits: standings(&denial.limits),
        degraded: denial.degraded,
        detail: detail_of(denial),
        estimated: denial.is_estimated(),
        expires_at: denial.expires_at.map(time),
        waiting_ahead: u64::try_from(denial.waiting_ahead).unwrap_or(u64::MAX),
    }
}
