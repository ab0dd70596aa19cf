//! The lists of `tollgate top`: a title, a header and rows.

use tollgate_protocol::json::{LimitStanding, PolicyCounts, StandingResponse, StatsResponse};

use super::Snapshot;
use crate::audit;
use crate::show::grows;
use tollgate_terminal::escape_controls;

/// One list; its first line is the header.
pub(super) struct List {
    pub(super) title: String,
    pub(super) lines: Vec<String>,
}

/// The title of the list whose rows are subjects.
pub(super) const MOST_LIMITED: &str = "MOST LIMITED";

/// Returns every list, in order. Empty lists of waiting asks and incidents are left out.
pub(super) fn all(now: &Snapshot, before: Option<&Snapshot>) -> Vec<List> {
    let list = |title: &str, lines| List { title: title.to_owned(), lines };
    let mut lists = vec![
        list("POLICIES", policies(&now.stats, before.map(|before| &before.stats))),
        list("LIMITS", limits(now)),
    ];
    lists.extend(now.standing.as_ref().map(|standing| List {
        title: format!(
            "STANDING of {} under {}",
            escape_controls(&standing.subject),
            standing.policy
        ),
        lines: self::standing(standing),
    }));
    lists.push(list(MOST_LIMITED, limited(now)));
    if !now.queues.queues.is_empty() {
        lists.push(list("WAITING", waiting(now)));
    }
    lists.push(list("RECENT", audit::rows(&now.recent.records)));
    if !now.incidents.records.is_empty() {
        lists.push(list("INCIDENTS", audit::rows(&now.incidents.records)));
    }
    lists
}

fn policies(now: &StatsResponse, before: Option<&StatsResponse>) -> Vec<String> {
    let head = format!(
        "{:<24} {:>12} {:>12} {:>14} {:>14} {:>10} {:>10}",
        "policy", "admitted/s", "refused/s", "admitted", "refused", "failed", "degraded"
    );
    let passed = before.and_then(|before| now.now?.since(before.now?).as_micros().into());
    let lines = now.policies.iter().map(|counts| {
        let last =
            before.and_then(|before| before.policies.iter().find(|one| one.name == counts.name));
        let per_second = |of: fn(&PolicyCounts) -> u64| match (passed, last) {
            (Some(micros), Some(last)) if 0 < micros => {
                rate(of(counts).saturating_sub(of(last)), micros)
            }
            _ => "-".to_owned(),
        };
        format!(
            "{:<24} {:>12} {:>12} {:>14} {:>14} {:>10} {:>10}",
            counts.name,
            per_second(|counts| counts.admitted),
            per_second(|counts| counts.refused),
            counts.admitted,
            counts.refused,
            counts.failed,
            counts.degraded
        )
    });
    std::iter::once(head).chain(lines).collect()
}

/// Formats `count` per `micros` as a rate per second with one decimal.
fn rate(count: u64, micros: u64) -> String {
    let tenths = u128::from(count) * 10_000_000 / u128::from(micros);
    format!("{}.{}", tenths / 10, tenths % 10)
}

fn limited(now: &Snapshot) -> Vec<String> {
    let head = format!("{:<40} {:<24} {:>10}", "subject", "policy", "times");
    let lines = now.top.subjects.iter().map(|one| {
        let sure = if one.error == 0 {
            String::new()
        } else {
            format!(" (at least {})", one.count - one.error)
        };
        format!("{:<40} {:<24} {:>10}{sure}", escape_controls(&one.subject), one.policy, one.count)
    });
    std::iter::once(head).chain(lines).collect()
}

/// Formats how many asks of each tenant wait, and for what.
fn waiting(now: &Snapshot) -> Vec<String> {
    let row = |tenant: &str, weight: &str, waiting: &str, policy: &str, subject: &str| {
        format!("{tenant:<40} {weight:>10} {waiting:>10}   {policy:<24} {subject}")
    };
    let mut lines = vec![row("tenant", "weight", "waiting", "for policy", "subject")];
    for queue in &now.queues.queues {
        let subject = escape_controls(&queue.subject);
        lines.extend(queue.tenants.iter().map(|one| {
            let (weight, waiting) = (one.weight.to_string(), one.waiting.to_string());
            row(&escape_controls(&one.tenant), &weight, &waiting, &queue.policy, &subject)
        }));
    }
    lines
}

/// Formats the limits in force, and the overrides.
fn limits(now: &Snapshot) -> Vec<String> {
    let row = |policy: &str, limit: &str, unit: &str, rule: &str, subject: &str| {
        let line = format!("{policy:<24} {limit:<16} {unit:<12} {rule:<40} {subject}");
        line.trim_end().to_owned()
    };
    let mut lines = vec![row("policy", "limit", "unit", "rule", "for")];
    for policy in &now.policies.policies {
        let all = (policy.limits.as_slice(), "everyone".to_owned());
        let others = policy.overridden.iter().map(|other| {
            let why = if other.unfit.is_some() { ", no effect" } else { "" };
            let subject = format!("{} ({}{why})", escape_controls(&other.subject), other.source);
            (other.limits.as_slice(), subject)
        });
        for (limits, subject) in std::iter::once(all).chain(others) {
            lines.extend(limits.iter().map(|limit| {
                row(&policy.name, &limit.name, &limit.unit, &limit.summary, &subject)
            }));
        }
    }
    lines
}

fn standing(standing: &StandingResponse) -> Vec<String> {
    let head =
        format!("{:<24} {:>14} {:>14} {:>14}   resets or full in", "limit", "used", "left", "of");
    let row = |one: &LimitStanding| {
        let reset = grows(one).map_or_else(|| "-".to_owned(), |(_, span, _)| span);
        let LimitStanding { name, used, remaining, limit, .. } = one;
        format!("{name:<24} {used:>14} {remaining:>14} {limit:>14}   {reset}")
    };
    std::iter::once(head).chain(standing.limits.iter().map(row)).collect()
}
