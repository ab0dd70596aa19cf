//! Goal: a rolling window of any size admits demand below its limit, uses its limit, and gives everything back.
//! Method: evenly spaced demand on limits from 10 to 1,000,000, beside an exact count of what was admitted.

use std::collections::VecDeque;

use tollgate_core::{
    Ask, Decision, Entry, Known, Operation, Outcome, Permit, Policy, RollingWindow, Span,
    Timestamp, apply, standings,
};

use crate::desk::{at, one};

/// Everything admitted in the window that ends now.
struct Admitted {
    log: VecDeque<(Timestamp, u64)>,
    sum: u64,
    window: Span,
}

impl Admitted {
    fn add(&mut self, now: Timestamp, amount: u64) -> u64 {
        self.log.push_back((now, amount));
        self.sum += amount;
        while let Some((at, amount)) = self.log.front()
            && *at + self.window <= now
        {
            self.sum -= amount;
            self.log.pop_front();
        }
        self.sum
    }
}

struct Run {
    asked: u64,
    admitted: u64,
    permits: Vec<Permit>,
    entry: Entry,
    end: Timestamp,
}

/// Asks for `cost` every `spacing` for `windows` windows.
fn demand(policy: &Policy, window: Span, cost: u64, spacing: u64, windows: u64) -> Run {
    let limit = policy.effective().next().expect("there is a limit");
    let ask = Ask::new(policy, "subject").cost("requests", cost);
    // Away from the borders of slots.
    let start = at(0) + Span::from_micros(123_457);
    let mut exact = Admitted { log: VecDeque::new(), sum: 0, window };
    let mut run = Run {
        asked: 0,
        admitted: 0,
        permits: Vec::new(),
        entry: Entry::fresh(policy, start),
        end: start,
    };
    for number in 0..windows * window.as_micros() / spacing {
        run.end = start + Span::from_micros(number * spacing);
        let outcome = apply(&Operation::Acquire(&ask), &mut run.entry, Known::New, run.end);
        run.asked += cost;
        if let Outcome::Decided(Decision::Admitted(permit)) = outcome.expect("it decides").outcome {
            run.admitted += cost;
            run.permits.push(permit);
            let inside = exact.add(run.end, cost);
            assert!(inside <= limit, "{inside} of {limit} in one window");
        }
    }
    run
}

/// Limit, window in seconds, and the cost of each ask, so that a run has some thousand asks.
const LIMITS: [(u64, u64, u64); 9] = [
    (10, 1, 1),
    (10, 10, 1),
    (100, 10, 1),
    (129, 60, 1),
    (1_000, 10, 1),
    (5_000, 10, 1),
    (20_000, 10, 4),
    (250_000, 60, 50),
    (1_000_000, 10, 200),
];

#[test]
fn demand_at_95_percent_is_never_refused_and_all_of_it_can_be_given_back() {
    for (limit, seconds, cost) in LIMITS {
        let window = Span::from_secs(seconds);
        let policy = one(RollingWindow::new(limit, window));
        let spacing = (window.as_micros() * cost * 100).div_ceil(limit * 95);
        let mut run = demand(&policy, window, cost, spacing, 4);
        assert_eq!(run.admitted, run.asked, "{limit} per {window}");
        for permit in &run.permits {
            apply(&Operation::Release(permit), &mut run.entry, Known::New, run.end)
                .expect("it is settled");
        }
        assert_eq!(standings(&run.entry, run.end)[0].used, 0, "{limit} per {window}");
    }
}

#[test]
fn demand_at_the_limit_uses_98_percent_of_it() {
    for (limit, seconds, cost) in LIMITS {
        let window = Span::from_secs(seconds);
        let policy = one(RollingWindow::new(limit, window));
        let spacing = window.as_micros() * cost / limit;
        let run = demand(&policy, window, cost, spacing, 40);
        assert!(run.asked * 98 <= run.admitted * 100, "{limit} per {window}: {}", run.admitted);
    }
}

/// The log used to merge neighbours at 1,024 admissions: 3,000 released left 2,048 used.
#[test]
fn three_thousand_admissions_that_are_released_leave_nothing() {
    let policy = one(RollingWindow::new(20_000, Span::from_secs(10)));
    let mut run = demand(&policy, Span::from_secs(10), 1, 3_333, 1);
    assert_eq!(run.permits.len(), 3_000);
    for permit in run.permits.iter().rev() {
        apply(&Operation::Release(permit), &mut run.entry, Known::New, run.end).expect("settled");
    }
    assert_eq!(standings(&run.entry, run.end)[0].used, 0);
}

/// An entry from before the grid is carried to it: nothing is forgotten, and nothing leaves early.
#[test]
fn carrying_an_exact_log_to_a_grid_files_entries_at_slot_ends() {
    let exact = one(RollingWindow::new(128, Span::from_secs(60)));
    let grid = one(RollingWindow::new(6_400, Span::from_secs(64)));
    let mut entry = Entry::fresh(&exact, at(0));
    let run = |entry: &mut Entry, policy: &Policy, cost, now| {
        let ask = Ask::new(policy, "subject").cost("requests", cost);
        apply(&Operation::Acquire(&ask), entry, Known::New, now).expect("it decides")
    };
    run(&mut entry, &exact, 100, at(1));
    run(&mut entry, &exact, 20, at(2) + Span::from_millis(500));
    // Slots of a second: what came at 1 s counts until 2 + 64 s.
    run(&mut entry, &grid, 1, at(3));
    let used = |now| standings(&entry, now)[0].used;
    assert_eq!(used(at(3)), 121);
    assert_eq!(used(at(66) - Span::from_micros(1)), 121);
    assert_eq!(used(at(66)), 21);
    assert_eq!(used(at(67)), 1);
    assert_eq!(used(at(68)), 0);
}
