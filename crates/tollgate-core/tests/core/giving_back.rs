//! Goal: giving back never makes room twice.
//! Method: the traps that were thought of or found, each as the shortest story that falls into it.

use tollgate_conformance::script::{DenialSummary, Reply};
use tollgate_core::{
    Ask, CalendarWindow, Concurrency, Costs, Entry, ErrorKind, Grant, Known, Limit, Period, Permit,
    Policy, Refusal, RollingWindow, Span, TokenBucket, Verdict, Wait, commit, decide, release,
    standings,
};

use crate::desk::{Desk, at, one, policy};

/// Design, section 4: moving the bucket back by the full amount lets 20 through a bucket of 10.
#[test]
fn taking_10_waiting_10_taking_10_and_releasing_the_first_leaves_no_room() {
    let mut desk = Desk::new(&one(TokenBucket::per_second(1).burst(10)));
    let first = desk.admitted(at(0), 10);
    desk.admitted(at(10), 10);
    assert_eq!(desk.release(at(10), first), Reply::Settled(true));
    assert_eq!(desk.denied(at(10), 10).until, Some(at(20)));
}

#[test]
fn a_bucket_gets_back_what_time_has_not_given_back_already() {
    let mut desk = Desk::new(&one(TokenBucket::per_second(1).burst(10)));
    let permit = desk.admitted(at(0), 10);
    assert_eq!(desk.settle(at(3), permit, 1), Reply::Settled(true));
    // Had 1 been charged, nothing would be used after 3 s.
    assert_eq!(desk.used(at(3)), 0);
}

/// Refill that would have come without the charge as well is no reason to give less back.
#[test]
fn a_slow_call_gets_back_what_it_did_not_use() {
    let mut desk = Desk::new(&one(TokenBucket::per_second(10).burst(100)));
    desk.admitted(at(0), 80);
    let last = desk.admitted(at(0), 20);
    assert_eq!(desk.release(at(2), last), Reply::Settled(true));
    assert_eq!(desk.used(at(2)), 60);

    let mut desk = Desk::new(&one(TokenBucket::per_second(10).burst(100)));
    desk.admitted(at(0), 50);
    let estimate = desk.admitted(at(0), 50);
    assert_eq!(desk.settle(at(3), estimate, 20), Reply::Settled(true));
    assert_eq!(desk.used(at(3)), 40);
}

/// Four callers that take and give back from 90 used find room for ever.
#[test]
fn taking_and_giving_back_below_the_limit_is_never_refused() {
    let mut desk = Desk::new(&one(TokenBucket::per(1, Span::from_hours(1)).burst(100)));
    desk.admitted(at(0), 90);
    let mut held = std::collections::VecDeque::new();
    for call in 0..20_000u64 {
        let now = at(0) + Span::from_micros(250 * call);
        held.push_back(desk.admitted(now, 2));
        if held.len() == 4 {
            let oldest = held.pop_front().expect("four are held");
            assert_eq!(desk.release(now, oldest), Reply::Settled(true));
        }
    }
    assert_eq!(desk.used(at(5)), 96);
}

/// Without lowering the record the second give-back would be judged by a history that did not happen.
#[test]
fn two_releases_do_not_give_back_the_same_room() {
    let mut desk = Desk::new(&one(TokenBucket::per_second(1).burst(20)));
    let (first, second) = (desk.admitted(at(0), 10), desk.admitted(at(0), 10));
    // 10 s later 10 are used; whichever is released, the other has made room by time.
    desk.admitted(at(10), 10);
    assert_eq!(desk.release(at(10), first), Reply::Settled(true));
    assert_eq!(desk.used(at(10)), 10);
    assert_eq!(desk.release(at(10), second), Reply::Settled(true));
    assert_eq!(desk.used(at(10)), 10);
}

#[test]
fn an_interval_bucket_gets_nothing_back_once_its_boundary_has_passed() {
    let mut desk = Desk::new(&one(TokenBucket::per_minute(5).at_boundaries()));
    let (first, second) = (desk.admitted(at(0), 2), desk.admitted(at(0), 3));
    assert_eq!(desk.release(at(59), first), Reply::Settled(true));
    assert_eq!(desk.used(at(59)), 3);
    desk.admitted(at(60), 5);
    assert_eq!(desk.release(at(60), second), Reply::Settled(true));
    assert_eq!(desk.used(at(60)), 5);
}

