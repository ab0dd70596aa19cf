//! What refusals say of their wait: estimates for slots, and asks that wait ahead.

use serde_json::json;
use tollgate::Span;
use tollgate::internal::SLOT_POLL_MAX;
use tollgate_protocol::protobuf::instant;

use crate::client::{START, Server};
use crate::forward_auth::ask_of;
use crate::grpc::{ask, denied};
use crate::resp::Line;

const JOB: &str = r#"{"policy": "jobs", "subject": "p7"}"#;

/// Holds the slot of `jobs` for 4 s and takes it again, so that the next refusal estimates 4 s.
async fn observe(server: &Server) {
    let permit = server.permit(JOB).await;
    server.clock.advance(Span::from_secs(4));
    server.post("/v1/release", &json!({ "permit": permit }).to_string()).await;
    server.permit(JOB).await;
}

/// Slots that were held for 4 s are promised after 4 s, and the minute of their expiry is the bound.
#[tokio::test]
async fn the_wait_for_a_slot_is_estimated_over_http() {
    let server = Server::serving(|app| app.legacy_fields(true)).await;
    observe(&server).await;
    let answer = server.post("/v1/acquire", JOB).await;
    assert_eq!((answer.status, answer.field("retry-after")), (429, Some("4")));
    assert_eq!(answer.field("ratelimit"), Some(r#""slots";r=0;t=4"#));
    assert_eq!(answer.field("x-ratelimit-reset"), Some("4"));
    let body = answer.json();
    assert_eq!(
        body["detail"],
        "limit \"slots\" has no room for 1 request now; ask again in about 4s (estimated; at the latest 1m)"
    );
    assert_eq!((&body["retry_after_ms"], &body["estimated"]), (&json!(4_000), &json!(true)));
    assert_eq!(
        (&body["reset_at"], &body["expires_at"]),
        (&json!("2026-11-15T05:45:08Z"), &json!("2026-11-15T05:46:04Z"))
    );
    assert_eq!(
        body["limits"][0]["reset_at"], body["expires_at"],
        "a standing says what is certain"
    );
    assert_eq!(body.get("waiting_ahead"), None);
    let audited = server.get("/v1/audit?outcome=denied").await.json();
    assert_eq!(audited["records"][0]["retry_after_ms"], 4_000);

    let asks = json!({ "asks": [{ "policy": "jobs", "subject": "p7" }] });
    let batch = server.post("/v1/acquire/batch", &asks.to_string()).await.json();
    assert_eq!(batch["answers"][0]["estimated"], true);
    let target = "/v1/forward-auth?policy=jobs&subject=p7";
    let refused = ask_of(&server, target, "X-Forwarded-Host: a\r\n").await;
    assert_eq!((refused.status, refused.field("retry-after")), (429, Some("4")));
}

#[tokio::test]
async fn the_wait_for_a_slot_is_estimated_over_grpc() {
    let server = Server::start().await;
    observe(&server).await;
    let denial = denied(&mut server.gate(), ask("jobs", &[])).await;
    assert!(denial.estimated);
    assert_eq!((denial.retry_after_ms, denial.waiting_ahead), (Some(4_000), 0));
    let [reset_at, expires_at] = [denial.reset_at, denial.expires_at].map(Option::unwrap);
    assert_eq!(instant(reset_at).unwrap(), START + Span::from_secs(8));
    assert_eq!(instant(expires_at).unwrap(), START + Span::from_secs(64));
    assert!(denial.detail.ends_with("about 4s (estimated; at the latest 1m)"), "{}", denial.detail);
    for _ in 0..5 {
        server.permit(r#"{"policy": "gemini", "subject": "p7"}"#).await;
    }
    let exact = denied(&mut server.gate(), ask("gemini", &[])).await;
    assert_eq!((exact.estimated, exact.expires_at), (false, None));
}

/// Behind an ask that waits for all five requests there is no room for one, although four are left.
#[tokio::test]
async fn an_ask_behind_a_larger_one_says_that_others_wait_ahead() {
    let server = Server::start().await;
    let one = r#"{"policy": "gemini", "subject": "p7"}"#;
    let five =
        r#"{"policy": "gemini", "subject": "p7", "costs": {"requests": 5}, "wait_ms": 60000}"#;
    server.permit(one).await;
    let _waiting = server.start_send("POST", "/v1/acquire", five).await;
    while server.clock.next_alarm().is_none() {
        tokio::task::yield_now().await;
    }
    let answer = server.post("/v1/acquire", one).await;
    assert_eq!((answer.status, answer.field("retry-after")), (429, Some("120")));
    let body = answer.json();
    assert_eq!(body["detail"], "1 ask waits ahead for limit \"rpm\"; ask again in 2m");
    assert_eq!((&body["waiting_ahead"], &body["limits"][0]["remaining"]), (&json!(1), &json!(4)));
    assert_eq!(body.get("estimated"), None, "what those ahead take comes back by time alone");

    let large = r#"{"policy": "gemini", "subject": "p7", "costs": {"requests": 5}}"#;
    assert_eq!(
        server.post("/v1/acquire", large).await.json()["detail"],
        "limit \"rpm\" has no room for 5 requests now, and 1 ask waits ahead; ask again in 2m"
    );
    let denial = denied(&mut server.gate(), ask("gemini", &[])).await;
    assert_eq!((denial.waiting_ahead, denial.retry_after_ms), (1, Some(120_000)));
    let mut line = Line::to(&server).await;
    let refused = line.ask(&["TG.ACQUIRE", "gemini", "p7"]).await;
    assert!(refused.contains("$13\r\nwaiting_ahead\r\n:1\r\n"), "{refused:?}");
}

/// For slots both are said: who waits ahead takes a slot, and holds it.
#[tokio::test]
async fn the_estimate_counts_those_who_wait_ahead() {
    let server = Server::start().await;
    observe(&server).await;
    let patient = r#"{"policy": "jobs", "subject": "p7", "wait_ms": 60000}"#;
    let _waiting = server.start_send("POST", "/v1/acquire", patient).await;
    while server.clock.next_alarm() != Some(START + Span::from_secs(4) + SLOT_POLL_MAX) {
        tokio::task::yield_now().await;
    }
    let body = server.post("/v1/acquire", JOB).await.json();
    assert_eq!((&body["retry_after_ms"], &body["waiting_ahead"]), (&json!(8_000), &json!(1)));
    assert_eq!(
        body["detail"],
        "limit \"slots\" has no room for 1 request now, and 1 ask waits ahead; \
         ask again in about 8s (estimated; at the latest 2m)"
    );
}
