//! What callers really spent, in the words of the checkers.
//!
//! The store's history says what was charged. This says what went out of the door, and when: an ask that was admitted
//! and then not made was never spent, whether or not the store heard of it.

use tollgate_core::{
    CalendarWindow, Costs, Headroom, Limit, Policy, RollingWindow, Rule, Timestamp, TokenBucket,
};

use super::ledger::{Asked, Ended, Key, Spending};
use super::recorder::History;
use crate::checkers;
use crate::script::{Action, PermitSummary, Record, Reply};

/// How much more than a rule may be spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Widening {
    /// So much in any window.
    By(u64),
    /// The worst case of fallback while `cut_off` of `instances` decide alone.
    Shares { cut_off: u64, instances: u64 },
}

/// Spending of one policy and subject as a history: what the store decided at the time of its charge, what a machine decided
/// at the true time of its answer.
pub(super) fn history(asked: &[Asked], key: &Key, store: &History, is_atomic: bool) -> Vec<Record> {
    let mut admitted: Vec<(Timestamp, &Costs, &Spending)> = asked
        .iter()
        .filter_map(|asked| {
            let Ended::Admitted { at, .. } = asked.ended else { return None };
            let (costs, spending) = asked.charge_of(key)?;
            let spending = spending?;
            let by_store = is_atomic || store.has_charged(spending.stamp, spending.charged_at);
            Some((if by_store { spending.charged_at } else { at }, costs, spending))
        })
        .collect();
    admitted.sort_by_key(|(at, ..)| *at);
    let mut history = Vec::with_capacity(2 * admitted.len());
    for (permit, (at, costs, spending)) in admitted.iter().enumerate() {
        let given = PermitSummary { permit, at: *at, use_by: None, expires_at: None };
        let costs = (*costs).clone();
        history.push(record(
            *at,
            Action::Acquire { costs: costs.clone(), id: None },
            Reply::Admitted(given),
        ));
        if let Some((actual, _)) = &spending.actual {
            // Settling for more is a debt, which the store's history has.
            let actual = least(actual, &costs);
            history.push(record(*at, Action::Settle { permit, actual }, Reply::Settled(true)));
        }
    }
    history
}

fn least(actual: &Costs, estimate: &Costs) -> Costs {
    let least = |(unit, amount): (&str, u64)| {
        (unit.to_owned(), amount.min(estimate.get(unit).unwrap_or(0)))
    };
    actual.iter().map(least).collect()
}

const fn record(now: Timestamp, action: Action, reply: Reply) -> Record {
    Record { now, action, reply, before: Vec::new(), after: Vec::new() }
}

/// Whether `history` stays within `policy` as configured, widened.
pub(super) fn within(
    policy: &Policy,
    history: &[Record],
    widening: Widening,
) -> Result<(), String> {
    match widened(policy, widening)? {
        Some(policy) => checkers::never_over(&policy, history),
        None => Ok(()),
    }
}

/// The least of `0..=most` that must be added to each limit for `history` to stay within them; `most` if more must.
pub(super) fn over(policy: &Policy, history: &[Record], most: u64) -> u64 {
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = u64::midpoint(low, high);
        match within(policy, history, Widening::By(middle)) {
            Ok(()) => high = middle,
            Err(_) => low = middle + 1,
        }
    }
    low
}

/// The limits as a person configured them, each widened: no time to live of blocks taken off. Places are left out, since
/// only the store knows whether they are free. Nothing if nothing is left.
fn widened(policy: &Policy, widening: Widening) -> Result<Option<Policy>, String> {
    let (cut_off, instances) = match widening {
        Widening::By(_) => (0, 1),
        Widening::Shares { cut_off, instances } => (cut_off, instances),
    };
    let mut limits = Vec::new();
    for (limit, worst) in policy.limits().zip(policy.worst_case(instances, cut_off)) {
        let (most, headroom) = match widening {
            Widening::By(more) => (limit.rule().limit() + more, limit.headroom_setting()),
            Widening::Shares { .. } => (worst, Headroom::Units(0)),
        };
        let rule: Rule = match limit.rule() {
            Rule::TokenBucket(rule) => {
                let refill = (rule.refill * (instances + cut_off)).div_ceil(instances);
                TokenBucket { capacity: most, refill, ..*rule }.into()
            }
            Rule::RollingWindow(rule) => RollingWindow { limit: most, ..*rule }.into(),
            Rule::CalendarWindow(rule) => CalendarWindow { limit: most, ..rule.clone() }.into(),
            _ => continue,
        };
        limits.push(Limit::new(limit.name(), limit.unit(), rule).headroom(headroom));
    }
    if limits.is_empty() {
        return Ok(None);
    }
    Policy::new(policy.name(), limits).map(Some).map_err(|error| error.to_string())
}
