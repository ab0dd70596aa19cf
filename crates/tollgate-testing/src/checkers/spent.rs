//! What a history really spent: each charge at its own time with its actual cost.

use tollgate_core::bounds::PERMIT_TTL;
use tollgate_core::{Costs, Policy, REQUESTS, Timestamp};

use crate::script::{Answer, Did, Record};

/// One charge, in the order in which they were made.
#[derive(Clone, Debug)]
pub(super) struct Spent {
    pub(super) at: Timestamp,
    /// Whether it was decided, rather than posted or added afterwards.
    pub(super) decided: bool,
    costs: Costs,
}

impl Spent {
    pub(super) fn of(&self, unit: &str) -> u64 {
        self.costs.get(unit).unwrap_or(0)
    }
}

/// Every charge with its actual cost. What was settled for less was less from the beginning; what was settled for more
/// is a charge of its own at the time it became known.
pub(super) fn spent(policy: &Policy, history: &[Record]) -> Vec<Spent> {
    let mut all: Vec<Spent> = Vec::new();
    let mut of_permit: Vec<Option<usize>> = Vec::new();
    let mut clock = Timestamp::EPOCH;
    for record in history {
        if changes(&record.answer) {
            clock = clock.max(record.now);
        }
        match (&record.did, &record.answer) {
            // How much of what is posted still counts is not in the record.
            (Did::Acquire { .. }, Answer::Shadowed(..))
            | (Did::Post { .. }, Answer::Charged(_)) => {
                of_permit.push(None);
            }
            (
                Did::Acquire { costs, .. } | Did::Charge { costs, .. },
                Answer::Admitted(given) | Answer::Charged(given),
            ) => {
                of_permit.push(Some(all.len()));
                let decided = matches!(record.answer, Answer::Admitted(_));
                all.push(Spent { at: given.at, decided, costs: full(policy, costs) });
            }
            (Did::Settle { permit, actual }, Answer::Settled(true)) => {
                if let Some(index) = of_permit.get(*permit).copied().flatten()
                    && lives(&all[index], clock)
                {
                    let more = replace(&mut all[index], actual);
                    all.push(Spent { at: clock, decided: false, costs: more });
                }
            }
            (Did::Release { permit }, Answer::Settled(true)) => {
                if let Some(index) = of_permit.get(*permit).copied().flatten()
                    && lives(&all[index], clock)
                {
                    all[index].costs = Costs::new();
                }
            }
            // A repeat of what was released is an attempt that arrived late: its caller has long been answered.
            _ => {}
        }
    }
    all
}

/// Whether the permit of `spent` can still be settled at `now`. Of an older one only slots that were renewed are given back.
fn lives(spent: &Spent, now: Timestamp) -> bool {
    now < spent.at + PERMIT_TTL
}

/// Lowers what was spent to `actual`, and returns what is beyond it.
fn replace(spent: &mut Spent, actual: &Costs) -> Costs {
    let mut more = Costs::new();
    for (unit, amount) in actual.iter() {
        let estimate = spent.of(unit);
        if amount < estimate {
            spent.costs.set(unit, amount);
        } else {
            more.set(unit, amount - estimate);
        }
    }
    more
}

/// Whether an answer changed anything.
pub(super) const fn changes(answer: &Answer) -> bool {
    matches!(
        answer,
        Answer::Admitted(_)
            | Answer::Charged(_)
            | Answer::Settled(true)
            | Answer::Renewed(Some(_))
            | Answer::Done(true)
    )
}

/// The cost of every unit of the policy.
pub(super) fn full(policy: &Policy, costs: &Costs) -> Costs {
    let cost = |unit: &str| costs.get(unit).unwrap_or(u64::from(unit == REQUESTS));
    policy.units().map(|unit| (unit, cost(unit))).collect()
}
