//! Goal: at its bounds the core errs to the strict side and never settles or issues anything twice.
//! Method: beyond each bound, compared with the model, which has none.

use tollgate_conformance::model::Model;
use tollgate_conformance::script::Action;
use tollgate_core::bounds::{ABANDONED_AFTER, LOG_ENTRIES_MAX, SETTLED_RUNS_MAX};
use tollgate_core::{
    Ask, Costs, Decision, Entry, ErrorKind, Known, Operation, Outcome, Permit, Policy,
    RollingWindow, Span, Timestamp, apply, standings,
};

use crate::desk::{Desk, at, one};

fn micros(count: usize) -> Timestamp {
    at(0) + Span::from_micros(count as u64)
}

/// Only debt fills a log. Its newest entries merge to the later time, so that what came first still leaves on time.
#[test]
fn a_log_full_of_debt_is_at_least_as_strict_as_the_exact_one() {
    let policy = one(RollingWindow::new(100, Span::from_secs(10)));
    let (mut desk, mut model) = (Desk::new(&policy), Model::new(&policy));
    let debt = Action::Charge { costs: Costs::new(), id: None };
    let charges = 3 * LOG_ENTRIES_MAX;
    for count in 0..charges {
        assert_eq!(desk.play(micros(count), &debt), model.apply(micros(count), &debt));
    }
    let leaves = |count| micros(count) + Span::from_secs(10);
    for count in (0..charges).step_by(7) {
        let (used, exact) = (desk.used(leaves(count)), model.standings(leaves(count))[0].used);
        assert!(exact <= used, "{used} counted, {exact} are inside");
        if count + 1 < LOG_ENTRIES_MAX {
            assert_eq!(used, exact, "the first leave on time");
        }
    }
    assert_eq!(desk.used(leaves(charges - 1)), 0);
}

/// A subject with so many permits that a script would take long to find one of them.
struct Crowd {
    policy: Policy,
    entry: Entry,
}

impl Crowd {
    fn new() -> Self {
        // A bucket would lose a little beyond its bound on lows.
        let policy = one(RollingWindow::new(10_000_000, Span::from_hours(1)));
        Self { entry: Entry::fresh(&policy, at(0)), policy }
    }

    fn run(&mut self, operation: &Operation<'_>, now: Timestamp) -> Result<Outcome, ErrorKind> {
        let applied = apply(operation, &mut self.entry, Known::New, now);
        applied.map(|applied| applied.outcome).map_err(|error| error.kind())
    }

    fn acquire(&mut self, now: Timestamp) -> Result<Permit, ErrorKind> {
        let policy = self.policy.clone();
        let ask = Ask::new(&policy, "crowd").cost("requests", 10);
        match self.run(&Operation::Acquire(&ask), now)? {
            Outcome::Decided(Decision::Admitted(permit)) => Ok(permit),
            other => unreachable!("there is room: {other:?}"),
        }
    }

    fn settle(
        &mut self,
        permit: &Permit,
        actual: u64,
        now: Timestamp,
    ) -> Result<Outcome, ErrorKind> {
        self.run(&Operation::Settle(permit, &Costs::new().with("requests", actual)), now)
    }

    fn used(&self, now: Timestamp) -> u64 {
        standings(&self.entry, now)[0].used
    }
}

const DONE: Result<Outcome, ErrorKind> = Ok(Outcome::Changed(true));
const BEFORE: Result<Outcome, ErrorKind> = Ok(Outcome::Changed(false));

/// A permit is given only if it can be settled: 100,000 in flight settle in an order that keeps every run apart.
#[test]
fn permits_in_flight_are_settled_exactly_up_to_the_bound_and_refused_beyond_it() {
    let mut crowd = Crowd::new();
    let permits: Vec<Permit> =
        (0..2 * SETTLED_RUNS_MAX).map(|_| crowd.acquire(at(0)).expect("room")).collect();
    for permit in permits.iter().skip(1).step_by(2) {
        assert_eq!(crowd.settle(permit, 15, at(0)), DONE);
    }
    assert_eq!(crowd.acquire(at(0)), Err(ErrorKind::Contended));
    let half = SETTLED_RUNS_MAX as u64;
    assert_eq!(crowd.used(at(0)), half * 10 + half * 15);
    for permit in permits.iter().step_by(2) {
        assert_eq!(crowd.settle(permit, 0, at(0)), DONE);
    }
    assert_eq!(crowd.used(at(0)), half * 15);
    assert_eq!(crowd.settle(&permits[1], 0, at(0)), BEFORE);
    assert!(crowd.acquire(at(0)).is_ok());
}

/// Permits that nobody settles do not stop new ones; the oldest lose their refund, and what they cost more is charged.
#[test]
fn abandoned_permits_make_room_for_new_ones_and_still_pay_what_they_cost() {
    let mut crowd = Crowd::new();
    let permits: Vec<Permit> =
        (0..2 * SETTLED_RUNS_MAX + 2).map(|_| crowd.acquire(at(0)).expect("room")).collect();
    let later = at(0) + ABANDONED_AFTER;
    for permit in permits.iter().skip(1).step_by(2) {
        assert_eq!(crowd.settle(permit, 10, later), DONE);
    }
    assert!(crowd.acquire(later).is_ok());
    let used = crowd.used(later);
    assert_eq!(crowd.settle(&permits[0], 0, later), Err(ErrorKind::Expired));
    assert_eq!(crowd.used(later), used);
    assert_eq!(crowd.settle(&permits[0], 510, later), DONE);
    assert_eq!(crowd.used(later), used + 500);
    assert_eq!(crowd.settle(&permits[0], 510, later), BEFORE);
    assert_eq!(crowd.settle(&permits[2], 0, later), DONE);
}
