//! Rolling windows: the grid of large limits, and the exact log of small ones.

use std::sync::Arc;

use tollgate::clock::ManualClock;
use tollgate::core::Operation;
use tollgate::core::bounds::LOG_ENTRIES_MAX;
use tollgate::gate::Outcome;
use tollgate::{Ask, Clock, GateExt, Limit, Policy, RollingWindow, Span};
use tollgate_redis::Options;

use crate::agreement::Both;
use crate::{admitted, open_at, server, used};

fn rolling(limit: u64, window: Span) -> Policy {
    let rule = RollingWindow::new(limit, window);
    Policy::new("rolling", [Limit::new("only", "requests", rule)]).unwrap()
}

/// 3,000 admitted within a window and all released leave nothing used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_thousand_released_leave_nothing() {
    let (redis, clock) = (server(), ManualClock::new());
    let gate = Arc::new(open_at(Options::single(redis.url()), &clock).await);
    let policy = rolling(20_000, Span::from_secs(10));
    let mut permits = Vec::new();
    for _ in 0..3_000 {
        clock.advance(Span::from_millis(1));
        permits.push(admitted(gate.acquire(&Ask::new(&policy, "p")).await.unwrap()));
    }
    assert_eq!(used(&*gate, &policy, "p").await, 3_000);
    for permit in &permits {
        assert!(gate.release(permit).await.unwrap());
    }
    assert_eq!(used(&*gate, &policy, "p").await, 0);
}

/// Evenly spaced demand at 95 % of 20,000 per 10 s is never refused, and at 100 % at least 98 % goes through.
#[tokio::test]
async fn evenly_spaced_demand_below_the_limit_is_never_refused() {
    const COST: u64 = 10;
    let redis = server();
    for (percent, least) in [(95, 100), (100, 98)] {
        let clock = ManualClock::new();
        let gate = open_at(Options::single(redis.url()), &clock).await;
        let (policy, subject) = (rolling(20_000, Span::from_secs(10)), format!("at-{percent}"));
        let asks = 20_000 * percent / 100 / COST;
        let (mut admitted, windows) = (0, 3);
        for number in 0..windows * asks {
            // Spaced by a fraction of a microsecond.
            let at = |number: u64| number * 10_000_000 / asks;
            clock.advance(Span::from_micros(at(number + 1) - at(number)));
            let ask = Ask::new(&policy, subject.as_str()).cost("requests", COST).without_refund();
            admitted += u64::from(gate.acquire(&ask).await.unwrap().is_admitted());
        }
        assert!(
            least * windows * asks <= 100 * admitted,
            "{percent}: {admitted} of {}",
            windows * asks
        );
    }
}

/// Debt makes a log longer than the limit. At the bound its newest entries merge, as in the core.
#[tokio::test]
async fn a_log_longer_than_its_bound_is_as_in_the_core() {
    let redis = server();
    let mut both = Both::new(&redis).await;
    let policy = rolling(100, Span::from_secs(60));
    let mut permits = Vec::new();
    for number in 0..LOG_ENTRIES_MAX as u64 + 200 {
        both.clock.advance(Span::from_millis(1 + number % 3));
        let ask = Ask::new(&policy, "p");
        let got = both.gate.charge(&ask).await.unwrap();
        let expected = both.core.run(both.clock.now(), &Operation::Charge(&ask)).unwrap();
        assert_eq!(Outcome::Permitted(got.clone()), expected);
        permits.push(got);
        if number % 50 == 49 {
            both.release(&permits[usize::try_from(number).unwrap() - 3]).await;
            both.acquire(&ask).await.unwrap();
        }
    }
    for permit in permits.iter().rev().step_by(5) {
        both.release(permit).await;
    }
    both.clock.advance(Span::from_secs(59));
    both.acquire(&Ask::new(&policy, "p")).await.unwrap();
}
