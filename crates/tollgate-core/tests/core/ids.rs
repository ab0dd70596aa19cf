//! Goal: promise 5, once: an ask repeated under its id within the horizon is charged once.
//! Method: short stories up to every edge of the horizon and of the bound.

use tollgate_core::bounds::{ID_HORIZON, IDS_MAX};
use tollgate_core::{ErrorKind, Span, TokenBucket};
use tollgate_testing::script::Answer;

use crate::desk::{Desk, at, just_before, one};

fn desk() -> Desk {
    Desk::new(&one(TokenBucket::per_minute(100_000)))
}

#[test]
fn a_repeat_within_the_horizon_gets_the_permit_it_got_before() {
    let mut desk = desk();
    let Answer::Admitted(first) = desk.ask_as(at(0), 60_000, "a") else {
        unreachable!("there is room");
    };
    // A second charge would not fit.
    assert_eq!(desk.ask_as(at(1), 60_000, "a"), Answer::Repeated(first.clone()));
    let used = desk.used(at(1));
    assert_eq!(desk.ask_as(at(1), 60_000, "a"), Answer::Repeated(first.clone()));
    assert_eq!(desk.used(at(1)), used);
    let end = at(0) + ID_HORIZON;
    assert_eq!(desk.ask_as(just_before(end), 60_000, "a"), Answer::Repeated(first));
    assert!(matches!(desk.ask_as(end, 60_000, "a"), Answer::Admitted(_)));
}

#[test]
fn the_same_id_with_other_costs_is_a_conflict_and_changes_nothing() {
    let mut desk = desk();
    assert!(matches!(desk.ask_as(at(0), 5, "a"), Answer::Admitted(_)));
    let before = desk.entry();
    assert_eq!(desk.ask_as(at(1), 6, "a"), Answer::Failed(ErrorKind::Conflict));
    assert_eq!(desk.entry(), before);
}

#[test]
fn a_denial_is_not_remembered() {
    let mut desk = desk();
    desk.admitted(at(0), 100_000);
    assert!(matches!(desk.ask_as(at(0), 50_000, "a"), Answer::Denied(_)));
    assert!(matches!(desk.ask_as(at(30), 50_000, "a"), Answer::Admitted(_)));
}

#[test]
fn too_many_ids_are_contended_until_the_horizon_lifts_them() {
    let mut desk = desk();
    for number in 0..IDS_MAX {
        assert!(matches!(desk.ask_as(at(0), 1, &format!("id-{number}")), Answer::Admitted(_)));
    }
    let before = desk.entry();
    assert_eq!(desk.ask_as(at(1), 1, "one too many"), Answer::Failed(ErrorKind::Contended));
    assert_eq!(desk.entry(), before);
    assert!(matches!(desk.ask_as(at(1), 1, "id-7"), Answer::Repeated(_)));
    assert!(matches!(desk.ask(at(1), 1), Answer::Admitted(_)));
    let end = at(0) + ID_HORIZON;
    assert!(matches!(desk.ask_as(end, 1, "one too many"), Answer::Admitted(_)));
}

#[test]
fn an_entry_is_not_absent_while_it_knows_an_id() {
    let mut desk = desk();
    assert!(matches!(desk.ask_as(at(0), 1, "a"), Answer::Admitted(_)));
    let entry = desk.entry().expect("something was written");
    let end = at(0) + ID_HORIZON;
    assert!(!entry.is_absent(just_before(end)));
    assert!(entry.is_absent(end));
    assert!(!entry.is_absent(at(0) - Span::from_secs(1)));
}
