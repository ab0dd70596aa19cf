//! Goal: a clock that steps back admits nothing more and breaks no promise.
//! Method: short stories; the random histories step back too.

use tollgate_conformance::script::{PermitSummary, Reply};
use tollgate_core::{
    Applied, Ask, CalendarWindow, Change, Concurrency, Entry, Known, Operation, Outcome, Period,
    RollingWindow, Rule, Span, Timestamp, TokenBucket, apply,
};

use crate::desk::{Desk, at, just_before, one};

fn rules() -> [Rule; 5] {
    [
        TokenBucket::per_minute(5).into(),
        TokenBucket::per_minute(5).at_boundaries().into(),
        RollingWindow::new(5, Span::from_secs(60)).into(),
        CalendarWindow::new(5, Period::Minute).into(),
        Concurrency::new(5, Span::from_secs(60)).into(),
    ]
}

#[test]
fn stepping_back_an_hour_admits_nothing_that_was_used_up() {
    for rule in rules() {
        let mut desk = Desk::new(&one(rule.clone()));
        desk.admitted(at(3_600), 5);
        let until = desk.denied(at(3_600), 1).until;
        assert_eq!(desk.denied(at(0), 1).until, until, "{rule:?}");
        assert_eq!(desk.used(at(0)), 5, "{rule:?}");
    }
}

#[test]
fn what_is_charged_while_the_clock_is_behind_counts_from_where_time_stood() {
    let mut desk = Desk::new(&one(RollingWindow::new(5, Span::from_secs(60))));
    desk.admitted(at(100), 4);
    let Reply::Admitted(PermitSummary { at: charged_at, .. }) = desk.ask(at(0), 1) else {
        unreachable!("there is room for one");
    };
    assert_eq!(charged_at, at(100));
    // Had it counted from 0, it would have left at 60.
    assert_eq!(desk.denied(just_before(at(160)), 1).until, Some(at(160)));
    desk.admitted(at(160), 5);
}

#[test]
fn a_clock_that_jumps_ahead_and_back_gives_no_second_refill() {
    let mut desk = Desk::new(&one(TokenBucket::per_second(1).burst(10)));
    desk.admitted(at(0), 10);
    desk.admitted(at(10), 10);
    assert_eq!(desk.denied(at(5), 1).until, Some(at(11)));
    assert_eq!(desk.denied(just_before(at(11)), 1).until, Some(at(11)));
    desk.admitted(at(11), 1);
}

#[test]
fn giving_back_while_the_clock_is_behind_is_giving_back_at_once() {
    let mut desk = Desk::new(&one(TokenBucket::per_second(1).burst(10)));
    let permit = desk.admitted(at(100), 10);
    assert_eq!(desk.release(at(50), permit), Reply::Settled(true));
    assert_eq!(desk.used(at(50)), 0);
}

fn ask(entry: &mut Entry, now: Timestamp) -> Outcome {
    let policy = entry.policy().clone();
    let unit = policy.units().next().expect("one limit");
    let ask = Ask::new(&policy, "s").cost(unit, 1);
    apply(&Operation::Acquire(&ask), entry, Known::New, now).expect("a good ask").outcome
}

/// An entry from the future is used up at the true time: nothing fits before the rule gives it back, and all of it does
/// long before the time it came from. Permits from before give nothing back.
#[test]
fn a_mended_entry_is_used_up_now_and_not_locked_until_its_own_time() {
    let day = Span::from_hours(24);
    for rule in rules() {
        let mut entry = Entry::fresh(&one(rule.clone()), at(0));
        let Outcome::Decided(decision) = ask(&mut entry, at(0) + day) else {
            unreachable!("an ask is decided");
        };
        let permit = decision.into_permit().expect("there is room");
        let policy = entry.policy().clone();
        let limit = policy.limits().next().expect("one limit").name();
        let until = at(0) + day + Span::from_secs(90);
        let close = Operation::Close { policy: &policy, subject: "s", limit, until };
        apply(&close, &mut entry, Known::New, at(0) + day).expect("a known limit");
        let mut mended = entry.repaired(at(0));
        assert_eq!(mended.at(), at(0));
        let released = apply(&Operation::Release(&permit), &mut mended, Known::New, at(0));
        assert!(
            matches!(released, Ok(Applied { change: Change::Nothing, .. }) | Err(_)),
            "{rule:?}: {released:?}"
        );
        for (now, admits) in [(at(0), false), (just_before(at(90)), false), (at(180), true)] {
            let Outcome::Decided(decision) = ask(&mut mended, now) else {
                unreachable!("an ask is decided");
            };
            assert_eq!(decision.is_admitted(), admits, "{rule:?} at {now}");
        }
    }
}
