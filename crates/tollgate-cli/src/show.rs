//! Formats replies for people. Programs get the same as JSON.

use std::fmt::Write as _;

use tollgate::core::{humanize_ahead, humanize_wait};
use tollgate::{Span, Timestamp};
use tollgate_protocol::json::{
    AcquireResponse, Admitted, ChargeStanding, Denied, FROM_API, LimitDescription, LimitStanding,
    OverrideDescription, PlanDescription, PoliciesResponse, RefusedLimit, Renewed, StandingQuery,
    StandingResponse, counted,
};
use tollgate_terminal::escape_controls;

use crate::call::{Call, Reply};
use crate::incidents;

/// Formats the reply to `call`, without a trailing line break.
pub(crate) fn reply(call: &Call, reply: &Reply) -> String {
    match reply {
        Reply::Decided(AcquireResponse::Admitted(admitted)) => self::admitted(admitted),
        Reply::Decided(AcquireResponse::Denied(denied)) => self::denied(denied),
        Reply::Decided(AcquireResponse::Failed(problem)) => problem.detail.clone(),
        Reply::Changed(changed) => self::changed(call, changed.changed),
        Reply::Renewed(renewed) => self::renewed(renewed),
        Reply::Standing(standing) => self::standing(standing),
        Reply::Incident(incident) => incidents::detail(incident),
        Reply::Policies(policies) => self::policies(policies),
        Reply::Override(described) => overridden(described),
    }
}

/// Formats the reply to a call that only says whether something changed.
fn changed(call: &Call, changed: bool) -> String {
    match (call, changed) {
        (Call::Settle(_), true) => "settled".to_owned(),
        (Call::Release(_), true) => "released".to_owned(),
        (Call::Settle(_) | Call::Release(_), false) => {
            "nothing changed: the permit was settled or released before, charged nothing, was given by another \
             broker, which alone can give it back, or in an outage whose charges are posted already"
                .to_owned()
        }
        (Call::Reset(StandingQuery { policy, subject }), _) => {
            let subject = escape_controls(subject);
            match changed {
                true => format!("reset: {subject} starts with nothing used under {policy}"),
                false => format!("nothing to reset: {subject} has nothing on record under {policy}"),
            }
        }
        (Call::Restore(StandingQuery { policy, subject }), _) => {
            let subject = escape_controls(subject);
            match changed {
                true => format!("removed: {subject} has the numbers of the configuration under {policy}"),
                false => format!("nothing to remove: {subject} has no override of {policy} in the store"),
            }
        }
        (_, true) => "done".to_owned(),
        (_, false) => "nothing changed".to_owned(),
    }
}

fn admitted(admitted: &Admitted) -> String {
    let mut text = "admitted".to_owned();
    if let Some(denied) = &admitted.shadow_denied {
        let _ = write!(text, " (shadow mode; otherwise {})", self::denied(denied));
    }
    if admitted.degraded {
        text += " without the store (degraded)";
    }
    let left = |text: &mut String, indent: &str, limits: &[LimitStanding]| {
        for LimitStanding { name, unit, remaining, limit, .. } in limits {
            let _ = write!(text, "\n{indent}{name}: {remaining} of {} left", counted(*limit, unit));
        }
    };
    if admitted.charges.is_empty() {
        left(&mut text, "  ", &admitted.limits);
    }
    for (index, charge) in admitted.charges.iter().enumerate() {
        let _ = write!(text, "\n  {}:{}", charge.policy, escape_controls(&charge.subject));
        // That of the first charge is above.
        if let Some(denied) = charge.shadow_denied.as_ref().filter(|_| 0 < index) {
            let _ = write!(text, " (shadow mode; otherwise {})", self::denied(denied));
        }
        left(&mut text, "    ", &charge.limits);
    }
    if let Some(at) = admitted.use_by {
        let _ = write!(text, "\nuse by {}", whole_seconds_down(at));
    }
    if let Some(at) = admitted.expires_at {
        let _ = write!(text, "\nslots expire at {}", whole_seconds_down(at));
    }
    let _ = write!(text, "\npermit {}", admitted.permit);
    text
}

fn denied(denied: &Denied) -> String {
    let mut text = binding(denied);
    for refused in &denied.refused {
        let RefusedLimit { charge, policy, subject, limit, .. } = refused;
        if denied.charge == Some(*charge) && denied.limit == *limit {
            continue;
        }
        let wait = match refused.retry_after_ms {
            Some(ms) => format!("has room in {}", Span::from_millis(ms).humanize()),
            None => "never has room".to_owned(),
        };
        let subject = escape_controls(subject);
        let _ = write!(text, "\n  also denied by {limit} of {policy}:{subject}, which {wait}");
    }
    text
}

/// Formats the limit that binds, and the wait for it.
fn binding(denied: &Denied) -> String {
    let Denied { unit, asked, most, .. } = denied;
    let charge = denied.charge.and_then(|charge| denied.charges.get(charge));
    let limit = match charge {
        Some(ChargeStanding { policy, subject, .. }) => {
            format!("{} of {policy}:{}", denied.limit, escape_controls(subject))
        }
        None => denied.limit.to_string(),
    };
    let (Some(wait_ms), Some(at)) = (denied.retry_after_ms, denied.reset_at) else {
        return format!(
            "denied by {limit}: {} never fit, at most {most} at once do; ask for less",
            counted(*asked, unit)
        );
    };
    let mut text = format!("denied by {limit}: ");
    if let Some(standing) = denied.limits.iter().find(|standing| standing.name == denied.limit) {
        let _ = write!(text, "{} of {} left, ", standing.remaining, standing.limit);
        if 0 < standing.remaining {
            let _ = write!(text, "asked for {asked}, ");
        }
    }
    if 0 < denied.waiting_ahead {
        let _ = write!(text, "{}, ", humanize_ahead(denied.waiting_ahead));
    }
    let wait = Span::from_millis(wait_ms);
    // Both are instants of the broker's clock, so only their difference counts.
    let latest = denied.expires_at.map(|latest| wait.plus(latest.since(at)));
    let _ = write!(text, "try again in {}", humanize_wait(wait, latest));
    if latest.is_none() {
        let _ = write!(text, " (at {})", whole_seconds(at));
    }
    text
}

