//! Answers as people read them. Programs get the same as JSON.

use std::fmt::Write as _;

use tollgate::core::{ahead_for_people, wait_for_people};
use tollgate::{Span, Timestamp};
use tollgate_server::wire::{
    Admitted, Answer, Denied, FROM_API, LimitDescription, LimitStanding, OverrideDescription,
    PoliciesResponse, Renewed, StandingResponse, counted,
};

use crate::incidents;
use crate::intent::Call;
use crate::reply::Reply;

/// What `reply` says in answer to `question`, without a line break at the end.
pub(crate) fn reply(question: &Question, reply: &Reply) -> String {
    match reply {
        Reply::Decided(Answer::Admitted(admitted)) => self::admitted(admitted),
        Reply::Decided(Answer::Denied(denied)) => self::denied(denied),
        Reply::Decided(Answer::Failed(problem)) => problem.detail.clone(),
        Reply::Changed(changed) => question.done(changed.changed),
        Reply::Renewed(renewed) => self::renewed(renewed),
        Reply::Standing(standing) => self::standing(standing),
        Reply::Incident(incident) => incidents::detail(incident),
        Reply::Policies(policies) => self::policies(policies),
        Reply::Override(of) => overridden(of),
    }
}

/// What a call was about, for answers that say no more than yes or no.
#[derive(Debug)]
pub(crate) enum Question {
    Settle,
    Release,
    Reset { policy: String, subject: String },
    Restore { policy: String, subject: String },
    Other,
}

impl Question {
    pub(crate) fn of(call: &Call) -> Self {
        match call {
            Call::Settle(_) => Self::Settle,
            Call::Release(_) => Self::Release,
            Call::Reset(query) => {
                Self::Reset { policy: query.policy.clone(), subject: query.subject.clone() }
            }
            Call::Restore(query) => {
                Self::Restore { policy: query.policy.clone(), subject: query.subject.clone() }
            }
            _ => Self::Other,
        }
    }

    fn done(&self, changed: bool) -> String {
        match (self, changed) {
            (Self::Settle, true) => "settled".to_owned(),
            (Self::Release, true) => "released".to_owned(),
            (Self::Settle | Self::Release, false) => {
                "nothing changed: the permit was settled or released before, charged nothing, was given by another \
                 broker, which alone can give it back, or in an outage whose charges are posted already"
                    .to_owned()
            }
            (Self::Reset { policy, subject }, true) => {
                let subject = plain(subject);
                format!("reset: {subject} starts with nothing used under {policy}")
            }
            (Self::Reset { policy, subject }, false) => {
                let subject = plain(subject);
                format!("nothing to reset: {subject} has nothing on record under {policy}")
            }
            (Self::Restore { policy, subject }, true) => {
                let subject = plain(subject);
                format!("removed: {subject} has the numbers of the configuration under {policy}")
            }
            (Self::Restore { policy, subject }, false) => {
                let subject = plain(subject);
                format!("nothing to remove: {subject} has no override of {policy} in the store")
            }
            (Self::Other, true) => "done".to_owned(),
            (Self::Other, false) => "nothing changed".to_owned(),
        }
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
    for limit in &admitted.limits {
        let LimitStanding { name, unit, remaining, limit, .. } = limit;
        let _ = write!(text, "\n  {name}: {remaining} of {} left", counted(*limit, unit));
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
    let Denied { limit, unit, asked, most, .. } = denied;
    let (Some(wait_ms), Some(at)) = (denied.retry_after_ms, denied.reset_at) else {
        return format!(
            "denied by {limit}: {} never fit, at most {most} at once do; ask for less",
            counted(*asked, unit)
        );
    };
    let mut text = format!("denied by {limit}: ");
    if let Some(standing) = denied.limits.iter().find(|standing| standing.name == *limit) {
        let _ = write!(text, "{} of {} left, ", standing.remaining, standing.limit);
        if 0 < standing.remaining {
            let _ = write!(text, "asked for {asked}, ");
        }
    }
    if 0 < denied.waiting_ahead {
        let _ = write!(text, "{}, ", ahead_for_people(denied.waiting_ahead));
    }
    let wait = Span::from_millis(wait_ms);
    // Both are instants of the broker's clock, so only their distance counts here.
    let latest = denied.expires_at.map(|latest| wait.plus(latest.since(at)));
    let _ = write!(text, "try again in {}", wait_for_people(wait, latest));
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
    let mut text = format!("{} under {}", plain(&standing.subject), standing.policy);
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

/// When a limit has room again: a bucket refills until it is full, other limits reset.
pub(crate) fn grows(of: &LimitStanding) -> Option<(&'static str, String, Timestamp)> {
    let (at, reset_in) = (of.reset_at?, of.reset_in.clone()?);
    match (of.refilled_at, of.full_at, reset_in.parse::<Span>()) {
        // Both are instants of the broker's clock, so only their distance counts here.
        (Some(_), Some(full_at), Ok(reset)) => {
            Some(("full", reset.plus(full_at.since(at)).for_people(), full_at))
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
    blocks.join("\n")
}

fn overridden(of: &OverrideDescription) -> String {
    let mut text = plain(&of.subject);
    match &of.unfit {
        Some(why) => {
            let _ = write!(text, " (no effect: {why})");
        }
        None => text += " (made at run time)",
    }
    for LimitDescription { name, unit, summary, .. } in &of.limits {
        let _ = write!(text, "\n  {name}: {unit}, {summary}");
    }
    text
}

/// `text` with what a terminal would obey escaped: control characters, and those that turn the writing around. A subject
/// may be anything.
pub(crate) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() || TURNS.contains(&letter) {
            plain.extend(letter.escape_default());
        } else {
            plain.push(letter);
        }
    }
    plain
}

/// The characters that set the direction of what follows.
const TURNS: [char; 12] = [
    '\u{61c}', '\u{200e}', '\u{200f}', '\u{202a}', '\u{202b}', '\u{202c}', '\u{202d}', '\u{202e}',
    '\u{2066}', '\u{2067}', '\u{2068}', '\u{2069}',
];

/// RFC 3339 in UTC, rounded up to a second: whoever comes back then is not too early.
fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_secs(at.since(Timestamp::EPOCH).as_secs_ceil())
}

/// RFC 3339 in UTC, rounded down to a second: whoever acts by then is not too late.
fn whole_seconds_down(at: Timestamp) -> Timestamp {
    Timestamp::from_secs(at.as_micros() / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn a_subject_cannot_steer_the_terminal() {
        let text = "a\u{1b}[2Jb\u{202e}c\u{2066}\n\u{e4}";
        assert_eq!(plain(text), "a\\u{1b}[2Jb\\u{202e}c\\u{2066}\\n\u{e4}");
    }
}
