//! Goal: promise 5, once: an ask repeated under its id within the horizon is charged once.
//! Method: short stories up to every edge of the horizon and of the bound.

use tollgate_conformance::script::{Action, Reply, SingleEntry};
use tollgate_core::bounds::ID_HORIZON;
use tollgate_core::{
    Ask, Concurrency, ErrorKind, Limit, Operation, Outcome, Policy, Span, TokenBucket,
};

use crate::desk::{Desk, at, just_before, one};

fn desk() -> Desk {
    Desk::new(&one(TokenBucket::per_minute(100_000)))
}

#[test]
fn a_repeat_within_the_horizon_gets_the_permit_it_got_before() {
    let mut desk = desk();
    let Reply::Admitted(first) = desk.ask_as(at(0), 60_000, "a") else {
        unreachable!("there is room");
    };
    // A second charge would not fit.
    assert_eq!(desk.ask_as(at(1), 60_000, "a"), Reply::Repeated(first.clone()));
    let used = desk.used(at(1));
    assert_eq!(desk.ask_as(at(1), 60_000, "a"), Reply::Repeated(first.clone()));
    assert_eq!(desk.used(at(1)), used);
    let end = at(0) + ID_HORIZON;
    assert_eq!(desk.ask_as(just_before(end), 60_000, "a"), Reply::Repeated(first));
    assert!(matches!(desk.ask_as(end, 60_000, "a"), Reply::Admitted(_)));
}

#[test]
fn the_same_id_with_other_costs_is_a_conflict_and_changes_nothing() {
    let mut desk = desk();
    assert!(matches!(desk.ask_as(at(0), 5, "a"), Reply::Admitted(_)));
    let before = desk.entry();
    assert_eq!(desk.ask_as(at(1), 6, "a"), Reply::Failed(ErrorKind::Conflict));
    assert_eq!(desk.entry(), before);
}

#[test]
fn a_denial_is_not_remembered() {
    let mut desk = desk();
    desk.admitted(at(0), 100_000);
    assert!(matches!(desk.ask_as(at(0), 50_000, "a"), Reply::Denied(_)));
    assert!(matches!(desk.ask_as(at(30), 50_000, "a"), Reply::Admitted(_)));
}

/// A busy subject may remember as many ids as the store has room for.
#[test]
fn ten_thousand_ids_of_one_subject_are_all_recognised() {
    let mut desk = desk();
    for number in 0..10_000 {
        assert!(matches!(desk.ask_as(at(0), 1, &format!("id-{number}")), Reply::Admitted(_)));
    }
    let used = desk.used(at(1));
    for number in (0..10_000).step_by(97) {
        assert!(matches!(desk.ask_as(at(1), 1, &format!("id-{number}")), Reply::Repeated(_)));
    }
    assert_eq!(desk.used(at(1)), used);
}

#[test]
fn an_id_whose_permit_was_released_or_reset_is_a_new_ask() {
    let mut desk = desk();
    let Reply::Admitted(first) = desk.ask_as(at(0), 5, "a") else {
        unreachable!("there is room");
    };
    assert_eq!(desk.release(at(1), first.permit), Reply::Settled(true));
    assert!(matches!(desk.ask_as(at(1), 7_000, "a"), Reply::Admitted(_)));
    assert_eq!(desk.play(at(2), &Action::Reset), Reply::Done(true));
    assert!(matches!(desk.ask_as(at(2), 9_000, "a"), Reply::Admitted(_)));
    assert!(matches!(desk.ask_as(at(3), 9_000, "a"), Reply::Repeated(_)));
}

/// Ids are kept beside the entry, so it may be forgotten before them.
#[test]
fn an_id_outlives_its_entry() {
    let mut desk = desk();
    let Reply::Admitted(first) = desk.ask_as(at(0), 1, "a") else {
        unreachable!("there is room");
    };
    assert!(desk.entry().expect("something was written").is_absent(at(1)));
    desk.forget_entry();
    assert_eq!(desk.ask_as(just_before(at(120)), 1, "a"), Reply::Repeated(first));
    assert_eq!(desk.entry(), None, "nothing was charged");
}

/// The slot of the first permit expired, so that the id got another one: releasing the first does not forget it.
#[test]
fn releasing_an_older_permit_of_an_id_keeps_the_id_of_the_newer_one() {
    let limit = Limit::new("slots", "requests", Concurrency::new(2, Span::from_secs(10)));
    let policy = Policy::new("calls", [limit]).unwrap();
    let ask = Ask::new(&policy, "alice").id("a");
    let mut store = SingleEntry::default();
    let acquire = |store: &mut SingleEntry, secs| {
        let Outcome::Decided(decision) = store.run(at(secs), &Operation::Acquire(&ask)).unwrap()
        else {
            unreachable!("an ask is decided");
        };
        decision.into_permit().unwrap()
    };
    let first = acquire(&mut store, 0);
    let second = acquire(&mut store, 20);
    assert_ne!(first.grant(), second.grant());
    assert_eq!(store.run(at(21), &Operation::Release(&first)).unwrap(), Outcome::Changed(true));
    assert_eq!(acquire(&mut store, 22).grant(), second.grant());
    assert_eq!(store.run(at(23), &Operation::Release(&second)).unwrap(), Outcome::Changed(true));
    assert_ne!(acquire(&mut store, 24).grant(), second.grant());
}
