//! Clients that disconnect at any point.

use std::sync::Arc;

use http_body_util::BodyExt as _;
use tokio::task::JoinSet;
use tollgate::clock::SystemClock;
use tollgate::internal::timeout;
use tollgate::{Clock as _, Concurrency, Limit, Policy, RollingWindow, Span};
use tollgate_providers::Dialect;
use tollgate_testkit::fakes::llm::{Fault, Settings, Trouble, When};

use crate::support::{Setup, per_minute};

fn with(fault: Fault) -> Settings {
    Settings { troubles: vec![Trouble::new(fault, When::Every(1))], ..Settings::default() }
}

#[tokio::test]
async fn a_client_that_leaves_while_it_waits_is_charged_nothing() {
    let setup = Setup::new(Dialect::OpenAi).policy(per_minute("user", 1, 1_000_000));
    let harness = Arc::new(setup.start().await);
    harness.generate("hello", 10).await;
    harness.clock.advance(Span::from_secs(20));
    let waits = harness.spawn("hello", 10);
    harness.waiting(1).await;
    waits.abort();
    harness.waiting(0).await;
    harness.clock.advance(Span::from_mins(2));
    assert_eq!(harness.used("user", "caller", "rpm").await, 0);
    assert_eq!(harness.fake().tally().calls, 1);
    let snapshot = harness.gateway.snapshot();
    assert_eq!((snapshot.in_flight, snapshot.held_bytes), (0, 0));
}

/// The output of a plain call is not seen, so all of it counts; of a stream, the input does.
#[tokio::test]
async fn a_client_that_leaves_before_the_response_is_charged() {
    for is_stream in [false, true] {
        let setup = Setup::new(Dialect::OpenAi).fake(with(Fault::Slow(Span::from_hours(1))));
        let harness = Arc::new(setup.start().await);
        let call = tokio::spawn({
            let harness = Arc::clone(&harness);
            async move {
                let body = harness.request("hello there", 1_000, is_stream);
                harness.post(&harness.path(is_stream), &[], &body).await
            }
        });
        harness.until(|harness| harness.fake().tally().calls == 1).await;
        call.abort();
        harness.quiet().await;
        let used = harness.used("user", "caller", "tpm").await;
        assert_eq!(harness.used("user", "caller", "rpm").await, 1);
        assert!(if is_stream { (1..100).contains(&used) } else { 1_000 < used }, "{used}");
    }
}

/// The upstream is cancelled, and input and streamed output are charged.
#[tokio::test]
async fn a_client_that_leaves_a_stream_is_charged_what_it_got() {
    for dialect in Dialect::ALL {
        let fault = Fault::SlowStream(Span::from_secs(10));
        let setup = Setup::new(dialect).fake(Settings { length: 200, ..with(fault) });
        let harness = setup.start().await;
        let body = harness.request("hello there", 2_000, true);
        let mut response = harness.open(&harness.path(true), &[], &body).await;
        for _ in 0..20 {
            harness.clock.advance(Span::from_secs(10));
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        }
        response.frame().await.unwrap().unwrap();
        drop(response);
        harness.quiet().await;
        harness.until(|harness| harness.fake().tally().unfinished == 1).await;
        let used = harness.used("user", "caller", "tpm").await;
        assert!(0 < used && used < 1_000, "{dialect}: {used}");
        let events = harness.events.all();
        assert!(events.iter().any(|event| event.contains("ClientGone")), "{events:?}");
    }
}

#[tokio::test]
async fn hidden_output_is_charged_as_estimated() {
    let fault = Fault::SlowStream(Span::from_secs(10));
    let harness = Setup::new(Dialect::OpenAi).fake(with(fault)).start().await;
    let mut body = harness.request("hello there", 2_000, true);
    body["reasoning_effort"] = serde_json::json!("high");
    let response = harness.open(&harness.path(true), &[], &body).await;
    drop(response);
    harness.quiet().await;
    assert!(2_000 < harness.used("user", "caller", "tpm").await);
}