fn renewed(renewed: &Renewed) -> String {
    let until = match renewed.expires_at {
        Some(at) => format!("renewed: slots expire at {}", whole_seconds_down(at)),
        None => "renewed: the permit holds no slots".to_owned(),
    };
    format!("{until}\npermit {}", renewed.permit)
}

fn standing(standing: &StandingResponse) -> String {
    let mut text = format!("{} under {}", escape_controls(&standing.subject), standing.policy);
    for of in &standing.limits {
        let LimitStanding { name, used, limit, remaining, .. } = of;
        let _ = write!(text, "\n  {name}: used {used} of {limit}");
        if used < limit {
            let _ = write!(text, ", {remaining} left");
        }
        if let Some((verb, span, at)) = grows(of) {
            let _ = write!(text, ", {verb} in {span} (at {})", whole_seconds(at));
        }
        if let Some(slots) = of.resolution {
            let _ = write!(text, "; on a grid of {}", counted(slots.into(), "slots"));
        }
    }
    text
}

/// Returns when a limit has room again: a bucket refills until it is full, other limits reset.
pub(crate) fn grows(of: &LimitStanding) -> Option<(&'static str, String, Timestamp)> {
    let (at, reset_in) = (of.reset_at?, of.reset_in.clone()?);
    match (of.refilled_at, of.full_at, reset_in.parse::<Span>()) {
        // Both are instants of the broker's clock, so only their difference counts.
        (Some(_), Some(full_at), Ok(reset)) => {
            Some(("full", reset.plus(full_at.since(at)).humanize(), full_at))
        }
        _ => Some(("resets", reset_in, at)),
    }
}

pub(crate) fn policies(policies: &PoliciesResponse) -> String {
    let mut blocks = Vec::with_capacity(policies.policies.len());
    for policy in &policies.policies {
        let mut text = policy.name.clone();
        if policy.shadow {
            text += " (shadow: never refuses)";
        }
        if policy.weight != 1 {
            let _ = write!(text, " (weight {})", policy.weight);
        }
        for limit in &policy.limits {
            let LimitDescription { name, unit, summary, effective, .. } = limit;
            let _ = write!(text, "\n  {name}: {unit}, {summary}");
            for (setting, value) in [("headroom", &limit.headroom), ("margin", &limit.margin)] {
                if let Some(value) = value {
                    let _ = write!(text, ", {setting} {value}");
                }
            }
            let _ = write!(text, "; issues at most {effective}");
        }
        if let Some(ttl) = &policy.block_ttl {
            let has_slots = policy.limits.iter().any(|limit| limit.rule == "concurrency");
            let why = match (policy.shadow, has_slots) {
                (true, _) => ", never leased: it is in shadow mode",
                (_, true) => ", never leased: it has a concurrency limit",
                _ => "",
            };
            let _ = write!(text, "\n  block_ttl {ttl}{why}");
        }
        match policy.overrides {
            0 => {}
            1 => text += "\n  other numbers for 1 subject",
            subjects => {
                let _ = write!(text, "\n  other numbers for {subjects} subjects");
            }
        }
        // A file may have very many; those that were made at run time are few, and news.
        for of in policy.overridden.iter().filter(|of| of.source == FROM_API) {
            let _ = write!(text, "\n    {}", overridden(of).replace('\n', "\n    "));
        }
        blocks.push(text);
    }
    blocks.extend(policies.plans.iter().map(plan));
    blocks.join("\n")
}

fn plan(plan: &PlanDescription) -> String {
    let mut text = format!("plan {}, subjects: {}", plan.name, plan.subjects);
    if !plan.assigned.is_empty() {
        let _ = write!(text, " and {} at run time", plan.assigned.len());
    }
    for numbers in &plan.policies {
        if numbers.unlimited {
            let _ = write!(text, "\n  {}: unlimited", numbers.policy);
            continue;
        }
        for LimitDescription { name, unit, summary, .. } in &numbers.limits {
            let _ = write!(text, "\n  {} {name}: {unit}, {summary}", numbers.policy);
        }
    }
    text
}

fn overridden(of: &OverrideDescription) -> String {
    let mut text = escape_controls(&of.subject);
    match &of.unfit {
        Some(why) => {
            let _ = write!(text, " (no effect: {why})");
        }
        None => text += " (made at run time)",
    }
    if of.unlimited {
        text += "\n  unlimited";
    }
    for LimitDescription { name, unit, summary, .. } in &of.limits {
        let _ = write!(text, "\n  {name}: {unit}, {summary}");
    }
    if of.weight != 1 {
        let _ = write!(text, "\n  weight {}", of.weight);
    }
    text
}

/// Rounds up to a second: a retry at that time is not too early.
fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_secs(at.since(Timestamp::EPOCH).as_secs_ceil())
}

/// Rounds down to a second: an action by that time is not too late.
fn whole_seconds_down(at: Timestamp) -> Timestamp {
    Timestamp::from_secs(at.as_micros() / 1_000_000)
}
