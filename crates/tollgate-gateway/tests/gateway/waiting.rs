//! Calls wait for admission up to a deadline, and are refused in the shape of their dialect.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::policy::Policies;
use tollgate::{Ask, Decision, Error, Gate, Span, Timestamp};
use tollgate_providers::Dialect;

use crate::support::{Setup, lasting, per_minute};

/// A call that waits asks again under the new limits, at its place.
#[tokio::test]
async fn new_limits_apply_to_calls_that_wait() {
    let setup = Setup::new(Dialect::OpenAi).policy(per_minute("user", 1, 1_000_000));
    let setup = setup.route(|route| route.max_wait = std::time::Duration::from_secs(300));
    let harness = Arc::new(setup.start().await);
    harness.generate("hello", 10).await;
    harness.clock.advance(Span::from_secs(30));
    let first = harness.spawn("hello", 10);
    harness.waiting(1).await;
    let second = harness.spawn("hello", 10);
    harness.waiting(2).await;
    let replace = |requests| {
        let user = per_minute("user", requests, 1_000_000);
        let policies = Policies::new([user, lasting("provider")]).unwrap();
        harness.app.replace_policies(policies).unwrap();
    };
    replace(2);
    assert_eq!(first.await.unwrap().status, 200);
    harness.waiting(1).await;
    // A policy that is gone: the call goes on under the old one.
    harness.app.replace_policies(Policies::new([lasting("provider")]).unwrap()).unwrap();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(harness.gateway.snapshot().waiting_calls, 1);
    replace(3);
    assert_eq!(second.await.unwrap().status, 200);
    assert_eq!(harness.used("user", "caller", "rpm").await, 3);
}

#[tokio::test]
async fn a_call_waits_for_its_limit_and_says_how_long() {
    for dialect in Dialect::ALL {
        let setup = Setup::new(dialect).policy(per_minute("user", 1, 1_000_000));
        let harness = Arc::new(setup.start().await);
        assert_eq!(harness.generate("hello", 10).await.header("x-tollgate-waited-ms"), Some("0"));
        harness.clock.advance(Span::from_secs(20));
        let second = harness.spawn("hello", 10);
        harness.waiting(1).await;
        harness.clock.advance(Span::from_secs(39));
        harness.waiting(1).await;
        harness.clock.advance(Span::from_secs(1));
        let second = second.await.unwrap();
        assert_eq!(second.status, 200, "{dialect}: {}", second.text());
        assert_eq!(second.header("x-tollgate-waited-ms"), Some("40000"), "{dialect}");
        assert_eq!(harness.fake().tally().answered(429), 0);
        let snapshot = harness.gateway.snapshot();
        assert_eq!(snapshot.deployments[0].waited_calls, 1);
        assert_eq!(snapshot.deployments[0].waited, Span::from_secs(40));
    }
}

/// Beyond the deadline a call is refused at once.
#[tokio::test]
async fn a_refusal_has_the_shape_of_the_dialect_and_says_when_to_retry() {
    for dialect in Dialect::ALL {
        let setup = Setup::new(dialect).policy(per_minute("user", 1, 1_000_000));
        let harness = setup.route(|route| route.max_wait = Default::default()).start().await;
        harness.generate("hello", 10).await;
        harness.clock.advance(Span::from_millis(9_500));
        let refused = harness.generate("hello", 10).await;
        assert_eq!(refused.status, 429, "{dialect}");
        assert_eq!(refused.header("retry-after"), Some("51"), "{dialect}");
        assert_eq!(refused.header("retry-after-ms"), Some("50500"), "{dialect}");
        assert_eq!(refused.header("x-should-retry"), None);
        assert!(refused.header("x-request-id").is_some());
        let body = refused.json();
        let kind = match dialect {
            Dialect::OpenAi => &body["error"]["code"],
            Dialect::Anthropic => &body["error"]["type"],
            Dialect::Gemini => &body["error"]["status"],
        };
        let expected = match dialect {
            Dialect::OpenAi => "rate_limit_exceeded",
            Dialect::Anthropic => "rate_limit_error",
            Dialect::Gemini => "RESOURCE_EXHAUSTED",
        };
        assert_eq!(kind, expected);
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains("\"rpm\" of policy \"user\""), "{message}");
        assert_eq!(harness.fake().tally().calls, 1, "the refused call was not sent");
        assert_eq!(harness.used("provider", "up-1", "rpm").await, 1, "and charged nowhere");
    }
}

#[tokio::test]
async fn a_call_that_never_fits_is_not_to_be_retried() {
    let setup = Setup::new(Dialect::OpenAi).policy(per_minute("user", 10, 100));
    let harness = setup.start().await;
    let refused = harness.generate("hello", 5_000).await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("x-should-retry"), Some("false"));
    assert_eq!(refused.header("retry-after"), None);
}