/// OpenAI's clients stop reading at the last event.
#[tokio::test]
async fn a_client_that_leaves_after_the_last_event_is_settled_exactly() {
    let harness = Setup::new(Dialect::OpenAi).start().await;
    let body = harness.request("hello there", 2_000, true);
    let mut response = harness.open(&harness.path(true), &[], &body).await;
    let mut text = String::new();
    while !text.contains("[DONE]") {
        let frame = response.frame().await.unwrap().unwrap();
        text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
    }
    drop(response);
    harness.quiet().await;
    let arrival = harness.fake().arrivals().pop().unwrap();
    assert_eq!(harness.used("user", "caller", "tpm").await, arrival.input + arrival.output);
}

/// Whatever moment a client leaves at: no slot stays taken, and exactly the calls that were sent are charged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_calls_that_are_cancelled_at_random_leave_the_books_balanced() {
    const CALLS: u64 = 1_000;
    const AT_ONCE: u64 = 64;
    let slots = Limit::new("slots", "requests", Concurrency::new(64, Span::from_mins(5)));
    let count =
        Limit::new("count", "requests", RollingWindow::new(1_000_000, Span::from_hours(24)));
    let policy = Policy::new("provider", [slots, count]).unwrap();
    let fake = Settings {
        pause: Span::from_millis(1),
        latency: Span::from_millis(2),
        ..Settings::default()
    };
    let mut setup = Setup::new(Dialect::OpenAi).policy(policy).fake(fake);
    setup.policies[0] = per_minute("user", 1_000_000, 1_000_000_000);
    setup.clock = Some(Arc::new(SystemClock));
    let harness = Arc::new(setup.start().await);
    let run = |number: u64, leaves_after: Span| {
        let harness = Arc::clone(&harness);
        async move {
            let began = SystemClock.monotonic();
            let is_stream = number.is_multiple_of(2);
            let body = harness.request("hello there", 100, is_stream);
            let path = harness.path(is_stream);
            let call = harness.post(&path, &[], &body);
            let is_finished = timeout(&SystemClock, leaves_after, call).await.is_some();
            let took = SystemClock.monotonic().as_micros() - began.as_micros();
            (is_finished, took)
        }
    };
    // How long a call takes here, so that clients leave in each part of it.
    let mut calls: JoinSet<_> =
        (0..AT_ONCE).map(|number| run(number, Span::from_mins(1))).collect();
    let mut usual = 0;
    while let Some(done) = calls.join_next().await {
        let (is_finished, took) = done.unwrap();
        assert!(is_finished);
        usual = usual.max(took);
    }
    let mut finished = AT_ONCE;
    for number in 0..CALLS {
        let micros = u64::from(tollgate::internal::edge::random()) % (2 * usual);
        calls.spawn(run(number, Span::from_micros(micros)));
        if AT_ONCE <= calls.len() as u64 {
            finished += u64::from(calls.join_next().await.unwrap().unwrap().0);
        }
    }
    while let Some(done) = calls.join_next().await {
        finished += u64::from(done.unwrap().0);
    }
    let is_quiet = |harness: &crate::support::Harness| {
        let snapshot = harness.gateway.snapshot();
        snapshot.in_flight == 0 && snapshot.waiting_calls == 0 && snapshot.held_bytes == 0
    };
    for _ in 0..2_000 {
        if is_quiet(&harness) {
            break;
        }
        SystemClock.sleep_until(harness.app.now() + Span::from_millis(5)).await;
    }
    assert!(is_quiet(&harness), "{:?}", harness.gateway.snapshot());
    assert_eq!(harness.used("provider", "up-1", "slots").await, 0);
    let charged = harness.used("provider", "up-1", "count").await;
    let sent = harness.gateway.snapshot().deployments[0].calls;
    let received = harness.fake().tally().calls;
    assert_eq!(charged, sent, "{finished} finished");
    // A connection may break before the last byte of a request has left the machine.
    assert!(received <= sent && sent - received <= CALLS / 100, "{received} of {sent} arrived");
    assert!(finished < sent && sent < CALLS + AT_ONCE, "{finished} finished, {sent} were sent");
    assert_eq!(harness.used("user", "caller", "rpm").await, charged);
}
