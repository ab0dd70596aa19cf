//! What was spent without the store, and what of it the store is charged for later.

use proptest::prelude::*;
use tollgate_core::{
    Arrears, Ask, CalendarWindow, Costs, Entry, Grant, Known, LocalSpending, Operation, Period,
    Policy, RollingWindow, Rule, Span, Timestamp, TokenBucket, apply, standings,
};

use crate::desk::{at, one};

const MINUTE: Span = Span::from_mins(1);

fn charge(entry: &mut Entry, policy: &Policy, now: Timestamp, amount: u64) {
    let ask = Ask::new(policy, "s").cost("requests", amount);
    apply(&Operation::Charge(&ask), entry, Known::New, now).expect("it is charged");
}

fn post(entry: &mut Entry, policy: &Policy, now: Timestamp, arrears: Arrears) {
    let ask = Ask::new(policy, "s").with_arrears(arrears);
    apply(&Operation::Charge(&ask), entry, Known::New, now).expect("it is charged");
}

fn used(entry: &Entry, now: Timestamp) -> u64 {
    standings(entry, now)[0].used
}

fn cost(amount: u64) -> Costs {
    Costs::new().with("requests", amount)
}

fn grant(now: Timestamp, stamp: u64) -> Grant {
    Grant { at: now, stamp, use_by: None, expires_at: None }
}

/// Admits `amount` per second for `seconds`, as the only one of `instances`.
fn spend(policy: &Policy, instances: u64, amount: u64, seconds: u64) -> LocalSpending {
    let mut spent = LocalSpending::new(policy, instances, at(0));
    for second in 0..seconds {
        spent.admit(&cost(amount), &grant(at(second), second + 1)).expect("it is charged");
    }
    spent
}

fn left(spent: &LocalSpending, now: Timestamp) -> u64 {
    spent.arrears(now).sum_of("only")
}

#[test]
fn a_bucket_refills_at_the_part_of_the_instance_and_is_empty_at_most() {
    let policy = one(TokenBucket::per_second(20));
    // 10 of 20 come back each second: 15 − 10 are left after one, and another 10 are gone after two.
    assert_eq!(left(&spend(&policy, 2, 15, 1), at(1)), 5);
    assert_eq!(left(&spend(&policy, 2, 15, 1), at(2)), 0);
    for seconds in [5, 60] {
        let spent = spend(&policy, 2, 40, seconds);
        assert_eq!(left(&spent, at(seconds - 1)), 20, "empty, and not in debt");
        assert_eq!(left(&spent, at(seconds)), 10);
    }
}

#[test]
fn a_bucket_with_boundaries_refills_at_them() {
    let policy = one(TokenBucket::per_minute(30).at_boundaries());
    let spent = spend(&policy, 3, 8, 3);
    assert_eq!([59, 60, 120, 180].map(|second| left(&spent, at(second))), [24, 14, 4, 0]);
}

#[test]
fn a_calendar_window_counts_what_was_spent_in_the_one_that_is_open() {
    let policy = one(CalendarWindow::new(1_000, Period::Minute));
    let spent = spend(&policy, 10, 1, 90);
    assert_eq!([89, 119, 120].map(|second| left(&spent, at(second))), [30, 30, 0]);
}

#[test]
fn what_is_settled_before_it_is_posted_was_not_spent() {
    let rules: [(Rule, u64); 2] =
        [(TokenBucket::per_minute(60).into(), 39), (RollingWindow::new(60, MINUTE).into(), 40)];
    for (rule, all) in rules {
        let mut spent = spend(&one(rule), 1, 20, 2);
        assert_eq!(left(&spent, at(1)), all);
        // Twice changes nothing.
        for actual in [5, 0] {
            spent
                .settle((&cost(20), &cost(actual)), &grant(at(1), 2), at(1))
                .expect("it is charged");
            assert_eq!(left(&spent, at(1)), all - 15);
        }
        spent.settle((&cost(20), &cost(26)), &grant(at(0), 1), at(1)).expect("it is charged");
        assert_eq!(left(&spent, at(1)), all - 15 + 6, "what it cost beyond the estimate");
    }
}

#[test]
fn what_was_charged_without_deciding_is_debt() {
    let policy = one(TokenBucket::per_second(20));
    let mut spent = LocalSpending::new(&policy, 1, at(0));
    spent.charge(&cost(50), at(0)).expect("it is charged");
    spent.admit(&cost(5), &grant(at(0), 1)).expect("it is charged");
    assert_eq!(left(&spent, at(0)), 50, "admissions add nothing to a bucket that is in debt");
    let mut entry = Entry::fresh(&policy, at(0));
    charge(&mut entry, &policy, at(1), 15);
    post(&mut entry, &policy, at(1), spent.arrears(at(1)));
    assert_eq!(used(&entry, at(1)), 20 + 10, "30 were left: 20 empty the bucket, 10 are debt");
}

#[test]
fn limits_that_arrears_do_not_name_are_charged_the_cost() {
    let policy = one(RollingWindow::new(10, MINUTE));
    let mut entry = Entry::fresh(&policy, at(0));
    let ask = Ask::new(&policy, "s").cost("requests", 3);
    let other: Arrears = [("gone", vec![(Span::ZERO, 9)])].into_iter().collect();
    apply(&Operation::Charge(&ask.with_arrears(other)), &mut entry, Known::New, at(0))
        .expect("it is charged");
    assert_eq!(used(&entry, at(0)), 3);
}

proptest! {
    /// A rolling window to which arrears are posted late says from then on what it would say if everything had been
    /// charged to it in order.
    #[test]
    fn a_rolling_window_has_arrears_at_their_own_times(
        slots in proptest::option::of(1..20_u32),
        charges in proptest::collection::vec((0..90_000_u64, 1..9_u64, any::<bool>()), 0..40),
        late in 0..30_000_u64,
    ) {
        let rule = RollingWindow { limit: 1_000, window: MINUTE, resolution: slots };
        let policy = one(rule);
        let time = |millis: u64| at(0) + Span::from_millis(millis);
        let mut charges = charges;
        charges.sort_unstable();
        let (mut whole, mut store) = (Entry::fresh(&policy, at(0)), Entry::fresh(&policy, at(0)));
        let mut spent = LocalSpending::new(&policy, 10, at(0));
        for (stamp, (millis, amount, is_local)) in (1..).zip(&charges) {
            charge(&mut whole, &policy, time(*millis), *amount);
            if *is_local {
                spent.admit(&cost(*amount), &grant(time(*millis), stamp)).expect("it is charged");
            } else {
                charge(&mut store, &policy, time(*millis), *amount);
            }
        }
        let posted_at = charges.last().map_or(0, |(millis, ..)| *millis) + late;
        post(&mut store, &policy, time(posted_at), spent.arrears(time(posted_at)));
        for millis in (posted_at..posted_at + 130_000).step_by(977) {
            prop_assert_eq!(used(&store, time(millis)), used(&whole, time(millis)));
        }
        prop_assert_eq!(store.parts().states, {
            let mut whole = whole;
            charge(&mut whole, &policy, time(posted_at), 0);
            whole.parts().states
        });
    }
}
