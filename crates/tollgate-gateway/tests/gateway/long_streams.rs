//! Streams that take longer than a permit can be settled: nothing is given back, and nothing is lost.

use http_body_util::BodyExt as _;
use serde_json::Value;
use tollgate::core::bounds::PERMIT_TTL;
use tollgate::{Concurrency, Limit, Policy, RollingWindow, Span};
use tollgate_providers::Dialect;
use tollgate_testkit::fakes::llm::{Fault, Settings, Trouble, When};

use crate::support::{Harness, Setup};

/// Tokens of two days, and slots if `has_slots`.
fn policy(name: &str, tokens: u64, has_slots: bool) -> Policy {
    let days = RollingWindow::new(tokens, Span::from_hours(48));
    let mut limits = vec![
        Limit::new("tpd", "tokens", days),
        Limit::new("rpd", "requests", RollingWindow::new(1_000, Span::from_hours(48))),
    ];
    if has_slots {
        limits.push(Limit::new("slots", "requests", Concurrency::new(5, Span::from_mins(20))));
    }
    Policy::new(name, limits).unwrap()
}

async fn start(tokens: u64, has_slots: bool) -> Harness {
    let trouble = Trouble::new(Fault::SlowStream(Span::from_mins(4)), When::Every(1));
    let fake = Settings { troubles: vec![trouble], length: 60, ..Settings::default() };
    let setup = Setup::new(Dialect::OpenAi).fake(fake);
    setup
        .policy(policy("user", tokens, false))
        .policy(policy("provider", tokens, has_slots))
        .start()
        .await
}

/// Reads a stream that takes four hours.
async fn stream(harness: &Harness, body: &Value) {
    let mut response = harness.open(&harness.path(true), &[], body).await;
    let began = harness.app.now();
    for _ in 0..1_000 {
        if harness.gateway.snapshot().in_flight == 0 {
            break;
        }
        harness.clock.advance(Span::from_secs(30));
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }
    harness.quiet().await;
    assert!(PERMIT_TTL < harness.app.now().since(began), "it was a short stream");
    let mut text = Vec::new();
    while let Some(frame) = response.frame().await {
        text.extend_from_slice(&frame.unwrap().into_data().unwrap());
    }
    assert!(String::from_utf8(text).unwrap().contains("[DONE]"), "it was cut");
}

/// An undeclared output is estimated at a quarter of the limit, which is less than it takes.
#[tokio::test]
async fn cost_beyond_the_estimate_is_charged() {
    for has_slots in [false, true] {
        let harness = start(100, has_slots).await;
        let mut body = harness.request("hello", 1, true);
        body.as_object_mut().unwrap().remove("max_completion_tokens");
        stream(&harness, &body).await;
        let arrival = harness.fake().arrivals().pop().unwrap();
        let cost = arrival.input + arrival.output;
        assert!(50 < cost, "{arrival:?}");
        for (policy, subject) in [("user", "caller"), ("provider", "up-1")] {
            assert_eq!(harness.used(policy, subject, "tpd").await, cost, "{policy} {has_slots}");
            assert_eq!(harness.used(policy, subject, "rpd").await, 1, "{policy} {has_slots}");
        }
        if has_slots {
            assert_eq!(harness.used("provider", "up-1", "slots").await, 0);
        }
    }
}

#[tokio::test]
async fn an_estimate_that_was_too_high_stays_charged() {
    for has_slots in [false, true] {
        let harness = start(100_000, has_slots).await;
        stream(&harness, &harness.request("hello", 5_000, true)).await;
        for (policy, subject) in [("user", "caller"), ("provider", "up-1")] {
            let used = harness.used(policy, subject, "tpd").await;
            assert!((5_000..5_100).contains(&used), "{policy} {has_slots}: {used}");
            assert_eq!(harness.used(policy, subject, "rpd").await, 1, "{policy} {has_slots}");
        }
        if has_slots {
            assert_eq!(harness.used("provider", "up-1", "slots").await, 0);
        }
    }
}
