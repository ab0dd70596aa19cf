//! Everything that is held has a bound.

use std::sync::Arc;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tollgate::Span;
use tollgate_providers::Dialect;

use crate::support::{Harness, KEY, Setup, per_minute};

#[tokio::test]
async fn a_body_beyond_the_bound_is_refused_in_the_shape_of_the_dialect() {
    for dialect in Dialect::ALL {
        let setup = Setup::new(dialect).options(|options| options.body_bytes_max = 10_000);
        let harness = setup.start().await;
        let refused = harness.generate(&"x".repeat(20_000), 10).await;
        assert_eq!(refused.status, 413, "{dialect}");
        let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains("10000 bytes"), "{message}");
        assert_eq!(harness.generate(&"x".repeat(5_000), 10).await.status, 200);
        assert_eq!(harness.gateway.snapshot().held_bytes, 0);
    }
}

/// Sends `head`, and returns the response without moving the clock: nothing waits for a body that does not come.
async fn refused(harness: &Harness, more: &str) -> String {
    let mut stream = TcpStream::connect(&harness.address).await.unwrap();
    let head = format!("POST {} HTTP/1.1\r\nhost: x\r\n{more}\r\n", harness.path(false));
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut bytes = vec![0; 1_024];
    let length = stream.read(&mut bytes).await.unwrap();
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

/// A client that asks before it sends its body is answered at once, and is not asked for the body.
#[tokio::test]
async fn a_refusal_does_not_ask_for_the_body() {
    let harness = Setup::new(Dialect::OpenAi).start().await;
    let wrong = "authorization: Bearer no\r\nexpect: 100-continue\r\ncontent-length: 1000\r\n";
    assert!(refused(&harness, wrong).await.starts_with("HTTP/1.1 401 "));
    let huge = format!(
        "authorization: Bearer {KEY}\r\nexpect: 100-continue\r\ncontent-length: 99999999999\r\n"
    );
    assert!(refused(&harness, &huge).await.starts_with("HTTP/1.1 413 "));
}

/// Without that, the body is read only while it arrives.
#[tokio::test]
async fn a_refusal_waits_a_second_for_the_body() {
    let harness = Arc::new(Setup::new(Dialect::OpenAi).start().await);
    let waits = tokio::spawn({
        let harness = Arc::clone(&harness);
        async move { refused(&harness, "authorization: Bearer no\r\ncontent-length: 1000\r\n").await }
    });
    harness.until(|harness| harness.events.count("Refused") == 1).await;
    for _ in 0..200 {
        harness.clock.advance(Span::from_millis(10));
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }
    assert!(waits.await.unwrap().starts_with("HTTP/1.1 401 "));
}

#[tokio::test]
async fn a_full_queue_refuses_further_calls() {
    let setup = Setup::new(Dialect::OpenAi).policy(per_minute("user", 1, 1_000_000));
    let setup = setup.options(|options| options.queue_calls_max = 2);
    let harness = Arc::new(setup.start().await);
    harness.generate("hello", 10).await;
    harness.clock.advance(Span::from_secs(30));
    let first = harness.spawn("hello", 10);
    harness.waiting(1).await;
    let second = harness.spawn("hello", 10);
    harness.waiting(2).await;
    let refused = harness.generate("hello", 10).await;
    assert_eq!(refused.status, 503);
    assert_eq!(refused.header("retry-after"), Some("1"));
    harness.clock.advance(Span::from_secs(30));
    assert_eq!(first.await.unwrap().status, 200);
    second.abort();
    harness.waiting(0).await;
}

#[tokio::test]
async fn bodies_are_bounded_all_together() {
    let setup = Setup::new(Dialect::OpenAi).policy(per_minute("user", 1, 1_000_000));
    let setup = setup.options(|options| {
        options.body_bytes_max = 10_000;
        options.queue_bytes_max = 10_000;
    });
    let harness = Arc::new(setup.start().await);
    harness.generate("hello", 10).await;
    harness.clock.advance(Span::from_secs(30));
    let waits = harness.spawn(&"x".repeat(6_000), 10);
    harness.waiting(1).await;
    assert!(6_000 < harness.gateway.snapshot().held_bytes);
    assert_eq!(harness.generate(&"x".repeat(6_000), 10).await.status, 503);
    waits.abort();
    harness.waiting(0).await;
    harness.until(|harness| harness.gateway.snapshot().held_bytes == 0).await;
}

#[tokio::test]
async fn a_body_that_is_not_json_is_refused() {
    let harness = Setup::new(Dialect::OpenAi).start().await;
    let body = json!("just text");
    let refused = harness.post(&harness.path(false), &[], &body).await;
    assert_eq!(refused.status, 400);
    let packed = [("content-encoding", "gzip")];
    let refused =
        harness.post(&harness.path(false), &packed, &harness.request("x", 1, false)).await;
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("content-encoding"), "{}", refused.text());
    assert_eq!(harness.fake().tally().calls, 0);
}
