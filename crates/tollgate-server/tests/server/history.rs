//! The history: what was decided, what a subject used, and who may read it.

use serde_json::json;
use tollgate::Span;
use tollgate_server::App;
use tollgate_server::keys::{Key, KeyHash, Scope, Scopes};

use crate::client::{START, Server};

const STEP: Span = Span::from_secs(10);
const ASK: &str = r#"{"policy": "jobs", "subject": "p7"}"#;

/// Advances the clock by a bucket, and waits until the server took its sample.
async fn next_bucket(server: &Server) {
    server.clock.advance(STEP);
    let next = tollgate::Clock::now(&server.clock) + STEP;
    while server.clock.next_alarm() != Some(next) {
        tokio::task::yield_now().await;
    }
}

/// Nobody reads it meanwhile, and it is there.
#[tokio::test]
async fn the_history_is_kept_while_nobody_reads_it() {
    let server = Server::serving(App::history).await;
    while server.clock.next_alarm().is_none() {
        tokio::task::yield_now().await;
    }
    for asks in [2, 0, 3] {
        for _ in 0..asks {
            server.post("/v1/acquire", ASK).await;
        }
        next_bucket(&server).await;
    }
    let history = server.get("/v1/history").await.json();
    let jobs = &history["policies"][0];
    assert_eq!((&history["start"], &history["buckets"]), (&json!(START.to_string()), &json!(4)));
    assert_eq!(history["broker"], server.get("/v1/stats").await.json()["broker"]);
    // One slot: the first ask holds it.
    assert_eq!((&jobs["name"], &jobs["admitted"]), (&json!("jobs"), &json!([1, 0, 0, 0])));
    assert_eq!(jobs["refused"], json!([1, 0, 3, 0]));
    assert_eq!(jobs["limits"], json!([{ "name": "slots", "refused": [1, 0, 3, 0] }]));
    let since = server.get("/v1/history?policy=jobs&since=10s&step=10s").await.json();
    assert_eq!((&since["buckets"], &since["policies"][0]["refused"]), (&json!(2), &json!([3, 0])));
    let coarse = server.get("/v1/history?step=5m").await.json();
    assert_eq!((&coarse["buckets"], &coarse["step_secs"]), (&json!(1), &json!(300)));
    assert_eq!(coarse["policies"][0]["refused"], json!([4]));
    assert_eq!(server.get("/v1/history?policy=none").await.json()["policies"], json!([]));
}

#[tokio::test]
async fn asks_that_wait_are_in_the_history() {
    let server = Server::serving(App::history).await;
    server.permit(ASK).await;
    let wait = json!({ "policy": "jobs", "subject": "p7", "wait_ms": 60_000 }).to_string();
    let pending = server.start_send("POST", "/v1/acquire", &wait).await;
    while server.get("/v1/queues").await.json()["waiting"] != 1 {}
    let history = server.get("/v1/history").await.json();
    assert_eq!(history["policies"][0]["waiting"], json!([1]));
    drop(pending);
}

#[tokio::test]
async fn a_subject_that_was_looked_at_is_watched() {
    let server = Server::serving(App::history).await;
    let target = "/v1/history/subject?policy=gemini&subject=p7";
    let before = server.get(target).await.json();
    assert_eq!((&before["buckets"], &before["limits"][0]["used"]), (&json!(1), &json!([0])));
    for _ in 0..3 {
        server
            .post("/v1/acquire", r#"{"policy": "gemini", "subject": "p7", "costs": {"tokens": 5}}"#)
            .await;
    }
    next_bucket(&server).await;
    next_bucket(&server).await;
    let after = server.get(target).await.json();
    assert_eq!(after["limits"][0]["used"], json!([0, 3, 3]));
    assert_eq!(after["limits"][1]["name"], "tpm");
    assert_eq!(after["limits"][1]["used"], json!([0, 15, 15]));
}

#[tokio::test]
async fn bad_queries_are_refused_and_watch_nothing() {
    let server = Server::start().await;
    for (target, words) in [
        ("/v1/history?step=1s", r#"unknown step "1s"; use "10s" or "5m""#),
        ("/v1/history?since=yesterday", "neither a time"),
        ("/v1/history?policy=", "policy must be 1 to 64 bytes long"),
        ("/v1/history?polcy=api", "unknown field"),
        ("/v1/history/subject?policy=gemini", "subject"),
    ] {
        let answer = server.get(target).await;
        assert_eq!(answer.status, 400, "{target}: {}", answer.text);
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(words), "{target}: {detail}");
    }
    assert_eq!(server.get("/v1/history/subject?policy=none&subject=p7").await.status, 404);
}

/// A key for one policy reads the history of its subjects, and not that of all policies.
#[tokio::test]
async fn the_history_needs_a_key_that_may_inspect() {
    let key = |name: &str, scopes: &[Scope]| {
        Key::new(name, KeyHash::from_key(name), scopes.iter().copied().collect())
    };
    let bound = Key { policies: vec!["gemini".to_owned()], ..key("bound", &[Scope::Inspect]) };
    let keys = [
        key("worker", &[Scope::Acquire]),
        bound,
        Key::new("all", KeyHash::from_key("all"), Scopes::all()),
    ];
    let server = Server::guarded(keys).await;
    let subject = |policy: &str| format!("/v1/history/subject?policy={policy}&subject=p7");
    for (key, target, status) in [
        ("worker", "/v1/history".to_owned(), 403),
        ("worker", subject("gemini"), 403),
        ("worker", "/v1/access".to_owned(), 403),
        ("bound", "/v1/history".to_owned(), 403),
        ("bound", subject("gemini"), 200),
        ("bound", subject("jobs"), 403),
        ("all", "/v1/history".to_owned(), 200),
    ] {
        let answer = server.send_as(&format!("Bearer {key}"), "GET", &target, "").await;
        assert_eq!(answer.status, status, "{key} {target}: {}", answer.text);
    }
}

/// A browser sends a password on behalf of any page, so a password may only inspect; the answer says so.
#[tokio::test]
async fn a_caller_learns_what_it_may_do() {
    let server = Server::start().await;
    let all = json!(["acquire", "inspect", "administer"]);
    assert_eq!(server.get("/v1/access").await.json(), json!({ "key": null, "scopes": all }));
    let server = Server::guarded([Key::new("all", KeyHash::from_key("all"), Scopes::all())]).await;
    // "me:all" in base64.
    for (who, scopes) in [("Bearer all", all), ("Basic bWU6YWxs", json!(["inspect"]))] {
        let answer = server.send_as(who, "GET", "/v1/access", "").await;
        assert_eq!(answer.json(), json!({ "key": "all", "scopes": scopes }), "{who}");
    }
}
