//! What passes between client and provider, and what does not.

use tollgate_providers::Dialect;
use tollgate_server::keys::KeyHash;

use crate::support::{KEY, PROVIDER_KEY, Setup};

#[tokio::test]
async fn the_provider_sees_its_own_key_and_nothing_of_the_caller() {
    for dialect in Dialect::ALL {
        let harness = Setup::new(dialect).start().await;
        let headers = [
            ("cookie", "session=1"),
            ("openai-organization", "org-1"),
            ("openai-project", "proj-1"),
            ("x-goog-user-project", "proj-2"),
            ("x-forwarded-for", "10.0.0.1"),
            ("accept-encoding", "gzip, br"),
            ("connection", "close, x-hop"),
            ("x-hop", "1"),
            ("connection", "x-second-hop"),
            ("x-second-hop", "1"),
            ("te", "trailers"),
            ("x-tollgate-max-wait", "5s"),
            ("x-kept", "yes"),
        ];
        let body = harness.request("hello", 10, false);
        assert_eq!(harness.post(&harness.path(false), &headers, &body).await.status, 200);
        let arrival = harness.fake().arrivals().pop().unwrap();
        let header = dialect.key_header();
        assert_eq!(
            arrival.header(header.name),
            Some(&*format!("{}{PROVIDER_KEY}", header.prefix)),
            "{dialect}"
        );
        assert_eq!(arrival.header("accept-encoding"), Some("identity"));
        assert_eq!(arrival.header("x-kept"), Some("yes"));
        for name in [
            "cookie",
            "openai-organization",
            "openai-project",
            "x-goog-user-project",
            "x-forwarded-for",
            "connection",
            "x-hop",
            "x-second-hop",
            "te",
            "x-tollgate-max-wait",
        ] {
            assert_eq!(arrival.header(name), None, "{dialect} {name}");
        }
        assert!(!format!("{:?}", arrival.headers).contains(KEY), "{:?}", arrival.headers);
    }
}

/// Every byte of the body passes, in whatever way it is written.
#[tokio::test]
async fn a_body_passes_byte_for_byte() {
    let harness = Setup::new(Dialect::Anthropic).start().await;
    let body = harness.request("hello  \u{1F600} \\u00e9", 10, false);
    harness.post(&harness.path(false), &[], &body).await;
    let sent = body.to_string();
    let arrival = harness.fake().arrivals().pop().unwrap();
    assert_eq!(arrival.body_hash, tollgate_testkit::fakes::llm::hash_of(sent.as_bytes()));
}

/// SDKs send the key in four places.
#[tokio::test]
async fn a_key_is_accepted_wherever_an_sdk_sends_it_and_never_missing() {
    let harness = Setup::new(Dialect::Gemini).start().await;
    let body = harness.request("hello", 10, false);
    let path = harness.path(false);
    for name in ["x-api-key", "x-goog-api-key"] {
        assert_eq!(harness.post(&path, &[(name, KEY)], &body).await.status, 200, "{name}");
    }
    let none = [("authorization", "Basic none")];
    let with_query = format!("{path}?key={KEY}");
    assert_eq!(harness.post(&with_query, &none, &body).await.status, 200);
    for headers in [none, [("x-api-key", "tg_other")]] {
        let refused = harness.post(&path, &headers, &body).await;
        assert_eq!(refused.status, 401);
        assert_eq!(refused.json()["error"]["status"], "UNAUTHENTICATED");
    }
    assert_eq!(harness.fake().tally().calls, 3);
}

#[tokio::test]
async fn an_expired_key_is_refused() {
    let setup = Setup::new(Dialect::OpenAi).options(|options| {
        options.keys[0].expires = Some(tollgate::Timestamp::from_secs(1));
    });
    let harness = setup.start().await;
    let refused = harness.generate("hello", 10).await;
    assert_eq!(refused.status, 401);
    assert!(refused.text().contains("expired"), "{}", refused.text());
}

/// Neither keys nor prompts are in anything that may be printed.
#[tokio::test]
async fn secrets_and_prompts_are_not_shown() {
    let harness = Setup::new(Dialect::OpenAi).start().await;
    harness.generate("a very private prompt", 10).await;
    let refused = harness.post("/openai/v1/files?key=hidden", &[], &serde_json::json!({})).await;
    assert_eq!(refused.status, 404);
    let shown = [
        format!("{:?}", harness.gateway),
        format!("{:?}", harness.options),
        format!("{:?}", harness.gateway.snapshot()),
        format!("{:?}", harness.events.all()),
        refused.text().to_owned(),
    ];
    for text in shown {
        for secret in [KEY, PROVIDER_KEY, "private prompt", "hidden"] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
}

#[tokio::test]
async fn a_response_has_the_headers_of_the_provider_and_a_request_id() {
    let harness = Setup::new(Dialect::OpenAi).start().await;
    let reply = harness.generate("hello", 10).await;
    assert!(reply.header("content-type").unwrap().starts_with("application/json"));
    assert!(reply.header("x-request-id").is_some());
    assert_eq!(reply.header("connection"), None);
    let gemini = Setup::new(Dialect::Gemini).start().await;
    assert!(gemini.generate("hello", 10).await.header("x-request-id").is_some());
}

#[tokio::test]
async fn a_replaced_configuration_counts_from_the_next_call() {
    let harness = Setup::new(Dialect::OpenAi).start().await;
    assert_eq!(harness.generate("hello", 10).await.status, 200);
    harness.quiet().await;
    let mut options = harness.options.clone();
    options.keys[0].hash = KeyHash::from_key("tg_new");
    harness.gateway.replace(options.clone()).unwrap();
    assert_eq!(harness.generate("hello", 10).await.status, 401);
    assert_eq!(harness.gateway.snapshot().deployments[0].calls, 1, "counts are kept");
    options.routes[0].upstreams.clear();
    assert!(harness.gateway.replace(options).is_err());
}