/// An undeclared output takes at most a quarter of the limit.
#[tokio::test]
async fn an_undeclared_output_never_prevents_a_call() {
    let setup = Setup::new(Dialect::OpenAi).policy(per_minute("user", 10, 100));
    let harness = setup.start().await;
    let mut body = harness.request("hello", 0, false);
    body.as_object_mut().unwrap().remove("max_completion_tokens");
    let reply = harness.post(&harness.path(false), &[], &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
}

#[tokio::test]
async fn a_wait_of_more_than_a_minute_is_not_to_be_retried() {
    let daily = tollgate::RollingWindow::new(1, Span::from_hours(24));
    let limits = [tollgate::Limit::new("rpd", "requests", daily)];
    let policy = tollgate::Policy::new("user", limits).unwrap();
    let harness = Setup::new(Dialect::OpenAi).policy(policy).start().await;
    harness.generate("hello", 10).await;
    let refused = harness.generate("hello", 10).await;
    assert_eq!(refused.header("x-should-retry"), Some("false"));
    assert_eq!(refused.header("retry-after"), Some("86400"));
}

#[tokio::test]
async fn the_client_may_shorten_the_wait() {
    let setup = Setup::new(Dialect::OpenAi).policy(per_minute("user", 1, 1_000_000));
    let harness = setup.start().await;
    harness.generate("hello", 10).await;
    harness.clock.advance(Span::from_secs(30));
    let body = harness.request("hello", 10, false);
    for headers in [
        [("x-tollgate-max-wait", "29s")],
        [("x-tollgate-max-wait", "0")],
        // As the SDKs announce their time-outs.
        [("x-stainless-timeout", "29")],
        [("x-server-timeout", "29.5")],
    ] {
        let refused = harness.post(&harness.path(false), &headers, &body).await;
        assert_eq!(refused.status, 429, "{headers:?}");
    }
    let wrong = harness.post(&harness.path(false), &[("x-tollgate-max-wait", "soon")], &body).await;
    assert_eq!(wrong.status, 400);
    assert!(wrong.text().contains("30s"), "{}", wrong.text());
}

/// An ask of the broker that waits is served before a call that came later.
#[tokio::test]
async fn calls_wait_in_the_queue_of_all_protocols() {
    let setup = Setup::new(Dialect::OpenAi).policy(per_minute("provider", 1, 1_000_000));
    let harness = Arc::new(setup.start().await);
    harness.generate("hello", 10).await;
    let first = tokio::spawn({
        let harness = Arc::clone(&harness);
        async move {
            let policies = harness.app.policies();
            let ask = Ask::new(policies.get("provider").unwrap(), "up-1");
            let alternatives = tollgate::gate::Alternatives::from_asks(vec![ask], 0).unwrap();
            let deadline = harness.app.now() + Span::from_mins(10);
            let mut ticket = tollgate::queue::Ticket::default();
            let decided = harness.app.acquire_any_in_turn(&alternatives, deadline, &mut ticket, "");
            (decided.await.unwrap().1.is_admitted(), harness.app.now())
        }
    });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    harness.clock.advance(Span::from_secs(30));
    let second = harness.spawn("hello", 10);
    harness.waiting(1).await;
    harness.clock.advance(Span::from_secs(30));
    let (is_admitted, at) = first.await.unwrap();
    assert!(is_admitted && at == harness.app.now());
    // The call's turn would come after its deadline.
    harness.clock.advance(Span::from_secs(20));
    assert_eq!(second.await.unwrap().status, 429);
    assert_eq!(harness.fake().tally().calls, 1);
}

/// A gate whose first permit is stale when it arrives.
#[derive(Debug)]
struct StaleOnce {
    gate: Arc<tollgate::Memory>,
    is_done: AtomicBool,
}

impl Gate for StaleOnce {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(async move {
            let outcome = self.gate.run(operation).await?;
            Ok(match outcome {
                Outcome::Decided(Decision::Admitted(permit))
                    if !self.is_done.swap(true, Ordering::Relaxed) =>
                {
                    let mut grant = *permit.grant();
                    grant.use_by = Some(Timestamp::from_secs(1));
                    Outcome::Decided(Decision::Admitted(permit.with_grant(grant)))
                }
                outcome => outcome,
            })
        })
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}

#[tokio::test]
async fn a_permit_that_was_not_sent_in_time_is_given_back() {
    let mut setup = Setup::new(Dialect::OpenAi);
    setup.wrap =
        Some(Box::new(|gate| Arc::new(StaleOnce { gate, is_done: AtomicBool::new(false) })));
    let harness = setup.start().await;
    let reply = harness.generate("hello", 10).await;
    assert_eq!(reply.status, 200);
    harness.quiet().await;
    assert_eq!(harness.events.count("Admitted"), 2, "{:?}", harness.events.all());
    assert_eq!(harness.fake().tally().calls, 1);
    assert_eq!(harness.used("user", "caller", "rpm").await, 1);
    assert_eq!(harness.used("provider", "up-1", "rpm").await, 1);
}

/// What settled calls teach: the next estimate is that of the provider.
#[tokio::test]
async fn the_estimate_learns_from_settled_calls() {
    let harness = Setup::new(Dialect::OpenAi).start().await;
    let text = "lorem ipsum dolor sit amet consectetur ".repeat(40);
    for _ in 0..60 {
        harness.generate(&text, 10).await;
    }
    harness.quiet().await;
    let input = harness.fake().arrivals().pop().unwrap().input;
    harness.clock.advance(Span::from_hours(25));
    // The response does not come, so the estimate stays charged.
    harness.fake().set(tollgate_testkit::fakes::llm::Settings {
        troubles: vec![tollgate_testkit::fakes::llm::Trouble::new(
            tollgate_testkit::fakes::llm::Fault::Hangup,
            tollgate_testkit::fakes::llm::When::Every(1),
        )],
        ..Default::default()
    });
    harness.generate(&text, 10).await;
    harness.quiet().await;
    let estimate = harness.used("user", "caller", "tpm").await - 10;
    let (low, high) = (input * 97 / 100, input * 103 / 100);
    assert!((low..=high).contains(&estimate), "{estimate} is not near {input}");
}
