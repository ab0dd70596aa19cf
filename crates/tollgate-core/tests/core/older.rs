//! Goal: an entry that programs from before the grid and the lows share is changed as they change it, and on the strict side.
//! Method: the differences as the shortest stories, and random stories in which `apply_older` never has more left.

use proptest::prelude::{ProptestConfig, any, prop_assert, proptest};
use proptest::sample::Index;
use tollgate_core::{
    Ask, Change, Costs, Entry, IdChange, Known, Limit, Operation, Outcome, Permit, Policy,
    RollingWindow, Span, Timestamp, TokenBucket, apply, apply_older, standings,
};

use crate::desk::{at, one};

fn acquire(entry: &mut Entry, policy: &Policy, now: Timestamp, cost: u64) -> Permit {
    let ask = Ask::new(policy, "p7").cost("requests", cost);
    let applied = apply_older(&Operation::Acquire(&ask), entry, Known::New, now);
    permit_of(applied.expect("it decides").outcome).expect("there is room")
}

fn permit_of(outcome: Outcome) -> Option<Permit> {
    match outcome {
        Outcome::Permitted(permit) => Some(permit),
        Outcome::Decided(decision) => decision.into_permit(),
        _ => None,
    }
}

fn used(entry: &Entry, now: Timestamp) -> u64 {
    standings(entry, now)[0].used
}

#[test]
fn a_bucket_gives_back_what_has_not_refilled_since_the_charge() {
    let policy = one(TokenBucket::per_second(10).burst(100));
    let mut entry = Entry::fresh(&policy, at(0));
    acquire(&mut entry, &policy, at(0), 50);
    let permit = acquire(&mut entry, &policy, at(0), 50);
    let actual = Costs::new().with("requests", 10);
    let operation = Operation::Settle(&permit, &actual);
    let mut newer = entry.clone();
    let settled = [
        apply(&operation, &mut newer, Known::New, at(3)),
        apply_older(&operation, &mut entry, Known::New, at(3)),
    ];
    for settled in settled {
        assert_eq!(settled.expect("it settles").outcome, Outcome::Changed(true));
    }
    assert_eq!(used(&newer, at(3)), 30, "70 less 40");
    assert_eq!(used(&entry, at(3)), 60, "30 of the 40 have refilled");
}

/// What was charged to the exact log is given back to it, though the policy of the permit has a grid.
#[test]
fn a_large_window_keeps_an_exact_log() {
    let minute = Span::from_mins(1);
    let rule = RollingWindow::new(20_000, minute);
    let policy = Policy::new("large", [Limit::new("rpm", "requests", rule)]).expect("it is right");
    let exact = policy.with_exact_logs();
    assert!(!exact.has_shape_of(&policy) && exact.with_exact_logs().has_shape_of(exact));
    let mut entry = Entry::fresh(exact, at(0));
    acquire(&mut entry, &policy, at(0), 5);
    let permit = acquire(&mut entry, &policy, at(1), 7);
    assert!(entry.policy().has_shape_of(exact) && permit.policy().has_shape_of(exact));
    let given = Permit::new(&policy, "p7", *permit.charged().amounts, *permit.grant());
    let applied = apply_older(&Operation::Release(&given), &mut entry, Known::New, at(2));
    assert_eq!(applied.expect("it is released").outcome, Outcome::Changed(true));
    assert_eq!((used(&entry, at(59)), used(&entry, at(60))), (5, 0));
}

/// A permit that came without its id cannot forget it when it is released. A repeat must not be admitted for nothing.
#[test]
fn an_ask_is_new_once_its_permit_is_settled_and_a_charge_is_known() {
    let policy = one(TokenBucket::per_second(1).burst(10));
    for is_charge in [false, true] {
        let mut entry = Entry::fresh(&policy, at(0));
        let ask = Ask::new(&policy, "p7").cost("requests", 4).id("order-7");
        let operation = if is_charge { Operation::Charge(&ask) } else { Operation::Acquire(&ask) };
        let first = apply_older(&operation, &mut entry, Known::New, at(0)).expect("it decides");
        let (IdChange::Remember(given), Some(permit)) = (first.id, permit_of(first.outcome)) else {
            panic!("it is admitted and remembered")
        };
        let known = Known::Before(given);
        let again = apply_older(&operation, &mut entry, known, at(0)).expect("it decides");
        assert_eq!(again.change, Change::Nothing);
        let release = permit.with_id(None::<&str>);
        let released = apply_older(&Operation::Release(&release), &mut entry, Known::New, at(0));
        assert_eq!(released.expect("it is released").id, IdChange::Nothing);
        let after = apply_older(&operation, &mut entry, known, at(0)).expect("it decides");
        assert_eq!(after.change, if is_charge { Change::Nothing } else { Change::Entry });
        assert_eq!(used(&entry, at(0)), if is_charge { 0 } else { 4 });
    }
}

/// A policy whose windows are exact or have a resolution is itself.
#[test]
fn other_policies_are_the_same() {
    let minute = Span::from_mins(1);
    for rule in [RollingWindow::new(100, minute), RollingWindow::new(20_000, minute).resolution(9)]
    {
        let policy = one(rule);
        assert!(policy.with_exact_logs().has_shape_of(&policy));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// The same calls leave at least as much used as by the rule of today.
    #[test]
    fn no_more_is_given_back_than_today(
        steps in proptest::collection::vec(
            (any::<Option<Index>>(), 0_u64..4_000_000, 0_u64..8),
            1..24,
        ),
    ) {
        let policy = one(TokenBucket::per_second(3).burst(20));
        let (mut newer, mut older) = (Entry::fresh(&policy, at(0)), Entry::fresh(&policy, at(0)));
        let (mut now, mut permits) = (at(0), Vec::new());
        for (settled, wait, amount) in steps {
            now = now + Span::from_micros(wait);
            if let (Some(index), false) = (settled, permits.is_empty()) {
                let permit: Permit = permits.swap_remove(index.index(permits.len()));
                let actual = Costs::new().with("requests", amount);
                let operation = Operation::Settle(&permit, &actual);
                let _ = apply(&operation, &mut newer, Known::New, now);
                let _ = apply_older(&operation, &mut older, Known::New, now);
            } else {
                // Whether it fits or not, so that both are charged.
                let ask = Ask::new(&policy, "p7").cost("requests", amount);
                let charged = apply(&Operation::Charge(&ask), &mut newer, Known::New, now);
                let _ = apply_older(&Operation::Charge(&ask), &mut older, Known::New, now);
                if let Outcome::Permitted(permit) = charged.expect("it is charged").outcome {
                    permits.push(permit);
                }
            }
            prop_assert!(used(&newer, now) <= used(&older, now));
        }
    }
}
