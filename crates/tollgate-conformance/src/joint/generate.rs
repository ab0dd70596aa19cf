//! Random scripts with several parties.

use proptest::prelude::{Just, Strategy, any, prop_oneof};
use tollgate_core::{Costs, Policy, Span, Timestamp};

use super::{JointAction, JointAsk, JointRecord, JointReply, JointSubject, Party};
use crate::generate::{self, Pace};

const UNITS: [&str; 3] = ["requests", "tokens", "jobs"];

/// One step of a random script.
#[derive(Clone, Debug)]
pub struct JointMove {
    pace: Pace,
    what: What,
    amounts: [Option<u64>; 3],
    /// Picks parties, a permit, a limit or an id.
    pick: u16,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Acquire,
    AcquireAgain,
    AcquireWithId,
    AcquireWithOwnCosts,
    Charge,
    Settle,
    SettlePart,
    Release,
    Renew,
    Close,
    Reset,
}

/// Three parties with random policies, each in shadow mode now and then.
pub fn parties() -> impl Strategy<Value = Vec<Party>> {
    let party = |name: &'static str| {
        let subject = format!("{name}-1");
        generate::policy_named(name)
            .prop_map(move |policy| Party { policy, subject: subject.clone() })
    };
    (party("user"), party("team"), party("account"))
        .prop_map(|(user, team, account)| vec![user, team, account])
}

/// A start and up to `most` steps.
pub fn script(most: usize) -> impl Strategy<Value = (Timestamp, Vec<JointMove>)> {
    let promised = prop_oneof![Just(Pace::Promised), Just(Pace::JustBefore)];
    let one = prop_oneof![
        4 => (generate::pace(), what(), generate::amounts(), any::<u16>()),
        2 => (promised, Just(What::AcquireAgain), generate::amounts(), any::<u16>()),
    ];
    let one = one.prop_map(|(pace, what, amounts, pick)| JointMove { pace, what, amounts, pick });
    (generate::start(), proptest::collection::vec(one, 1..=most))
}

fn what() -> impl Strategy<Value = What> {
    prop_oneof![
        8 => Just(What::Acquire),
        2 => Just(What::AcquireAgain),
        2 => Just(What::AcquireWithId),
        1 => Just(What::AcquireWithOwnCosts),
        1 => Just(What::Charge),
        3 => Just(What::Settle),
        1 => Just(What::SettlePart),
        3 => Just(What::Release),
        1 => Just(What::Renew),
        1 => Just(What::Close),
        1 => Just(What::Reset),
    ]
}

/// Plays `moves` from `start` on and records everything.
pub fn record(
    parties: &[Party],
    start: Timestamp,
    moves: &[JointMove],
    subject: &mut dyn JointSubject,
) -> Result<Vec<JointRecord>, String> {
    let (mut now, mut promised) = (start, None);
    let mut history: Vec<JointRecord> = Vec::with_capacity(moves.len());
    for step in moves {
        now = step.pace.from(now, promised);
        let action = step.resolve(parties, now, subject.permits(), &history);
        let reply = subject.play(now, &action);
        if let JointReply::Denied { binding, .. } = &reply {
            promised = binding.by.until;
        }
        let after = subject.standings(now)?;
        history.push(JointRecord { now, action, reply, after });
    }
    Ok(history)
}

impl JointMove {
    fn resolve(
        &self,
        parties: &[Party],
        now: Timestamp,
        permits: usize,
        history: &[JointRecord],
    ) -> JointAction {
        let pick = usize::from(self.pick);
        let permit = pick.checked_rem(permits);
        let ask = self.ask(parties);
        let id = Some(format!("id-{}", pick % 3));
        match (self.what, permit) {
            (What::AcquireAgain, _) => {
                let asked = history.iter().rev().map(|record| &record.action);
                let mut asked = asked.filter(|action| matches!(action, JointAction::Acquire(_)));
                asked.next().cloned().unwrap_or(JointAction::Acquire(ask))
            }
            (What::AcquireWithId, _) => JointAction::Acquire(JointAsk { id, ..ask }),
            (What::AcquireWithOwnCosts, _) => {
                let last = ask.parties.len() - 1;
                let own = self.costs(&parties[ask.parties[last]].policy);
                let shared = ask.parties[..last].iter().map(|party| &parties[*party].policy);
                let counted = |unit: &str| {
                    shared.clone().any(|policy| policy.units().any(|known| known == unit))
                };
                let costs = ask.costs.iter().filter(|(unit, _)| counted(unit)).collect();
                JointAction::Acquire(JointAsk { costs, own_costs: vec![(last, own)], ..ask })
            }
            (What::Charge, _) => {
                // A charge holds no slots, so it is never the repeat of an ask.
                let id = self.pick.is_multiple_of(2).then(|| format!("post-{}", pick % 3));
                JointAction::Charge(JointAsk { id, ..ask })
            }
            (What::Settle, Some(permit)) => JointAction::Settle { permit, actual: ask.costs },
            (What::SettlePart, Some(permit)) => {
                JointAction::SettlePart { permit, charge: pick % 2, actual: ask.costs }
            }
            (What::Release, Some(permit)) => JointAction::Release { permit },
            (What::Renew, Some(permit)) => JointAction::Renew { permit },
            (What::Close, _) => {
                let party = pick % parties.len();
                let limits: Vec<&str> =
                    parties[party].policy.limits().map(tollgate_core::Limit::name).collect();
                let limit = limits[pick % limits.len()].to_owned();
                let until = now + Span::from_millis(u64::from(self.pick) % 256);
                JointAction::Close { party, limit, until }
            }
            (What::Reset, _) => JointAction::Reset { party: pick % parties.len() },
            _ => JointAction::Acquire(ask),
        }
    }

    /// Two or three parties in any order, and costs in units that one of them has.
    fn ask(&self, parties: &[Party]) -> JointAsk {
        let pick = usize::from(self.pick >> 8);
        let mut chosen: Vec<usize> = (0..parties.len()).collect();
        chosen.rotate_left(pick % parties.len());
        if pick.is_multiple_of(2) {
            chosen.swap(0, 1);
        }
        if !pick.is_multiple_of(3) {
            chosen.truncate(2);
        }
        let units = |unit: &str| {
            chosen.iter().any(|party| parties[*party].policy.units().any(|known| known == unit))
        };
        let named = UNITS.into_iter().zip(self.amounts).filter(|(unit, _)| units(unit));
        let costs = named.filter_map(|(unit, amount)| Some((unit, amount?))).collect();
        JointAsk { parties: chosen, costs, ..JointAsk::default() }
    }

    fn costs(&self, policy: &Policy) -> Costs {
        let named = UNITS.into_iter().zip(self.amounts);
        let counted = named.filter(|(unit, _)| policy.units().any(|known| known == *unit));
        counted.filter_map(|(unit, amount)| Some((unit, amount?))).collect()
    }
}
