//! A gateway that stops: streams finish, waiting calls are refused.

use std::sync::Arc;

use http_body_util::BodyExt as _;
use tollgate::Span;
use tollgate_providers::Dialect;
use tollgate_testkit::fakes::llm::{Fault, Settings, Trouble, When};

use crate::support::{Setup, per_minute};

fn slow_stream() -> Settings {
    let trouble = Trouble::new(Fault::SlowStream(Span::from_secs(10)), When::Every(1));
    Settings { troubles: vec![trouble], ..Settings::default() }
}

#[tokio::test]
async fn a_stream_finishes_after_the_time_of_other_connections() {
    let mut harness = Setup::new(Dialect::OpenAi).fake(slow_stream()).start().await;
    let body = harness.request("hello", 100, true);
    let mut response = harness.open(&harness.path(true), &[], &body).await;
    let mut text = response.frame().await.unwrap().unwrap().into_data().unwrap().to_vec();
    harness.stop();
    let clock = harness.clock.clone();
    let advancing = tokio::spawn(async move {
        loop {
            clock.advance(Span::from_secs(1));
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
        }
    });
    while let Some(frame) = response.frame().await {
        text.extend_from_slice(&frame.unwrap().into_data().unwrap());
    }
    let drained = (&mut harness.server).await.unwrap();
    advancing.abort();
    assert!(String::from_utf8(text).unwrap().contains("[DONE]"));
    assert_eq!(drained.cut, 0);
    let arrival = harness.fake().arrivals().pop().unwrap();
    assert_eq!(harness.used("user", "caller", "rpm").await, 1);
    assert_eq!(arrival.status, 200);
}

#[tokio::test]
async fn a_stream_that_does_not_finish_is_cut_and_settled() {
    let setup = Setup::new(Dialect::OpenAi).fake(slow_stream());
    let mut harness =
        setup.options(|options| options.drain = std::time::Duration::from_secs(30)).start().await;
    let body = harness.request("hello", 100, true);
    let mut response = harness.open(&harness.path(true), &[], &body).await;
    response.frame().await.unwrap().unwrap();
    harness.stop();
    for _ in 0..40 {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        harness.clock.advance(Span::from_secs(1));
    }
    let drained = (&mut harness.server).await.unwrap();
    assert_eq!(drained.cut, 1);
    assert_eq!(harness.gateway.snapshot().in_flight, 0);
    assert!(0 < harness.used("user", "caller", "tpm").await);
}

#[tokio::test]
async fn waiting_calls_are_refused_when_the_gateway_stops() {
    let setup = Setup::new(Dialect::Anthropic).policy(per_minute("user", 1, 1_000_000));
    let harness = Arc::new(setup.start().await);
    harness.generate("hello", 10).await;
    harness.clock.advance(Span::from_secs(20));
    let waits = harness.spawn("hello", 10);
    harness.waiting(1).await;
    harness.stop();
    let refused = waits.await.unwrap();
    assert_eq!(refused.status, 503);
    assert_eq!(refused.json()["error"]["type"], "overloaded_error");
    assert_eq!(refused.header("retry-after"), Some("1"));
}
