//! How a reply may change usage: all or nothing, refusals are free, ids charge once.

use tollgate_core::{Policy, Rule, Timestamp};

use super::spent::full;
use crate::script::{Action, HORIZON, Record, Reply};

/// An admitted ask raises the usage of every limit by its cost; any other reply to an ask raises none.
pub fn all_or_nothing(policy: &Policy, history: &[Record]) -> Result<(), String> {
    for record in history {
        let Action::Acquire { costs, .. } = &record.action else { continue };
        let admitted = matches!(record.reply, Reply::Admitted(_));
        let costs = full(policy, costs);
        for (before, after) in record.before.iter().zip(&record.after) {
            let cost = if admitted { costs.get(&before.unit).unwrap_or(0) } else { 0 };
            if before.used + cost != after.used {
                return Err(format!(
                    "at {} limit {:?} went from {} to {} used, where {} should have been added ({:?})",
                    record.now, before.name, before.used, after.used, cost, record.reply
                ));
            }
        }
    }
    Ok(())
}

/// A denied ask leaves every standing as it was: used, remaining, and every promised time.
pub fn refusals_free(_policy: &Policy, history: &[Record]) -> Result<(), String> {
    for record in history {
        let refused = matches!(record.reply, Reply::Denied(_) | Reply::Shadowed(..));
        if refused && record.before != record.after {
            return Err(format!(
                "the refusal at {} changed {:?} to {:?}",
                record.now, record.before, record.after
            ));
        }
    }
    Ok(())
}

/// An ask repeated under its id within the horizon is charged once, and gets the permit it got before.
pub fn once(policy: &Policy, history: &[Record]) -> Result<(), String> {
    let mut known: Vec<(&str, Timestamp, usize, &Record)> = Vec::new();
    for record in history {
        match (&record.action, &record.reply) {
            (Action::Reset, _) => known.clear(),
            // A released permit is void, so its ask may come again.
            (Action::Release { permit: released }, Reply::Settled(true)) => {
                known.retain(|(_, _, permit, _)| permit != released);
            }
            _ => {}
        }
        let (Action::Acquire { id: Some(id), costs }
        | Action::Charge { id: Some(id), costs }
        | Action::Post { id: Some(id), costs }) = &record.action
        else {
            continue;
        };
        let now = record.now;
        let first = known.iter().rfind(|(other, until, _, _)| other == id && now < *until);
        match (&record.reply, first) {
            // A repeat whose slots are gone is a new ask; the model knows which are.
            (Reply::Admitted(given), Some(_)) if has_slots(policy) => {
                known.push((id.as_str(), given.at + HORIZON, given.permit, record));
            }
            (Reply::Admitted(given) | Reply::Charged(given), None) => {
                known.push((id.as_str(), given.at + HORIZON, given.permit, record));
            }
            (Reply::Admitted(_) | Reply::Charged(_), Some((_, until, permit, _))) => {
                return Err(format!(
                    "id {id:?} was charged again at {now}, though it was charged as permit {permit} and is known until {until}"
                ));
            }
            (Reply::Repeated(given), Some((_, _, permit, first))) => {
                let (Action::Acquire { costs: before, .. }
                | Action::Charge { costs: before, .. }
                | Action::Post { costs: before, .. }) = &first.action
                else {
                    continue;
                };
                if given.permit != *permit || full(policy, before) != full(policy, costs) {
                    return Err(format!(
                        "id {id:?} at {now} got permit {}, not {permit}",
                        given.permit
                    ));
                }
            }
            (Reply::Repeated(given), None) if !stepped_back(history, now) => {
                return Err(format!(
                    "id {id:?} at {now} got permit {}, which was never issued",
                    given.permit
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether a clock in the history was ahead of `now`, so that the records do not show the horizon.
fn stepped_back(history: &[Record], now: Timestamp) -> bool {
    history.iter().any(|record| now < record.now)
}

/// Whether the policy has a limit that counts places rather than amounts.
pub(super) fn has_slots(policy: &Policy) -> bool {
    policy.limits().any(|limit| matches!(limit.rule(), Rule::Concurrency(_)))
}

#[cfg(test)]
mod tests {
    use tollgate_core::{Costs, TokenBucket};

    use super::*;
    use crate::checkers::samples::{admitted, at, denied, policy, standing};
    use crate::script::PermitSummary;

    fn bucket() -> Policy {
        policy(TokenBucket::per_second(1).burst(10))
    }

    #[test]
    fn an_admission_that_charged_something_else_is_found() {
        let mut record = admitted(at(0), 0, 3);
        assert_eq!(all_or_nothing(&bucket(), std::slice::from_ref(&record)), Ok(()));
        record.after = standing(2);
        assert!(all_or_nothing(&bucket(), &[record]).is_err());
    }

    #[test]
    fn a_refusal_that_charged_is_found() {
        let mut record = denied(at(0), 8, at(3));
        assert_eq!(refusals_free(&bucket(), std::slice::from_ref(&record)), Ok(()));
        record.after = standing(6);
        let history = [record];
        assert!(refusals_free(&bucket(), &history).is_err());
        assert!(all_or_nothing(&bucket(), &history).is_err());
    }

    #[test]
    fn an_id_that_was_charged_twice_is_found() {
        let named = |now, permit| Record {
            action: Action::Acquire { costs: Costs::new(), id: Some("same".to_owned()) },
            ..admitted(now, permit, 1)
        };
        let later = at(0) + HORIZON;
        assert_eq!(once(&bucket(), &[named(at(0), 0), named(later, 1)]), Ok(()));
        let error = once(&bucket(), &[named(at(0), 0), named(at(119), 1)]).unwrap_err();
        assert!(error.contains("charged again"), "{error}");
    }

    #[test]
    fn a_repeat_that_got_the_permit_of_another_is_found() {
        let given = PermitSummary { permit: 7, at: at(0), use_by: None, expires_at: None };
        let id = Some("same".to_owned());
        let first =
            Record { action: Action::Acquire { costs: Costs::new(), id }, ..admitted(at(0), 0, 1) };
        let repeat = Record { reply: Reply::Repeated(given), ..first.clone() };
        assert!(once(&bucket(), &[first, repeat]).is_err());
    }
}
