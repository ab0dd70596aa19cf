//! Slots of a concurrency limit: held while a call is in flight, renewed on long streams.

use std::sync::Arc;

use http_body_util::BodyExt as _;
use tollgate::{Concurrency, Limit, Policy, Span};
use tollgate_providers::Dialect;
use tollgate_testkit::fakes::llm::{Fault, Settings, Trouble, When};

use crate::support::Setup;

fn slots(count: u64) -> Policy {
    let limit = Limit::new("slots", "requests", Concurrency::new(count, Span::from_secs(60)));
    Policy::new("provider", [limit]).unwrap()
}

#[tokio::test]
async fn a_slot_is_free_after_each_kind_of_end() {
    for fault in [None, Some(Fault::status(500)), Some(Fault::status(401)), Some(Fault::Hangup)] {
        let harness = Setup::new(Dialect::OpenAi).policy(slots(1)).start().await;
        let troubles = fault.map(|fault| Trouble::new(fault, When::Every(1)));
        let troubles = troubles.into_iter().collect();
        harness.fake().set(Settings { troubles, ..Settings::default() });
        harness.generate("hello", 10).await;
        harness.quiet().await;
        assert_eq!(harness.used("provider", "up-1", "slots").await, 0, "{fault:?}");
    }
}

/// The stream lasts five times as long as a slot lives without renewal.
#[tokio::test]
async fn a_long_stream_renews_its_slot() {
    let harness = Arc::new(Setup::new(Dialect::OpenAi).policy(slots(1)).start().await);
    let trouble = Trouble::new(Fault::SlowStream(Span::from_secs(20)), When::Call(1));
    harness.fake().set(Settings { troubles: vec![trouble], length: 16, ..Settings::default() });
    let body = harness.request("hello", 100, true);
    let mut response = harness.open(&harness.path(true), &[], &body).await;
    for second in 0..1_000 {
        harness.clock.advance(Span::from_secs(1));
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        if harness.gateway.snapshot().in_flight == 0 {
            assert!(120 < second, "the stream ended after {second} s");
            break;
        }
        assert_eq!(harness.used("provider", "up-1", "slots").await, 1, "after {second} s");
    }
    while response.frame().await.is_some_and(|frame| frame.is_ok()) {}
    harness.quiet().await;
    assert_eq!(harness.used("provider", "up-1", "slots").await, 0);
}
