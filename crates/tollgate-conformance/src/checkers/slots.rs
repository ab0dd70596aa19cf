//! Conservation: the slots in use are exactly those that live permits hold.

use tollgate_core::{Limit, Policy, Rule, Timestamp};

use super::charges::has_slots;
use super::spent::{changes, full};
use crate::script::{Action, Record, Reply};

/// After every operation each concurrency limit counts exactly the places of the permits that were admitted and
/// neither settled, released nor expired.
pub fn conservation(policy: &Policy, history: &[Record]) -> Result<(), String> {
    if !has_slots(policy) {
        return Ok(());
    }
    for limit in policy.limits() {
        let mut places = Places::for_limit(policy, limit);
        for record in history {
            places.follow(record);
            let held = places.held(record.now);
            let standing = record.after.iter().find(|standing| &*standing.name == limit.name());
            match standing {
                Some(standing) if places.counts && u128::from(standing.used) != held => {
                    return Err(format!(
                        "at {} limit {:?} counts {} places and {held} are held",
                        record.now,
                        limit.name(),
                        standing.used
                    ));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// No admission takes a slot that is still held.
pub(super) fn never_over(
    policy: &Policy,
    limit: &Limit,
    most: u64,
    history: &[Record],
) -> Result<(), String> {
    let mut places = Places::for_limit(policy, limit);
    for record in history {
        places.follow(record);
        let held = places.held(record.now);
        if matches!(record.reply, Reply::Admitted(_)) && u128::from(most) < held {
            return Err(format!(
                "limit {:?} is over: {held} places held at {}, at most {most}",
                limit.name(),
                record.now
            ));
        }
    }
    Ok(())
}

/// The holders of one limit, and until when they hold.
struct Places<'a> {
    policy: &'a Policy,
    unit: &'a str,
    ttl: u64,
    counts: bool,
    clock: Timestamp,
    /// By permit.
    holders: Vec<(u64, u64)>,
}

impl<'a> Places<'a> {
    fn for_limit(policy: &'a Policy, limit: &'a Limit) -> Self {
        let ttl = match limit.rule() {
            Rule::Concurrency(rule) => Some(rule.ttl.as_micros()),
            _ => None,
        };
        Self {
            policy,
            unit: limit.unit(),
            ttl: ttl.unwrap_or(0),
            counts: ttl.is_some(),
            clock: Timestamp::EPOCH,
            holders: Vec::new(),
        }
    }

    fn held(&self, now: Timestamp) -> u128 {
        let now = now.max(self.clock).as_micros();
        let holding = self.holders.iter().filter(|(_, until)| now < *until);
        holding.map(|(places, _)| u128::from(*places)).sum()
    }

    fn follow(&mut self, record: &Record) {
        if changes(&record.reply) {
            self.clock = self.clock.max(record.now);
        }
        let clock = self.clock.as_micros();
        match (&record.action, &record.reply) {
            (Action::Acquire { costs, .. }, Reply::Admitted(given)) => {
                let places = full(self.policy, costs).get(self.unit).unwrap_or(0);
                self.holders.push((places, given.at.as_micros() + self.ttl));
            }
            (_, Reply::Shadowed(..) | Reply::Charged(_)) => self.holders.push((0, 0)),
            (Action::Settle { permit, .. } | Action::Release { permit }, Reply::Settled(true)) => {
                if let Some(holder) = self.holders.get_mut(*permit) {
                    holder.1 = holder.1.min(clock);
                }
            }
            (Action::Renew { permit }, Reply::Renewed(Some(_))) => {
                if let Some(holder) = self.holders.get_mut(*permit) {
                    holder.1 = holder.1.max(clock + self.ttl);
                }
            }
            (Action::Reset, Reply::Done(_)) => {
                self.holders.iter_mut().for_each(|holder| holder.1 = 0);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_core::{Concurrency, Span};

    use super::*;
    use crate::checkers::samples::{admitted, at, policy, released, standing};

    #[test]
    fn a_slot_that_is_lost_or_held_twice_is_found() {
        let policy = policy(Concurrency::new(5, Span::from_secs(30)));
        let released = released(at(1), 0);
        let right = [admitted(at(0), 0, 5), released.clone(), admitted(at(1), 1, 5)];
        assert_eq!(conservation(&policy, &right), Ok(()));
        assert_eq!(crate::checkers::never_over(&policy, &right), Ok(()));
        let lost = [admitted(at(0), 0, 5), Record { after: standing(5), ..released }];
        assert!(conservation(&policy, &lost).is_err());
        let twice =
            [admitted(at(0), 0, 5), Record { after: standing(5), ..admitted(at(29), 1, 1) }];
        assert!(crate::checkers::never_over(&policy, &twice).is_err());
    }
}