/// A charge that had left the window was given back out of a younger one: 10 in a window of 5.
#[test]
fn releasing_what_has_left_a_rolling_window_frees_nothing_of_what_came_later() {
    for rule in [
        RollingWindow::new(5, Span::from_secs(10)),
        RollingWindow::new(5, Span::from_secs(10)).resolution(10),
    ] {
        let mut desk = Desk::new(&one(rule));
        let first = desk.admitted(at(0), 5);
        desk.admitted(at(11), 5);
        assert_eq!(desk.release(at(12), first), Reply::Settled(true));
        assert_eq!(desk.used(at(12)), 5, "{rule:?}");
    }
}

#[test]
fn a_calendar_window_gets_nothing_back_for_the_one_before() {
    let mut desk = Desk::new(&one(CalendarWindow::new(5, Period::Minute)));
    let first = desk.admitted(at(59), 5);
    desk.admitted(at(60), 5);
    assert_eq!(desk.release(at(61), first), Reply::Settled(true));
    assert_eq!(desk.used(at(61)), 5);
}

/// Ten came back at the old rate; giving ten back at the new one as well would issue them twice.
#[test]
fn a_bucket_that_became_slower_does_not_give_back_what_its_old_rate_gave() {
    let mut desk = Desk::new(&one(TokenBucket::per_second(10)));
    let first = desk.admitted(at(0), 10);
    desk.admitted(at(1), 10);
    desk.change(&one(TokenBucket::per(1, Span::from_secs(10)).burst(10)));
    assert_eq!(desk.release(at(1), first), Reply::Settled(true));
    assert_eq!(desk.used(at(1)), 10);
    // The first ask writes the new numbers; releasing comes after it as well as before it.
    let mut desk = Desk::new(&one(TokenBucket::per_second(10)));
    let first = desk.admitted(at(0), 10);
    desk.admitted(at(1), 9);
    desk.change(&one(TokenBucket::per(1, Span::from_secs(10)).burst(10)));
    desk.admitted(at(1), 1);
    assert_eq!(desk.release(at(1), first), Reply::Settled(true));
    assert_eq!(desk.used(at(1)), 10);
}

#[test]
fn a_window_that_became_coarser_or_longer_keeps_its_younger_charges() {
    for (rule, first_has_left) in [
        (RollingWindow::new(10, Span::from_secs(60)).resolution(6), at(71)),
        (RollingWindow::new(10, Span::from_secs(90)), at(91)),
    ] {
        let mut desk = Desk::new(&one(RollingWindow::new(10, Span::from_secs(5))));
        let first = desk.admitted(at(0), 5);
        desk.change(&one(rule));
        desk.admitted(at(12), 5);
        let used = desk.used(at(12));
        assert_eq!(desk.release(at(12), first), Reply::Settled(true));
        assert!(5 <= desk.used(at(12)) && desk.used(at(12)) <= used, "{rule:?}");
        assert_eq!(desk.used(first_has_left), 5, "the second is still whole: {rule:?}");
    }
}

/// Raising a limit does not lose what is in flight.
#[test]
fn a_change_of_the_limit_alone_keeps_what_can_be_given_back() {
    let changes = [
        (one(TokenBucket::per_second(1).burst(10)), one(TokenBucket::per_second(1).burst(20))),
        (
            one(RollingWindow::new(10, Span::from_secs(60))),
            one(RollingWindow::new(20, Span::from_secs(60))),
        ),
        (one(CalendarWindow::new(10, Period::Day)), one(CalendarWindow::new(20, Period::Day))),
        (
            one(TokenBucket::per_minute(5).burst(10).at_boundaries()),
            one(TokenBucket::per_minute(5).burst(20).at_boundaries()),
        ),
    ];
    for (before, after) in changes {
        let mut desk = Desk::new(&before);
        let permit = desk.admitted(at(0), 10);
        desk.change(&after);
        desk.admitted(at(0), 10);
        assert_eq!(desk.release(at(0), permit), Reply::Settled(true));
        assert_eq!(desk.used(at(0)), 10, "{after:?}");
    }
}

