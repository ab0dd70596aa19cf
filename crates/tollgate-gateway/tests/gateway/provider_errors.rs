//! What a provider refuses, and upstreams that fail.

use std::sync::Arc;

use tollgate::{Clock as _, Span};
use tollgate_providers::Dialect;
use tollgate_testkit::fakes::llm::{FakeLlm, Fault, Settings, Trouble, When};

use crate::support::{Harness, Setup};

fn failing(fault: Fault, times: u64) -> Settings {
    let trouble = Trouble::new(fault, When::Every(1)).times(times);
    Settings { troubles: vec![trouble], ..Settings::default() }
}

const TOO_MANY: Fault = Fault::Refuse { status: 429, retry_after: Some(Span::from_secs(20)) };

/// The tokens of the calls that were answered, all together.
fn tokens(harness: &Harness) -> u64 {
    let arrivals = harness.fakes.iter().flat_map(FakeLlm::arrivals);
    let answered = arrivals.filter(|arrival| arrival.status == 200);
    answered.map(|arrival| arrival.input + arrival.output).sum()
}

#[tokio::test]
async fn a_429_closes_the_upstream_and_the_call_goes_to_the_next() {
    for dialect in Dialect::ALL {
        let harness = Setup::new(dialect).upstreams(2).start().await;
        harness.fakes[0].set(failing(TOO_MANY, 1));
        let reply = harness.generate("hello", 10).await;
        assert_eq!(reply.status, 200, "{dialect}: {}", reply.text());
        assert_eq!(reply.header("x-tollgate-waited-ms"), Some("0"));
        assert_eq!(harness.fakes[0].tally().calls, 1);
        assert_eq!(harness.fakes[1].tally().calls, 1);
        let snapshot = harness.gateway.snapshot();
        assert_eq!(snapshot.deployments[0].refused, 1);
        let closed = snapshot.deployments[0].closed_until;
        if dialect != Dialect::Gemini {
            assert_eq!(closed, Some(harness.app.now() + Span::from_secs(20)), "{dialect}");
        }
        // The refused request counts, its tokens do not.
        harness.quiet().await;
        assert_eq!(harness.used("provider", "up-1", "rpm").await, 1);
        assert_eq!(harness.used("provider", "up-1", "tpm").await, 0);
        assert_eq!(harness.used("user", "caller", "rpm").await, 2);
        // While it is closed, others are asked first.
        harness.generate("hello", 10).await;
        assert_eq!(harness.fakes[0].tally().calls, 1, "{dialect}");
        harness.clock.advance(Span::from_mins(3));
        harness.generate("hello", 10).await;
        assert_eq!(harness.fakes[0].tally().calls, 2, "{dialect}: open again");
    }
}

#[tokio::test]
async fn a_429_of_the_only_upstream_is_waited_for() {
    let harness = Arc::new(Setup::new(Dialect::Anthropic).start().await);
    harness.fake().set(failing(TOO_MANY, 1));
    let call = harness.spawn("hello", 10);
    harness.until(|harness| harness.fake().tally().calls == 1).await;
    harness.waiting(1).await;
    harness.clock.advance(Span::from_secs(19));
    harness.waiting(1).await;
    harness.clock.advance(Span::from_secs(1));
    let reply = call.await.unwrap();
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("x-tollgate-waited-ms"), Some("20000"));
    harness.quiet().await;
    assert_eq!(harness.used("user", "caller", "tpm").await, tokens(&harness));
}

#[tokio::test]
async fn a_429_for_longer_than_the_deadline_is_a_refusal() {
    let harness = Setup::new(Dialect::OpenAi).start().await;
    let fault = Fault::Refuse { status: 429, retry_after: Some(Span::from_secs(55)) };
    harness.fake().set(failing(fault, 1));
    let reply = harness.generate("hello", 10).await;
    assert_eq!(reply.status, 429);
    assert_eq!(reply.header("retry-after"), Some("55"));
    assert_eq!(harness.fake().tally().calls, 1);
}

/// Without a charge for the upstream, this process alone leaves it alone.
#[tokio::test]
async fn a_429_is_remembered_without_a_charge_for_the_upstream() {
    let setup = Setup::new(Dialect::OpenAi).upstreams(2);
    let harness = setup.route(|route| drop(route.charges.pop())).start().await;
    harness.fakes[0].set(failing(TOO_MANY, 1));
    assert_eq!(harness.generate("hello", 10).await.status, 200);
    assert_eq!(harness.generate("hello", 10).await.status, 200);
    assert_eq!(harness.fakes.iter().map(|fake| fake.tally().calls).collect::<Vec<_>>(), [1, 2]);
    harness.fakes[1].set(failing(Fault::status(503), 1));
    let harness = Arc::new(harness);
    let call = harness.spawn("hello", 10);
    harness.waiting(1).await;
    harness.clock.advance(Span::from_secs(1));
    assert_eq!(call.await.unwrap().status, 200, "the overloaded one is open first");
    assert_eq!(harness.fakes[1].tally().calls, 4);
}

