//! Overrides by API: in force at once, kept, seen by every server on the store, and never a free burst.

use std::sync::Arc;

use serde_json::{Value, json};
use tollgate::gate::BoxFuture;
use tollgate::overrides::{Document, MemoryOverrides, OverrideStore};
use tollgate::policy::Policies;
use tollgate::spec::{LimitSpec, OverrideSpec};
use tollgate::{Error, ErrorKind, Span};
use tollgate_server::bounds::{OVERRIDES_EVERY, OVERRIDES_MAX};
use tollgate_server::overrides::Overrides;

use crate::client::{Server, pass, policies};

const ALICE: &str = "/v1/policies/gemini/overrides/alice";

fn rpm(limit: u64) -> String {
    json!({ "limits": [{ "name": "rpm", "limit": limit }] }).to_string()
}

async fn admitted(server: &Server, subject: &str, asks: usize) -> usize {
    let body = json!({ "policy": "gemini", "subject": subject }).to_string();
    let mut admitted = 0;
    for _ in 0..asks {
        admitted += usize::from(server.post("/v1/acquire", &body).await.status == 200);
    }
    admitted
}

async fn listed(server: &Server) -> Value {
    server.get("/v1/policies").await.json()["policies"][0]["overridden"].clone()
}

/// What was used stays used: with 5 of 5 gone, 8 leave 3, and 2 leave none.
#[tokio::test]
async fn an_override_is_in_force_at_once_without_a_free_burst() {
    let server = Server::start().await;
    assert_eq!(admitted(&server, "alice", 9).await, 5);
    let answer = server.send("PUT", ALICE, &rpm(8)).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let body = answer.json();
    assert_eq!(body["limits"][0]["limit"], 8);
    assert_eq!((&body["subject"], &body["source"]), (&json!("alice"), &json!("api")));
    assert_eq!(admitted(&server, "alice", 9).await, 3);
    assert_eq!(admitted(&server, "bob", 9).await, 5, "others keep their numbers");
    assert_eq!(server.send("PUT", ALICE, &rpm(2)).await.status, 200);
    assert_eq!(admitted(&server, "alice", 9).await, 0);

    let shown = listed(&server).await;
    assert_eq!(shown.as_array().unwrap().len(), 1);
    assert_eq!(shown[0]["limits"][0]["limit"], 2);
    assert_eq!(server.send("DELETE", ALICE, "").await.json(), json!({ "changed": true }));
    assert_eq!(server.send("DELETE", ALICE, "").await.json(), json!({ "changed": false }));
    assert_eq!(listed(&server).await, json!([]));
    server.clock.advance(Span::from_mins(1));
    assert_eq!(admitted(&server, "alice", 9).await, 5);
}

