//! Honest waits: denied until the promised time and admitted from it on, unless something changed in between.

use tollgate_core::{Policy, Timestamp};

use super::spent::changes;
use crate::script::{Action, Record, Reply};

/// After a denial the same ask is denied at every time before the promised one, with the same promise, and not denied
/// from it on, as long as nothing was changed between.
pub fn honest_wait(_policy: &Policy, history: &[Record]) -> Result<(), String> {
    for (index, record) in history.iter().enumerate() {
        let Some((costs, promised)) = promise(record) else { continue };
        for later in &history[index + 1..] {
            if let Action::Acquire { costs: asked, .. } = &later.action
                && asked == costs
            {
                check(record, promised, later)?;
            }
            if changes(&later.reply) {
                break;
            }
        }
    }
    Ok(())
}

type Promised = Option<Timestamp>;

fn promise(record: &Record) -> Option<(&tollgate_core::Costs, Promised)> {
    match (&record.action, &record.reply) {
        (Action::Acquire { costs, .. }, Reply::Denied(refused) | Reply::Shadowed(_, refused)) => {
            Some((costs, refused.until))
        }
        _ => None,
    }
}

fn check(denied: &Record, promised: Promised, later: &Record) -> Result<(), String> {
    let due = promised.is_some_and(|until| until <= later.now);
    let (reply, again) = match &later.reply {
        Reply::Denied(refused) | Reply::Shadowed(_, refused) => ("denied", Some(refused.until)),
        Reply::Admitted(_) => ("admitted", None),
        _ => return Ok(()),
    };
    let honest = match again {
        Some(until) => !due && until == promised,
        None => due,
    };
    if honest {
        return Ok(());
    }
    Err(format!(
        "denied at {} until {promised:?} and, with nothing between, {reply} at {} (until {again:?})",
        denied.now, later.now
    ))
}

#[cfg(test)]
mod tests {
    use tollgate_core::{Span, TokenBucket};

    use super::*;
    use crate::checkers::samples::{admitted, at, denied, policy};

    #[test]
    fn a_broken_promise_is_found_on_either_side() {
        let policy = policy(TokenBucket::per_second(1).burst(10));
        let before = at(3) - Span::from_micros(1);
        let right = [denied(at(0), 8, at(3)), denied(before, 8, at(3)), admitted(at(3), 0, 8)];
        assert_eq!(honest_wait(&policy, &right), Ok(()));
        let early = [denied(at(0), 8, at(3)), admitted(before, 0, 8)];
        assert!(honest_wait(&policy, &early).is_err());
        let late = [denied(at(0), 8, at(3)), denied(at(3), 8, at(4))];
        assert!(honest_wait(&policy, &late).is_err());
        let moved = [denied(at(0), 8, at(3)), denied(before, 8, at(4))];
        assert!(honest_wait(&policy, &moved).is_err());
    }

    #[test]
    fn a_promise_ends_where_something_came_between() {
        let policy = policy(TokenBucket::per_second(1).burst(10));
        let history = [denied(at(0), 8, at(3)), admitted(at(1), 0, 1), denied(at(3), 8, at(4))];
        assert_eq!(honest_wait(&policy, &history), Ok(()));
    }
}
