//! Goal: at its bounds the core errs to the strict side and never settles or issues anything twice.
//! Method: beyond each bound, compared with the model, which has none.

use tollgate_core::bounds::{LOG_ENTRIES_MAX, SETTLED_RUNS_MAX};
use tollgate_core::{Costs, ErrorKind, RollingWindow, Span, Timestamp, TokenBucket};
use tollgate_testing::model::Model;
use tollgate_testing::script::{Answer, Did};

use crate::desk::{Desk, at, one};

fn micros(count: usize) -> Timestamp {
    at(0) + Span::from_micros(count as u64)
}

/// Neighbours merge to the later time, so charges leave late and never early.
#[test]
fn a_log_beyond_its_bound_is_at_least_as_strict_as_the_exact_one() {
    let charges = 3 * LOG_ENTRIES_MAX;
    let policy = one(RollingWindow::new(charges as u64 + 10, Span::from_micros(10_000)));
    let (mut desk, mut model) = (Desk::new(&policy), Model::new(&policy));
    let one_more = Did::Acquire { costs: Costs::new(), id: None };
    for count in 0..charges {
        let now = micros(3 * count);
        assert_eq!(desk.play(now, &one_more), model.apply(now, &one_more));
    }
    let mut stricter = 0;
    for count in (3 * charges..3 * charges + 10_100).step_by(101) {
        let (used, exact) = (desk.used(micros(count)), model.standings(micros(count))[0].used);
        assert!(exact <= used, "{used} counted, {exact} are inside");
        stricter += used - exact;
    }
    assert!(0 < stricter, "the log never merged, so this test shows nothing");
    assert_eq!(desk.used(micros(3 * charges + 10_000)), 0);
}

/// A charge that was merged into a later one gives nothing back, so that a younger one never does.
#[test]
fn giving_back_to_a_log_that_merged_errs_to_the_strict_side() {
    let charges = LOG_ENTRIES_MAX + 1;
    let policy = one(RollingWindow::new(2 * charges as u64, Span::from_secs(60)));
    let mut desk = Desk::new(&policy);
    let permits: Vec<usize> = (0..charges).map(|count| desk.admitted(micros(count), 1)).collect();
    let now = micros(charges);
    for permit in &permits {
        assert_eq!(desk.release(now, *permit), Answer::Settled(true));
    }
    // Of each pair the earlier one lost its time.
    assert_eq!(desk.used(now), LOG_ENTRIES_MAX as u64 / 2);
}

/// Beyond the bound a permit cannot be settled any more, rather than perhaps twice.
#[test]
fn permits_older_than_the_remembered_runs_are_expired() {
    let mut desk = Desk::new(&one(TokenBucket::per_second(10_000)));
    let count = 2 * (SETTLED_RUNS_MAX + 2);
    let permits: Vec<usize> = (0..count).map(|_| desk.admitted(at(0), 1)).collect();
    // Every second one, so that no two runs join.
    for permit in permits.iter().skip(1).step_by(2) {
        assert_eq!(desk.release(at(0), *permit), Answer::Settled(true));
    }
    let used = desk.used(at(0));
    for permit in &permits[..2] {
        assert_eq!(desk.release(at(0), *permit), Answer::Failed(ErrorKind::Expired));
    }
    assert_eq!(desk.used(at(0)), used);
    assert_eq!(desk.release(at(0), permits[count - 1]), Answer::Settled(false));
    assert_eq!(desk.release(at(0), permits[count - 2]), Answer::Settled(true));
}