#[tokio::test]
async fn an_overload_is_retried_elsewhere() {
    for status in [503, 529] {
        let harness = Setup::new(Dialect::Anthropic).upstreams(2).start().await;
        harness.fakes[0].set(failing(Fault::status(status), 1));
        assert_eq!(harness.generate("hello", 10).await.status, 200, "{status}");
        harness.quiet().await;
        assert_eq!(harness.used("provider", "up-1", "tpm").await, 0);
        assert_eq!(harness.used("user", "caller", "tpm").await, tokens(&harness));
    }
}

#[tokio::test]
async fn an_upstream_that_never_recovers_is_given_up() {
    let harness = Setup::new(Dialect::OpenAi).start().await;
    harness.fake().set(failing(Fault::status(503), u64::MAX));
    let harness = Arc::new(harness);
    let call = harness.spawn("hello", 10);
    while !call.is_finished() {
        harness.clock.advance(Span::from_millis(100));
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }
    let reply = call.await.unwrap();
    assert_eq!(reply.status, 503, "{}", reply.text());
    assert!(reply.header("retry-after").is_some());
    let calls = harness.fake().tally().calls;
    assert!((3..=8).contains(&calls), "{calls}");
}

#[tokio::test]
async fn a_refused_connection_costs_nothing_and_is_retried_elsewhere() {
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    let setup = Setup::new(Dialect::OpenAi).upstreams(2).options(|options| {
        let mut upstream = tollgate_gateway::Upstream::new("up-1", Dialect::OpenAi, "k");
        upstream.url = format!("http://{address}");
        options.upstreams.push(upstream);
    });
    let harness = setup.start().await;
    let reply = harness.generate("hello", 10).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    harness.quiet().await;
    assert_eq!(harness.used("provider", "up-1", "rpm").await, 0);
    assert_eq!(harness.used("user", "caller", "rpm").await, 1);
    assert!(harness.gateway.snapshot().deployments[0].closed_until.is_some());
}

#[tokio::test]
async fn a_500_goes_to_the_client_and_keeps_the_charge() {
    let harness = Setup::new(Dialect::OpenAi).upstreams(2).start().await;
    harness.fakes[0].set(failing(Fault::status(500), 1));
    let reply = harness.generate("hello", 1_000).await;
    assert_eq!(reply.status, 500);
    harness.quiet().await;
    assert_eq!(harness.fakes[1].tally().calls, 0);
    assert!(1_000 < harness.used("user", "caller", "tpm").await);
}

#[tokio::test]
async fn a_connection_that_ends_without_a_response_keeps_the_charge() {
    let harness = Setup::new(Dialect::Gemini).upstreams(2).start().await;
    harness.fakes[0].set(failing(Fault::Hangup, 1));
    let reply = harness.generate("hello", 10).await;
    assert_eq!(reply.status, 502);
    assert_eq!(reply.json()["error"]["status"], "UNAVAILABLE");
    harness.quiet().await;
    assert_eq!(harness.fakes[1].tally().calls, 0);
    assert!(0 < harness.used("user", "caller", "tpm").await);
}

#[tokio::test]
async fn a_silent_upstream_times_out_and_keeps_the_charge() {
    let harness = Arc::new(Setup::new(Dialect::OpenAi).start().await);
    harness.fake().set(failing(Fault::Slow(Span::from_hours(2)), 1));
    let call = harness.spawn("hello", 1_000);
    harness.until(|harness| harness.fake().tally().calls == 1).await;
    harness.clock.advance(Span::from_mins(10));
    let reply = call.await.unwrap();
    assert_eq!(reply.status, 504);
    harness.quiet().await;
    assert!(1_000 < harness.used("user", "caller", "tpm").await);
    assert_eq!(harness.gateway.snapshot().deployments[0].calls, 1);
}

#[tokio::test]
async fn a_stream_that_stalls_is_cut_and_keeps_the_charge() {
    let harness = Setup::new(Dialect::OpenAi).start().await;
    harness.fake().set(failing(Fault::Stall { after: 3 }, 1));
    let body = harness.request("hello", 1_000, true);
    let mut response = harness.open(&harness.path(true), &[], &body).await;
    assert_eq!(response.status(), 200);
    use http_body_util::BodyExt as _;
    response.frame().await.unwrap().unwrap();
    harness.clock.advance(Span::from_mins(5));
    while let Some(frame) = response.frame().await {
        if frame.is_err() {
            break;
        }
    }
    harness.quiet().await;
    assert_eq!(harness.events.count("Finished"), 1);
    assert!(harness.events.all().iter().any(|event| event.contains("UpstreamFailed")));
}

