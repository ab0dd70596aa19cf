//! Random sequences of operations, and how time passes between them.

use proptest::prelude::{Just, Strategy, any, prop_oneof};
use tollgate_core::{Costs, Policy, Span, Timestamp};

use crate::script::{Action, Record};

/// How time passes before a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Not at all.
    Stay,
    /// By so much.
    Forward(Span),
    /// The clock steps back.
    Back(Span),
    /// To exactly the instant that the last denial promised.
    Promised,
    /// To one microsecond before it.
    JustBefore,
}

impl Pace {
    /// The time after this pace; a promise that is past or never was made moves nothing.
    pub fn from(self, now: Timestamp, promised: Option<Timestamp>) -> Timestamp {
        match self {
            Self::Stay => now,
            Self::Forward(span) => now + span,
            Self::Back(span) => now - span,
            Self::Promised => promised.map_or(now, |promised| promised.max(now)),
            Self::JustBefore => {
                promised.map_or(now, |promised| (promised - Span::from_micros(1)).max(now))
            }
        }
    }
}

/// One step of a random sequence.
#[derive(Clone, Debug)]
pub struct Move {
    /// How time passes before it.
    pub pace: Pace,
    what: What,
    /// Costs of `requests`, `tokens` and `jobs`; nothing leaves the unit out.
    amounts: [Option<u64>; 3],
    /// Picks a permit, a limit or an id.
    pick: u8,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Acquire,
    AcquireAgain,
    AcquireWithId,
    Charge,
    Settle,
    Release,
    Renew,
    Close,
    Look,
}

impl Move {
    /// What this step does to a subject of `policy` who was given so many `permits`.
    pub fn resolve(
        &self,
        policy: &Policy,
        now: Timestamp,
        permits: usize,
        history: &[Record],
    ) -> Action {
        let costs = self.costs(policy);
        let permit = usize::from(self.pick).checked_rem(permits);
        let id = Some(format!("id-{}", self.pick % 3));
        match (self.what, permit) {
            (What::AcquireAgain, _) => {
                last_asked(history).unwrap_or(Action::Acquire { costs, id: None })
            }
            (What::AcquireWithId, _) => Action::Acquire { costs, id },
            (What::Charge, _) => {
                // A charge holds no slots, so it is never the repeat of an ask.
                let id = self.pick.is_multiple_of(2).then(|| format!("post-{}", self.pick % 3));
                Action::Charge { costs, id }
            }
            (What::Settle, Some(permit)) => Action::Settle { permit, actual: costs },
            (What::Release, Some(permit)) => Action::Release { permit },
            (What::Renew, Some(permit)) => Action::Renew { permit },
            (What::Close, _) => self.close(policy, now),
            (What::Look, _) => Action::Standing,
            _ => Action::Acquire { costs, id: None },
        }
    }

    fn costs(&self, policy: &Policy) -> Costs {
        let named = ["requests", "tokens", "jobs"].into_iter().zip(self.amounts);
        let counted = named.filter(|(unit, _)| policy.units().any(|known| known == *unit));
        counted.filter_map(|(unit, amount)| Some((unit, amount?))).collect()
    }

    fn close(&self, policy: &Policy, now: Timestamp) -> Action {
        let names: Vec<&str> = policy.limits().map(tollgate_core::Limit::name).collect();
        let limit = names[usize::from(self.pick) % names.len()].to_owned();
        Action::Close { limit, until: now + Span::from_millis(u64::from(self.pick)) }
    }
}

/// The ask that was made last, so that a promise is put to the test.
fn last_asked(history: &[Record]) -> Option<Action> {
    let asked = history.iter().rev().find(|record| matches!(record.action, Action::Acquire { .. }));
    asked.map(|record| record.action.clone())
}

/// Up to `most` steps.
pub fn moves(most: usize) -> impl Strategy<Value = Vec<Move>> {
    proptest::collection::vec(one_move(), 1..=most)
}

fn one_move() -> impl Strategy<Value = Move> {
    let promised = prop_oneof![Just(Pace::Promised), Just(Pace::JustBefore)];
    prop_oneof![
        4 => (pace(), what(), amounts(), any::<u8>()),
        // The same ask again at the promised instant, or just before it.
        2 => (promised, Just(What::AcquireAgain), amounts(), any::<u8>()),
    ]
    .prop_map(|(pace, what, amounts, pick)| Move { pace, what, amounts, pick })
}

pub(crate) fn pace() -> impl Strategy<Value = Pace> {
    prop_oneof![
        4 => Just(Pace::Stay),
        3 => (1_u64..=20).prop_map(|us| Pace::Forward(Span::from_micros(us))),
        3 => (1_u64..=5_000).prop_map(|ms| Pace::Forward(Span::from_millis(ms))),
        2 => (1_u64..=120).prop_map(|s| Pace::Forward(Span::from_secs(s))),
        1 => (1_u64..=30).prop_map(|h| Pace::Forward(Span::from_hours(h))),
        1 => (1_u64..=10_000_000).prop_map(|us| Pace::Back(Span::from_micros(us))),
        2 => Just(Pace::Promised),
        2 => Just(Pace::JustBefore),
    ]
}

fn what() -> impl Strategy<Value = What> {
    prop_oneof![
        8 => Just(What::Acquire),
        2 => Just(What::AcquireAgain),
        2 => Just(What::AcquireWithId),
        1 => Just(What::Charge),
        3 => Just(What::Settle),
        3 => Just(What::Release),
        1 => Just(What::Renew),
        1 => Just(What::Close),
        1 => Just(What::Look),
    ]
}

pub(crate) fn amounts() -> impl Strategy<Value = [Option<u64>; 3]> {
    let amount = || {
        prop_oneof![
            1 => Just(None),
            4 => (1_u64..=3).prop_map(Some),
            3 => (0_u64..=13).prop_map(Some),
        ]
    };
    [amount(), amount(), amount()]
}

/// Costs of `requests`.
pub fn costs(most: u64) -> impl Strategy<Value = Costs> {
    (1..=most).prop_map(|amount| Costs::new().with("requests", amount))
}

/// Instants to start from: plain ones, and ones shortly before a clock change, a leap day or the end of a year.
pub fn start() -> impl Strategy<Value = Timestamp> {
    let starts: Vec<Timestamp> = [
        "2023-11-14T22:13:20Z",
        "2025-03-09T09:59:50Z",
        "2025-11-02T08:59:50Z",
        "2025-03-30T00:59:50Z",
        "2025-10-26T00:59:50Z",
        "2025-04-05T14:59:50Z",
        "2025-10-04T15:29:50Z",
        "2024-02-28T23:59:50Z",
        "2025-12-31T23:59:50Z",
        // Clocks in St. John's went back at one minute past midnight, so that a minute of Sunday came twice.
        "2006-10-29T02:29:50Z",
    ]
    .iter()
    .filter_map(|text| text.parse().ok())
    .collect();
    (proptest::sample::select(starts), 0_u64..=20_000_000)
        .prop_map(|(start, micros)| start + Span::from_micros(micros))
}
