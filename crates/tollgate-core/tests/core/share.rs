//! One instance's share of a policy: every rule, to the strict side, and used up to begin with.

use proptest::prelude::*;
use tollgate_conformance::generate;
use tollgate_core::{
    Ask, CalendarWindow, Concurrency, Entry, Headroom, Known, Limit, Operation, Outcome, Period,
    Policy, RollingWindow, Rule, Span, Timestamp, TokenBucket, apply,
};

use crate::desk::{at, just_before, one, policy};

const MINUTE: Span = Span::from_mins(1);

fn rule_of(policy: &Policy) -> Rule {
    policy.limits().next().expect("a limit").rule().clone()
}

fn shared(rule: impl Into<Rule>, instances: u64) -> Rule {
    rule_of(&one(rule).share(instances).expect("it can be shared"))
}

/// R000.10, conflict 14: the numbers of the decision, for each rule.
#[test]
fn r000_10_a_share_is_the_limit_by_instances_and_below_one_it_stretches_time() {
    let day = CalendarWindow::new(25, Period::Day).in_zone("America/Los_Angeles");
    let rows: [(Rule, Rule); 7] = [
        (RollingWindow::new(5, MINUTE).into(), RollingWindow::new(1, Span::from_mins(2)).into()),
        (
            RollingWindow::new(250_000, MINUTE).resolution(60).into(),
            RollingWindow::new(25_000, MINUTE).resolution(60).into(),
        ),
        (day.clone().into(), CalendarWindow { limit: 2, ..day.clone() }.into()),
        (
            CalendarWindow { limit: 5, ..day }.into(),
            RollingWindow::new(1, Span::from_hours(50)).into(),
        ),
        (
            TokenBucket::per_minute(60).burst(100).into(),
            TokenBucket::per(60, Span::from_mins(10)).burst(10).into(),
        ),
        (
            TokenBucket::per_minute(5).at_boundaries().into(),
            TokenBucket::per(1, Span::from_mins(2)).at_boundaries().into(),
        ),
        (Concurrency::new(25, MINUTE).into(), Concurrency::new(2, MINUTE).into()),
    ];
    for (whole, share) in rows {
        assert_eq!(shared(whole.clone(), 10), share, "{whole:?}");
    }
}

#[test]
fn a_share_is_of_what_headroom_margin_and_block_ttl_leave() {
    let margin = Span::from_secs(2);
    let limits = [
        Limit::new("w", "requests", RollingWindow::new(30, MINUTE)).headroom(Headroom::Units(5)),
        Limit::new("b", "tokens", TokenBucket::per_minute(600)).margin(margin),
    ];
    let whole = Policy::builder("p").limits(limits).block_ttl(Span::from_secs(1)).build().unwrap();
    // The bucket issues 600 less 10 per second for 3 seconds at once.
    assert_eq!(whole.effective().collect::<Vec<_>>(), [25, 570]);
    let share = whole.share(10).unwrap();
    assert_eq!(share.effective().collect::<Vec<_>>(), [2, 57]);
    assert_eq!(rule_of(&share), RollingWindow::new(2, Span::from_secs(61)).into());
}

#[test]
fn what_cannot_be_shared_is_refused_with_what_would_be_right() {
    let jobs = one(Concurrency::new(3, MINUTE));
    let error = jobs.share(10).unwrap_err().to_string();
    assert!(error.contains("3 slots are less than one for each of 10 instances"), "{error}");
    assert!(jobs.share(0).unwrap_err().to_string().contains("at least 1"));
    assert!(jobs.share(3).is_ok());
}

/// A rate whose share is finer than the bounds let it be is rounded down, never up.
#[test]
fn a_share_too_fine_to_hold_is_rounded_to_the_strict_side() {
    let year = Span::from_hours(365 * 24);
    for (refill, shared_refill, days) in [(7, 1, 574), (25, 2, 365)] {
        let Rule::TokenBucket(share) = shared(TokenBucket::per(refill, year).burst(100), 11) else {
            panic!("still a bucket")
        };
        assert_eq!((share.capacity, share.refill), (9, shared_refill));
        assert_eq!(share.period.as_micros().div_ceil(86_400_000_000), days);
    }
}

#[test]
fn the_worst_case_is_the_documented_one() {
    let of = |rule: Rule, cut_off| one(rule).worst_case(10, cut_off).next().unwrap();
    let hundred: Rule = RollingWindow::new(100, MINUTE).into();
    assert_eq!([0, 3, 10].map(|k| of(hundred.clone(), k)), [100, 130, 200]);
    let few: Rule = RollingWindow::new(5, MINUTE).into();
    assert_eq!([0, 3, 10].map(|k| of(few.clone(), k)), [5, 8, 15]);
}

fn ask(entry: &mut Entry, policy: &Policy, now: Timestamp) -> bool {
    let ask = Ask::new(policy, "s");
    let ask = policy.units().fold(ask.clone(), |ask, unit| ask.cost(unit, 1));
    let answer =
        apply(&Operation::Acquire(&ask), entry, Known::New, now).expect("a good ask").outcome;
    matches!(answer, Outcome::Decided(decision) if decision.is_admitted())
}

/// What is used up comes back as the rule has it, and not before.
#[test]
fn used_up_means_that_the_rule_must_give_it_back_first() {
    let day = CalendarWindow::new(2, Period::Day);
    let rows: [(Rule, Timestamp); 4] = [
        (RollingWindow::new(2, MINUTE).into(), at(60)),
        (TokenBucket::per_minute(2).into(), at(30)),
        (day.into(), Timestamp::from_secs((at(0).as_micros() / 86_400_000_000 + 1) * 86_400)),
        (Concurrency::new(2, MINUTE).into(), at(60)),
    ];
    for (rule, back) in rows {
        let policy = one(rule);
        let mut entry = Entry::used_up(&policy, at(0));
        assert!(!ask(&mut entry, &policy, at(0)) && !ask(&mut entry, &policy, just_before(back)));
        assert!(ask(&mut entry, &policy, back), "{policy:?}");
    }
    let both = policy([
        Limit::new("rpm", "requests", RollingWindow::new(1, MINUTE)),
        Limit::new("rpd", "requests", CalendarWindow::new(3, Period::Day)),
    ]);
    let tomorrow = Timestamp::from_secs((at(0).as_micros() / 86_400_000_000 + 1) * 86_400);
    assert!(ask(&mut Entry::used_up(&both, at(0)), &both, tomorrow), "each limit by its own share");
}

proptest! {
    /// Whatever the policy: all shares together issue at once no more than the whole does, except that nobody can issue
    /// less than one.
    #[test]
    fn shares_add_up_to_at_most_the_whole(policy in generate::policy(), instances in 1_u64..200) {
        let Ok(share) = policy.share(instances) else {
            prop_assert!(policy.limits().any(|limit| matches!(limit.rule(), Rule::Concurrency(_))));
            return Ok(());
        };
        for (one, whole) in share.effective().zip(policy.effective()) {
            prop_assert!(1 <= one && one <= (whole / instances).max(1), "{one} of {whole}");
        }
        prop_assert_eq!(share.units().collect::<Vec<_>>(), policy.units().collect::<Vec<_>>());
    }
}