#[tokio::test]
async fn a_step_of_the_wall_clock_does_not_cut_a_stream() {
    let harness = Setup::new(Dialect::OpenAi).start().await;
    harness.fake().set(failing(Fault::Stall { after: 3 }, 1));
    let body = harness.request("hello", 1_000, true);
    let mut response = harness.open(&harness.path(true), &[], &body).await;
    use http_body_util::BodyExt as _;
    response.frame().await.unwrap().unwrap();
    harness.clock.step(harness.clock.now() + Span::from_hours(3));
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(harness.events.count("Finished"), 0, "the stream is open");
    harness.clock.advance(Span::from_mins(5));
    while let Some(Ok(_)) = response.frame().await {}
    harness.quiet().await;
    assert_eq!(harness.events.count("Finished"), 1);
}

/// A client would follow a redirect with its key.
#[tokio::test]
async fn a_redirect_is_an_error_of_the_upstream() {
    for dialect in Dialect::ALL {
        for status in [301, 302, 304, 307, 308] {
            let harness = Setup::new(dialect).fake(failing(Fault::status(status), 9)).start().await;
            let reply = harness.generate("hello", 10).await;
            assert_eq!(reply.status, 502, "{dialect} {status}");
            assert!(reply.text().contains("a redirect; check its url"), "{}", reply.text());
            assert_eq!(reply.header("location"), None);
            harness.quiet().await;
            assert_eq!(harness.used("user", "caller", "tpm").await, 0, "{dialect} {status}");
            assert_eq!(harness.used("user", "caller", "rpm").await, 1, "{dialect} {status}");
        }
    }
}

/// Calls that fail together are one failure: the pause does not grow with their number.
#[tokio::test]
async fn an_outage_is_one_failure_however_many_calls_meet_it() {
    let trouble = Fault::Refuse { status: 503, retry_after: None };
    let setup = Setup::new(Dialect::OpenAi).fake(failing(trouble, 20));
    let harness = Arc::new(setup.start().await);
    let calls: Vec<_> = (0..20).map(|_| harness.spawn("hello", 10)).collect();
    harness.until(|harness| harness.fake().tally().answered(503) == 20).await;
    harness.waiting(20).await;
    let closed = harness.gateway.snapshot().deployments[0].closed_until.unwrap();
    assert_eq!(closed.since(harness.app.now()), Span::from_millis(500));
    harness.clock.advance(Span::from_secs(1));
    for call in calls {
        assert_eq!(call.await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn an_account_without_credit_is_passed_through() {
    let harness = Setup::new(Dialect::OpenAi).upstreams(2).start().await;
    harness.fakes[0].set(failing(Fault::NoCredit, 1));
    let reply = harness.generate("hello", 1_000).await;
    assert_eq!(reply.status, 429);
    assert_eq!(reply.json()["error"]["code"], "insufficient_quota");
    harness.quiet().await;
    assert_eq!(harness.fakes[1].tally().calls, 0);
    assert_eq!(harness.used("user", "caller", "tpm").await, 0);
}

#[tokio::test]
async fn a_wrong_provider_key_costs_no_tokens_and_a_bad_request_keeps_them() {
    for (status, is_charged) in [(401, false), (403, false), (404, false), (400, true), (422, true)]
    {
        let harness = Setup::new(Dialect::Anthropic).start().await;
        harness.fake().set(failing(Fault::status(status), 1));
        let reply = harness.generate("hello", 1_000).await;
        assert_eq!(reply.status.as_u16(), status);
        harness.quiet().await;
        let used = harness.used("user", "caller", "tpm").await;
        assert_eq!(0 < used, is_charged, "{status}: {used}");
        assert_eq!(harness.used("user", "caller", "rpm").await, 1);
    }
}

#[tokio::test]
async fn a_limit_that_differs_from_the_policy_is_reported_once() {
    let quota = tollgate_testkit::fakes::llm::Quota {
        rpm: 77,
        ..tollgate_testkit::fakes::llm::Quota::NONE
    };
    let fake = Settings { quota, ..Settings::default() };
    let harness = Setup::new(Dialect::OpenAi).fake(fake).start().await;
    for _ in 0..3 {
        harness.generate("hello", 10).await;
    }
    let events = harness.events.all();
    let differs: Vec<&String> = events
        .iter()
        .filter(|event| event.starts_with("LimitDiffers") && event.contains("requests"))
        .collect();
    assert_eq!(differs.len(), 1, "{events:?}");
    assert!(differs[0].contains("ours: 1000") && differs[0].contains("theirs: 77"), "{differs:?}");
}

/// The provider counts what others send with the same credential.
#[tokio::test]
async fn nothing_left_by_the_headers_closes_the_limit() {
    let quota =
        tollgate_testkit::fakes::llm::Quota { rpm: 1, ..tollgate_testkit::fakes::llm::Quota::NONE };
    let fake = Settings { quota, ..Settings::default() };
    let harness = Arc::new(Setup::new(Dialect::OpenAi).fake(fake).start().await);
    assert_eq!(harness.generate("hello", 10).await.status, 200);
    harness.clock.advance(Span::from_secs(15));
    let call = harness.spawn("hello", 10);
    harness.waiting(1).await;
    harness.clock.advance(Span::from_secs(45));
    assert_eq!(call.await.unwrap().status, 200);
    assert_eq!(harness.fake().tally().answered(429), 0);
}
