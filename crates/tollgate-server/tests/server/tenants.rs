//! Tenants: which keys may name one, by every protocol, and whose turn it is then.

use prost::Message as _;
use serde_json::{Value, json};
use tollgate::Span;
use tollgate_protocol::protobuf::tollgate::v1::AcquireRequest;
use tollgate_server::keys::{Key, KeyHash, Scopes};
use tonic::Code;

use crate::client::{Pending, Server};
use crate::grpc_keys::call_with;
use crate::resp::{Line, request};

fn key(name: &str, tenants: &[&str]) -> Key {
    let tenants = tenants.iter().map(|&tenant| tenant.to_owned()).collect();
    Key { tenants, ..Key::new(name, KeyHash::from_key(name), Scopes::all()) }
}

/// One key may name any tenant of team a, another none; without keys every caller may.
#[tokio::test]
async fn a_key_names_its_tenants_and_no_other() {
    let server = Server::guarded([key("team", &["team-a/*"]), key("none", &[])]).await;
    let rows = [
        ("team", "team-a/x", true, ""),
        ("team", "team-b/x", false, "its tenants are team-a/*"),
        ("none", "team-a/x", false, "it may name none; leave tenant out"),
    ];
    let mut line = Line::to(&server).await;
    for (who, tenant, is_allowed, expected) in rows {
        let ask = json!({ "policy": "trial", "subject": "u1", "tenant": tenant });
        let answer =
            server.send_as(&format!("Bearer {who}"), "POST", "/v1/acquire", &ask.to_string()).await;
        assert_eq!(answer.status, if is_allowed { 200 } else { 403 }, "{}", answer.text);
        let batch = json!({ "asks": [ask] }).to_string();
        let bearer = format!("Bearer {who}");
        let many = server.send_as(&bearer, "POST", "/v1/acquire/batch", &batch);
        assert_eq!(many.await.json()["answers"][0]["admitted"] == true, is_allowed);
        let message = AcquireRequest {
            policy: "trial".into(),
            subject: "u1".into(),
            tenant: Some(tenant.into()),
            ..AcquireRequest::default()
        };
        let method = "tollgate.v1.Gate/Acquire";
        let status = call_with(&server, method, Some(&bearer), &message.encode_to_vec()).await;
        line.says(&request(&["AUTH", who]), "+OK\r\n").await;
        let said = line.ask(&["TG.ACQUIRE", "trial", "u1", "TENANT", tenant]).await;
        if is_allowed {
            assert_eq!(status.code(), Code::Ok, "{status:?}");
            assert!(said.contains("admitted\r\n:1"), "{said}");
            continue;
        }
        assert_eq!(
            (&answer.json()["kind"], status.code()),
            (&json!("forbidden"), Code::PermissionDenied)
        );
        for text in [&*answer.text, status.message(), &*said] {
            assert!(
                text.contains("the key does not allow tenant") && text.contains(expected),
                "{text}"
            );
        }
        assert!(said.starts_with("-FORBIDDEN "), "{said}");
    }
    let charge = line.ask(&["TG.CHARGE", "trial", "u1", "TENANT", "team-a/x"]).await;
    assert!(charge.contains("leave WAIT, TENANT and BEHIND out"), "{charge}");
}

#[tokio::test]
async fn a_wrong_tenant_is_explained() {
    let server = Server::start().await;
    for (tenant, expected) in [("", "not 0"), (&*"t".repeat(257), "not 257")] {
        let ask = json!({ "policy": "trial", "subject": "u1", "tenant": tenant }).to_string();
        let answer = server.post("/v1/acquire", &ask).await;
        assert_eq!(answer.status, 400);
        assert!(answer.text.contains("a tenant must be 1 to 256 bytes long"), "{}", answer.text);
        assert!(answer.text.contains(expected), "{}", answer.text);
    }
}

/// An ask for two of five requests a minute, under the limit that all tenants share.
fn ask(tenant: &str, wait_ms: u64) -> Value {
    let costs = json!({ "requests": 2 });
    json!({ "policy": "gemini", "subject": "shared", "costs": costs, "tenant": tenant, "wait_ms": wait_ms })
}

async fn waits(server: &Server, tenant: &str, asks: usize) -> Pending {
    let pending = server.start_send("POST", "/v1/acquire", &ask(tenant, 200_000).to_string()).await;
    // An ask of a tenant that waits is behind all that wait.
    while server.post("/v1/acquire", &ask(tenant, 0).to_string()).await.json()["waiting_ahead"]
        != asks
    {
        tokio::task::yield_now().await;
    }
    pending
}

/// Tenant a waits twice before tenant b comes. The first room is for a, the second for b.
#[tokio::test]
async fn tenants_take_turns() {
    let server = Server::start().await;
    let take = |n: u64| {
        json!({ "policy": "gemini", "subject": "shared", "costs": { "requests": n } }).to_string()
    };
    let permit = server.permit(&take(2)).await;
    server.clock.advance(Span::from_secs(20));
    server.permit(&take(3)).await;
    let first = waits(&server, "a", 1).await;
    let second = waits(&server, "a", 2).await;
    let other = waits(&server, "b", 3).await;
    server.clock.advance(Span::from_secs(40));
    let admitted = first.answer().await;
    assert_eq!(admitted.status, 200, "{}", admitted.text);
    server.clock.advance(Span::from_secs(20));
    assert_eq!(other.answer().await.status, 200, "b has had less than a");
    // The permit of a named tenant is settled and released as any other.
    for permit in [admitted.json()["permit"].clone(), permit.into()] {
        let release = json!({ "permit": permit }).to_string();
        assert_eq!(server.post("/v1/release", &release).await.status, 200);
    }
    assert_eq!(second.answer().await.status, 200, "what the first gave back");
}

/// A weight by override is shown, and needs no other number.
#[tokio::test]
async fn an_override_may_be_only_a_weight() {
    let server = Server::start().await;
    let path = "/v1/policies/gemini/overrides/gold";
    let put = async |body: Value| server.send("PUT", path, &body.to_string()).await;
    let answer = put(json!({ "weight": 3 })).await;
    assert_eq!((answer.status, &answer.json()["weight"]), (200, &json!(3)), "{}", answer.text);
    let listed = server.get("/v1/policies").await.json();
    assert_eq!(listed["policies"][0]["overridden"][0]["weight"], 3, "{listed}");
    let policies = server.app.policies();
    let gemini = policies.get("gemini").unwrap();
    assert_eq!((gemini.for_subject("gold").weight(), gemini.weight()), (3, 1));
    for (body, expected) in [
        (json!({}), "unless weight, limit = 0 or unlimited is there"),
        (json!({ "weight": 0 }), "weight must be 1 to 1000"),
        (json!({ "weight": 1_001 }), "weight must be 1 to 1000"),
        (json!({ "weight": "3" }), "weight"),
    ] {
        let answer = put(body).await;
        assert!(answer.status == 400 && answer.text.contains(expected), "{}", answer.text);
    }
    assert_eq!(server.send("DELETE", path, "").await.status, 200);
    assert_eq!(server.app.policies().get("gemini").unwrap().for_subject("gold").weight(), 1);
}
