//! Clocks that disagree: with the service, and with each other.

use std::sync::Arc;

use tollgate::{Ask, Clock, Decision, Gate, ManualClock, Span, Timestamp, TokenBucket};
use tollgate_testing::servers::dynamodb::Misbehaviour;

use crate::{Desk, admit, coarse, connect, deny, options, single};

/// A clock that is off is noticed before the first decision, and made up for.
#[tokio::test]
async fn a_clock_that_is_off_at_the_start_is_corrected() {
    let desk = Desk::new().await;
    let date: Timestamp = "2026-11-15T08:30:00Z".parse().unwrap();
    let dated = Misbehaviour::Date("Sun, 15 Nov 2026 08:30:00 GMT".to_owned());
    let clock = ManualClock::at(date + Span::from_hours(1));
    desk.server.proxy().next("GetItem", 1, &dated);
    let gate = connect(options(&desk.server.endpoint(), Arc::new(clock))).await;
    assert_eq!(gate.store().clock_offset_micros(), -3_599_500_000);
    desk.server.proxy().next("UpdateItem", 1, &dated);
    let permit = admit(&gate, &Ask::new(&coarse(5), "p")).await;
    assert_eq!(permit.grant().at, date + Span::from_millis(500));
}

/// A clock that jumps in between: the answer that shows it is an error and admits nobody; the next one is right.
#[tokio::test]
async fn an_answer_by_a_wrong_clock_does_not_count() {
    let desk = Desk::new().await;
    let date: Timestamp = "2026-11-15T08:30:00Z".parse().unwrap();
    let dated = Misbehaviour::Date("Sun, 15 Nov 2026 08:30:00 GMT".to_owned());
    let clock = ManualClock::at(date);
    desk.server.proxy().next("GetItem", 1, &dated);
    desk.server.proxy().next("UpdateItem", 3, &dated);
    let options = options(&desk.server.endpoint(), Arc::new(clock.clone()));
    let gate = connect(options).await;
    let policy = single(TokenBucket::per_minute(5));
    admit(&gate, &Ask::new(&policy, "p")).await;
    clock.set(date - Span::from_mins(10));
    let error = gate.acquire(&Ask::new(&policy, "q")).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("clock"), "{error}");
    assert_eq!(
        admit(&gate, &Ask::new(&policy, "r")).await.grant().at,
        date + Span::from_millis(500)
    );
}

/// Instances whose clocks differ by up to a second admit no more than one instance would in any window of slots.
#[tokio::test]
async fn clocks_that_differ_do_not_overfill_the_counters() {
    let desk = Desk::new().await;
    let start = Timestamp::from_secs(1_800_000_000);
    let clocks = [0, 500, 1_000].map(|ms| ManualClock::at(start + Span::from_millis(ms)));
    let mut gates = Vec::new();
    for clock in &clocks {
        let options = options(&desk.server.endpoint(), Arc::new(clock.clone())).skew_max(None);
        gates.push(connect(options).await);
    }
    let policy = coarse(5);
    let mut admitted: Vec<Timestamp> = Vec::new();
    for step in 0..900 {
        for clock in &clocks {
            clock.advance(Span::from_millis(200));
        }
        let (gate, clock) = (&gates[step % 3], &clocks[0]);
        if let Decision::Admitted(_) = gate.acquire(&Ask::new(&policy, "p")).await.unwrap() {
            admitted.push(clock.now());
        }
    }
    // A window of 60 s less the largest difference holds at most five on the true clock.
    let window = Span::from_secs(59);
    for first in &admitted {
        let inside = admitted.iter().filter(|at| *first <= **at && **at < *first + window).count();
        assert!(inside <= 5, "{inside} from {first}");
    }
    assert!(12 <= admitted.len(), "only {} in three minutes", admitted.len());
}

/// A clock that steps back does not make room: the entry stays where it was.
#[tokio::test]
async fn a_clock_that_steps_back_makes_no_room() {
    let desk = Desk::new().await;
    let (one, other) = (desk.gate().await, desk.gate().await);
    for policy in [single(TokenBucket::per_minute(5)), coarse(5)] {
        for _ in 0..5 {
            admit(&one, &Ask::new(&policy, "p")).await;
        }
        let now = desk.clock.now();
        desk.clock.set(now - Span::from_secs(30));
        for gate in [&one, &other] {
            deny(gate, &Ask::new(&policy, "p")).await;
        }
        desk.clock.set(now + Span::from_mins(5));
    }
}