#[tokio::test]
async fn bad_overrides_say_what_is_wrong_and_change_nothing() {
    let server = Server::start().await;
    assert_eq!(server.send("PUT", ALICE, &rpm(7)).await.status, 200);
    let before = listed(&server).await;
    let long = format!("/v1/policies/gemini/overrides/{}", "x".repeat(257));
    let good = rpm(9);
    let rows = [
        ("/v1/policies/gemini/overrides/%ff", good.as_str(), 400, "the path is not UTF-8"),
        ("/v1/policies/gemnii/overrides/alice", &good, 404, "did you mean gemini?"),
        (&long, &good, 400, "must be 1 to 256 bytes long, not 257"),
        (ALICE, "{}", 400, "at least one limit"),
        (ALICE, r#"{"limits": [["rpm"]]}"#, 400, "expected an object"),
        (ALICE, r#"{"limits": []}"#, 400, "at least one limit"),
        (ALICE, r#"{"limits": [{"name": "rpx", "limit": 9}]}"#, 400, "did you mean rpm?"),
        (
            ALICE,
            r#"{"limits": [{"name": "rpm", "limit": 9007199254740992}]}"#,
            400,
            "limit \"rpm\"",
        ),
        (ALICE, r#"{"limits": [{"name": "rpm", "capacity": 9}]}"#, 400, "capacity"),
        (ALICE, r#"{"limits": [{"name": "rpm", "unit": "tokens"}]}"#, 400, "keeps the unit"),
        (ALICE, r#"{"limit": 9}"#, 400, "limit is 0, which refuses everything, or absent"),
    ];
    for (path, body, status, what) in rows {
        let answer = server.send("PUT", path, body).await;
        assert_eq!(answer.status, status, "{path} {body}: {}", answer.text);
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(what), "{path} {body}: {detail}");
    }
    let answer = server.send("DELETE", "/v1/policies/gemnii/overrides/alice", "").await;
    assert_eq!(answer.status, 404, "{}", answer.text);
    assert_eq!(listed(&server).await, before);
}

/// A subject may be anything that a path can carry.
#[tokio::test]
async fn a_subject_is_percent_encoded() {
    let server = Server::start().await;
    let path = "/v1/policies/gemini/overrides/team%2Fa%20b%3F%F0%9F%9A%A7";
    assert_eq!(server.send("PUT", path, &rpm(1)).await.status, 200);
    assert_eq!(listed(&server).await[0]["subject"], "team/a b?\u{1f6a7}");
    assert_eq!(admitted(&server, "team/a b?\u{1f6a7}", 3).await, 1);
    assert_eq!(server.send("DELETE", path, "").await.json(), json!({ "changed": true }));
}

/// Both servers are on one store. The second sees a change when it looks next, and has it when it starts.
#[tokio::test]
async fn every_server_on_a_store_sees_an_override_within_the_bound() {
    let store: Arc<dyn OverrideStore> = Arc::new(MemoryOverrides::default());
    let on_store = || Server::serving(|app| app.overrides(Arc::clone(&store)));
    let (one, other) = (on_store().await, on_store().await);
    assert_eq!(one.send("PUT", ALICE, &rpm(7)).await.status, 200);
    pass(&other.clock, OVERRIDES_EVERY).await;
    while listed(&other).await == json!([]) {
        tokio::task::yield_now().await;
    }
    assert_eq!(admitted(&other, "alice", 9).await, 7);

    let late = on_store().await;
    late.app.refresh_overrides().await.unwrap();
    assert_eq!(admitted(&late, "alice", 9).await, 7);
    // It changes what the others made, and loses nothing of it.
    let bob = "/v1/policies/gemini/overrides/bob";
    assert_eq!(late.send("PUT", bob, &rpm(1)).await.status, 200);
    one.app.refresh_overrides().await.unwrap();
    assert_eq!(listed(&one).await.as_array().unwrap().len(), 2);
}

/// A store that does not answer.
#[derive(Debug)]
struct Away;

impl OverrideStore for Away {
    fn read(&self, _: u64) -> BoxFuture<'_, Result<Option<Document>, Error>> {
        Box::pin(async { Err(Error::new(ErrorKind::Unavailable, "the store is away")) })
    }

    fn replace<'a>(&'a self, _: u64, _: &'a Document) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async { Err(Error::new(ErrorKind::Unavailable, "the store is away")) })
    }
}

#[tokio::test]
async fn without_its_store_an_override_is_refused_and_nothing_changes() {
    let server = Server::serving(|app| app.overrides(Arc::new(Away))).await;
    assert_eq!(server.send("PUT", ALICE, &rpm(7)).await.status, 503);
    assert_eq!(server.send("DELETE", ALICE, "").await.status, 503);
    assert_eq!(listed(&server).await, json!([]));
    assert_eq!(admitted(&server, "alice", 9).await, 5);
}

/// A file without the limit leaves the override without effect, and shows why; one with it puts it in force again.
#[tokio::test]
async fn an_override_that_no_longer_fits_is_shown_and_kept() {
    let server = Server::start().await;
    assert_eq!(server.send("PUT", ALICE, &rpm(7)).await.status, 200);
    let file = policies();
    let other = file.get("gemini").unwrap();
    let fewer = tollgate::Policy::new("gemini", other.limits().skip(1).cloned()).unwrap();
    server.app.replace_policies(Policies::new([fewer]).unwrap()).unwrap();
    let shown = listed(&server).await;
    let why = shown[0]["unfit"].as_str().unwrap();
    assert!(why.contains("the policy has no such limit"), "{why}");
    server.app.replace_policies(file).unwrap();
    assert_eq!(listed(&server).await[0]["unfit"], Value::Null);
    assert_eq!(admitted(&server, "alice", 9).await, 7);
    // A policy that is gone has no list, but its overrides can be removed.
    server.app.replace_policies(Policies::default()).unwrap();
    assert_eq!(server.send("DELETE", ALICE, "").await.json(), json!({ "changed": true }));
}

#[test]
fn overrides_are_bounded() {
    let file = policies();
    let policy = file.get("gemini").unwrap();
    let of = |subject: usize| OverrideSpec {
        subject: subject.to_string(),
        limits: vec![LimitSpec { name: "rpm".to_owned(), limit: Some(9), ..LimitSpec::default() }],
        ..OverrideSpec::default()
    };
    let mut overrides = Overrides::default();
    for subject in 0..OVERRIDES_MAX {
        assert!(overrides.put(policy, &of(subject)).unwrap());
    }
    let error = overrides.put(policy, &of(OVERRIDES_MAX)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("1000 overrides already"), "{error}");
    assert!(!overrides.put(policy, &of(0)).unwrap(), "what is there may be put again");
    let (in_force, unfit) = overrides.apply(&file, &|_| Ok(()));
    assert_eq!((in_force.get("gemini").unwrap().overrides().len(), unfit.len()), (1_000, 0));
}
