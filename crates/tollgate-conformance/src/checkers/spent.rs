//! The actual spending of a history: each charge at its own time with its actual cost.

use tollgate_core::bounds::PERMIT_TTL;
use tollgate_core::{Costs, Policy, REQUESTS, Timestamp};

use crate::script::{Action, Record, Reply};

/// One charge, in the order in which they were made.
#[derive(Clone, Debug)]
pub(super) struct Spent {
    pub(super) at: Timestamp,
    /// Whether it was decided, rather than posted or added afterwards.
    pub(super) decided: bool,
    costs: Costs,
}

impl Spent {
    pub(super) fn amount(&self, unit: &str) -> u64 {
        self.costs.get(unit).unwrap_or(0)
    }
}

/// Returns every charge with its actual cost. Settling for less lowers the charge; settling for more is a charge of its own
/// at the time of the settle.
pub(super) fn spent(policy: &Policy, history: &[Record]) -> Vec<Spent> {
    let mut all: Vec<Spent> = Vec::new();
    let mut of_permit: Vec<Option<usize>> = Vec::new();
    let mut clock = Timestamp::EPOCH;
    for record in history {
        if changes(&record.reply) {
            clock = clock.max(record.now);
        }
        match (&record.action, &record.reply) {
            // The record does not say how much of a posted amount still counts.
            (Action::Acquire { .. }, Reply::Shadowed(..))
            | (Action::Post { .. }, Reply::Charged(_)) => {
                of_permit.push(None);
            }
            (
                Action::Acquire { costs, .. } | Action::Charge { costs, .. },
                Reply::Admitted(given) | Reply::Charged(given),
            ) => {
                of_permit.push(Some(all.len()));
                let decided = matches!(record.reply, Reply::Admitted(_));
                all.push(Spent { at: given.at, decided, costs: full(policy, costs) });
            }
            (Action::Settle { permit, actual }, Reply::Settled(true)) => {
                if let Some(index) = of_permit.get(*permit).copied().flatten()
                    && lives(&all[index], clock)
                {
                    let more = replace(&mut all[index], actual);
                    all.push(Spent { at: clock, decided: false, costs: more });
                }
            }
            (Action::Release { permit }, Reply::Settled(true)) => {
                if let Some(index) = of_permit.get(*permit).copied().flatten()
                    && lives(&all[index], clock)
                {
                    all[index].costs = Costs::new();
                }
            }
            // A repeat of a released ask is a late attempt, which its caller no longer waits for.
            _ => {}
        }
    }
    all
}

/// Whether the permit of `spent` can still be settled at `now`. Of an older one only slots that were renewed are given back.
fn lives(spent: &Spent, now: Timestamp) -> bool {
    now < spent.at + PERMIT_TTL
}

/// Lowers a charge to `actual`, and returns the excess.
fn replace(spent: &mut Spent, actual: &Costs) -> Costs {
    let mut more = Costs::new();
    for (unit, amount) in actual.iter() {
        let estimate = spent.amount(unit);
        if amount < estimate {
            spent.costs.set(unit, amount);
        } else {
            more.set(unit, amount - estimate);
        }
    }
    more
}

/// Whether an answer changed anything.
pub(super) const fn changes(reply: &Reply) -> bool {
    matches!(
        reply,
        Reply::Admitted(_)
            | Reply::Charged(_)
            | Reply::Settled(true)
            | Reply::Renewed(Some(_))
            | Reply::Done(true)
    )
}

/// The cost of every unit of the policy.
pub(super) fn full(policy: &Policy, costs: &Costs) -> Costs {
    let cost = |unit: &str| costs.get(unit).unwrap_or(u64::from(unit == REQUESTS));
    policy.units().map(|unit| (unit, cost(unit))).collect()
}