/// A permit with places in two limits lost one of them; renewing the other hid that somebody else had it.
#[test]
fn a_permit_that_lost_one_of_its_slots_cannot_be_renewed() {
    let short = Limit::new("short", "jobs", Concurrency::new(1, Span::from_secs(10)));
    let long = Limit::new("long", "jobs", Concurrency::new(2, Span::from_secs(60)));
    let policy = Policy::new("both", [short, long]).unwrap();
    let mut desk = Desk::new(&policy);
    let first = desk.admitted(at(0), 1);
    desk.admitted(at(11), 1);
    let before = desk.entry();
    assert_eq!(desk.renew(at(12), first), Reply::Failed(ErrorKind::Expired));
    assert_eq!(desk.entry(), before);
}

/// The answer depended on whether anything else had been written in between.
#[test]
fn a_settled_permit_that_is_too_old_is_expired_whatever_else_happened() {
    for busy in [true, false] {
        let mut desk = Desk::new(&one(TokenBucket::per_second(10)));
        let permit = desk.admitted(at(0), 1);
        assert_eq!(desk.release(at(1), permit), Reply::Settled(true));
        assert_eq!(desk.release(at(3_599), permit), Reply::Settled(false));
        if busy {
            desk.admitted(at(4_000), 1);
        }
        assert_eq!(desk.release(at(4_000), permit), Reply::Failed(ErrorKind::Expired), "{busy}");
    }
}

#[test]
fn settling_for_more_is_charged_and_may_go_below_zero() {
    let mut desk = Desk::new(&one(TokenBucket::per_second(1).burst(10)));
    let permit = desk.admitted(at(0), 10);
    assert_eq!(desk.settle(at(0), permit, 15), Reply::Settled(true));
    let refused = DenialSummary { limit: "only".to_owned(), until: Some(at(6)) };
    assert_eq!(desk.denied(at(0), 1), refused);
}

/// A→B→A: the numbers are the old ones again, but what happened in between is not undone.
#[test]
fn numbers_that_went_away_and_came_back_give_nothing_back() {
    let of = |window| one(RollingWindow::new(5, Span::from_secs(window)));
    let mut desk = Desk::new(&of(60));
    let first = desk.admitted(at(0), 5);
    desk.change(&of(30));
    desk.admitted(at(31), 5);
    desk.change(&of(60));
    desk.ask(at(32), 0);
    desk.release(at(32), first);
    desk.denied(at(32), 5);

    let of = |rate| one(TokenBucket::per_second(rate).burst(10));
    let mut desk = Desk::new(&of(1));
    let first = desk.admitted(at(0), 10);
    desk.change(&of(100));
    desk.admitted(at(1), 10);
    desk.change(&of(1));
    desk.ask(at(1), 0);
    desk.release(at(1), first);
    desk.denied(at(1), 10);
}

/// A permit that crossed a wire is rebuilt under the policy in force, and knows that its numbers were others.
#[test]
fn a_permit_from_other_numbers_gives_nothing_back() {
    let slow = one(TokenBucket::per_minute(10));
    let now = at(0);
    let mut entry = Entry::fresh(&slow, now);
    let ask = Ask::new(&slow, "subject").cost("requests", 10);
    commit(&mut entry, now, &ask);
    let grant = Grant { at: at(0) - Span::from_secs(1), stamp: 1, use_by: None, expires_at: None };
    let permit = Permit::new(&slow, "subject", *ask.amounts(), grant).under_other_numbers();
    assert_eq!(release(&mut entry, now, &permit.charged()), Ok(true));
    assert_eq!(standings(&entry, now)[0].remaining, 0);
}

/// Behind a line the limit that really holds it up is named.
#[test]
fn who_stands_behind_others_is_told_what_those_wait_for() {
    let llm = policy([
        Limit::new("rpm", "requests", TokenBucket::per_minute(60)),
        Limit::new("tpm", "tokens", TokenBucket::per_minute(60)),
    ]);
    let now = at(0);
    let mut entry = Entry::fresh(&llm, now);
    commit(&mut entry, now, &Ask::new(&llm, "subject").cost("tokens", 60));
    let in_front = llm.amounts(&Costs::new().with("tokens", 30)).unwrap();
    let ask = Ask::new(&llm, "subject").behind(vec![in_front]);
    let refusal = Refusal { limit: 1, wait: Wait::Until(at(30)) };
    assert_eq!(decide(&entry, now, &ask, Known::New), Ok(Verdict::Denied(refusal)));
}
