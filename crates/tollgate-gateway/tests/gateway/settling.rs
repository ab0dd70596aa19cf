//! Calls are settled to the usage that the provider reports.

use tollgate::{Limit, Policy, TokenBucket};
use tollgate_providers::Dialect;
use tollgate_testkit::fakes::llm::{Fault, Settings, Trouble, When};

use crate::support::Setup;

/// Input and output tokens of the last call, as the fake counted them.
fn counted(harness: &crate::support::Harness) -> (u64, u64) {
    let last = harness.fake().arrivals().pop().unwrap();
    (last.input, last.output)
}

/// Gemini's `tokens` are input only.
fn tokens(dialect: Dialect, (input, output): (u64, u64)) -> u64 {
    if dialect == Dialect::Gemini { input } else { input + output }
}

#[tokio::test]
async fn a_plain_call_is_settled_in_every_dialect() {
    for dialect in Dialect::ALL {
        let harness = Setup::new(dialect).start().await;
        let reply = harness.generate("one two three four", 1_000).await;
        assert_eq!(reply.status, 200, "{dialect}: {}", reply.text());
        harness.quiet().await;
        let used = tokens(dialect, counted(&harness));
        assert!(0 < used);
        for (policy, subject) in [("user", "caller"), ("provider", "up-1")] {
            assert_eq!(harness.used(policy, subject, "rpm").await, 1, "{dialect}");
            assert_eq!(harness.used(policy, subject, "tpm").await, used, "{dialect}");
        }
    }
}

#[tokio::test]
async fn a_stream_is_settled_in_every_dialect() {
    for dialect in Dialect::ALL {
        let harness = Setup::new(dialect).start().await;
        let reply = harness.stream("one two three four", 1_000).await;
        assert_eq!(reply.status, 200, "{dialect}: {}", reply.text());
        assert!(reply.text().contains("data: "), "{dialect}");
        harness.quiet().await;
        let used = tokens(dialect, counted(&harness));
        assert_eq!(harness.used("user", "caller", "tpm").await, used, "{dialect}");
    }
}

/// The same stream with and without the client's wish for usage.
#[tokio::test]
async fn usage_that_was_not_asked_for_is_removed() {
    let harness = Setup::new(Dialect::OpenAi).start().await;
    let mut body = harness.request("one two three", 100, true);
    let without = harness.post(&harness.path(true), &[], &body).await;
    assert!(!without.text().contains("usage"), "{}", without.text());
    harness.quiet().await;
    let used = harness.used("user", "caller", "tpm").await;
    assert_eq!(used, tokens(Dialect::OpenAi, counted(&harness)));
    body["stream_options"] = serde_json::json!({"include_usage": true});
    let with = harness.post(&harness.path(true), &[], &body).await;
    assert!(with.text().contains("\"usage\":{"), "{}", with.text());
}

#[tokio::test]
async fn an_upstream_may_be_left_without_injection() {
    let fake = Settings::default();
    let mut setup = Setup::new(Dialect::OpenAi).fake(fake);
    let probe = setup.start().await;
    let mut upstream = probe.options.upstreams[0].clone();
    upstream.inject_usage = false;
    setup = Setup::new(Dialect::OpenAi).options(|options| options.upstreams.push(upstream));
    let harness = setup.start().await;
    let body = harness.request("one two three", 100, true);
    let reply = harness.post(&harness.path(true), &[], &body).await;
    assert!(!reply.text().contains("usage"));
    harness.quiet().await;
    // Without usage the estimate stays.
    assert!(100 <= harness.used("user", "caller", "tpm").await);
}

#[tokio::test]
async fn a_stream_that_never_reports_usage_keeps_its_estimate() {
    for dialect in Dialect::ALL {
        let trouble = Trouble::new(Fault::UsageNever, When::Every(1));
        let fake = Settings { troubles: vec![trouble], ..Settings::default() };
        let harness = Setup::new(dialect).fake(fake).start().await;
        harness.stream("one two three", 500).await;
        harness.quiet().await;
        let used = harness.used("user", "caller", "tpm").await;
        assert!(if dialect == Dialect::Gemini { 0 < used } else { 500 < used }, "{dialect} {used}");
    }
}

/// A stream that ends too early has not reported its output.
#[tokio::test]
async fn a_truncated_stream_keeps_its_estimate() {
    for dialect in Dialect::ALL {
        let trouble = Trouble::new(Fault::Truncate { after: 4 }, When::Every(1));
        let fake = Settings { troubles: vec![trouble], ..Settings::default() };
        let output = Limit::new("out", "output_tokens", TokenBucket::per_minute(100_000));
        let policy = Policy::new("user", [output]).unwrap();
        let harness = Setup::new(dialect).fake(fake).policy(policy).start().await;
        harness.stream("one two three", 500).await;
        harness.quiet().await;
        assert_eq!(harness.used("user", "caller", "out").await, 500, "{dialect}");
        let events = harness.events.all();
        assert!(events.iter().any(|event| event.contains("UpstreamFailed")), "{events:?}");
    }
}
