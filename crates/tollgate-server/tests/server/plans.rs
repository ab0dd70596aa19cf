//! Patterns, blocked and unlimited subjects, plans, claimed plans and policies by API, over HTTP on a store in memory.

use std::sync::Arc;

use serde_json::{Value, json};
use tollgate::overrides::{MemoryOverrides, OverrideStore};
use tollgate::policy::Policies;
use tollgate::spec::{PlanSpec, PolicySpec, with_plans};
use tollgate_server::bounds::OVERRIDES_EVERY;

use crate::client::{Server, pass};

fn policies() -> Policies {
    let policy: PolicySpec = serde_json::from_value(json!({
        "name": "api",
        "limits": [{ "name": "burst", "unit": "requests", "rule": "rolling-window", "limit": 2, "window": "1h" }],
        "overrides": [
            { "subject": "eu-*", "limits": [{ "name": "burst", "limit": 3 }] },
            { "subject": "eu-west-1", "limits": [{ "name": "burst", "limit": 5 }] },
            { "subject": "mallory*", "limit": 0 },
        ],
    }))
    .unwrap();
    let plans: Vec<PlanSpec> = serde_json::from_value(json!([
        { "name": "pro", "subjects": ["acme", "eu-west-*"], "limits": { "api": { "burst": 4 } } },
        { "name": "internal", "subjects": ["ops/*"], "unlimited": true },
    ]))
    .unwrap();
    with_plans(&Policies::new([policy.build().unwrap()]).unwrap(), &plans).unwrap()
}

async fn admitted(server: &Server, policy: &str, subject: &str) -> usize {
    let body = json!({ "policy": policy, "subject": subject }).to_string();
    let mut admitted = 0;
    for _ in 0..9 {
        admitted += usize::from(server.post("/v1/acquire", &body).await.status == 200);
    }
    admitted
}

async fn server(store: &Arc<dyn OverrideStore>) -> Server {
    let server = Server::serving(|app| app.overrides(Arc::clone(store))).await;
    server.app.replace_policies(policies()).unwrap();
    server
}

#[tokio::test]
async fn the_most_specific_of_overrides_and_plans_decides() {
    let store: Arc<dyn OverrideStore> = Arc::new(MemoryOverrides::default());
    let server = server(&store).await;
    let rows = [
        ("other", 2),
        ("eu-1", 3),
        ("eu-west-1", 5),
        ("eu-west-2", 4),
        ("acme", 4),
        ("mallory-7", 0),
        ("ops/1", 9),
    ];
    for (subject, expected) in rows {
        assert_eq!(admitted(&server, "api", subject).await, expected, "{subject}");
    }
    let blocked = json!({ "policy": "api", "subject": "mallory" }).to_string();
    let blocked = server.post("/v1/acquire", &blocked).await;
    assert_eq!((blocked.status, &blocked.json()["never"]), (429, &json!(true)));
    assert_eq!(blocked.field("retry-after"), None);
    let free = json!({ "policy": "api", "subject": "ops/1" }).to_string();
    let free = server.post("/v1/acquire", &free).await;
    assert_eq!(
        (free.status, free.field("ratelimit"), &free.json()["limits"]),
        (200, None, &json!([]))
    );
    let stats = server.get("/v1/stats").await.json();
    assert_eq!(stats["policies"][0]["admitted"], 2 + 3 + 5 + 4 + 4 + 9 + 1, "all are counted");
    assert_eq!(stats["policies"][0]["shadow_denied"], 0);
}

#[tokio::test]
async fn subjects_move_between_plans_by_api_and_every_server_sees_it() {
    let store: Arc<dyn OverrideStore> = Arc::new(MemoryOverrides::default());
    let (one, other) = (server(&store).await, server(&store).await);
    let put = async |subject: &str, plan: &str| {
        let path = format!("/v1/subjects/{subject}/plan");
        one.send("PUT", &path, &json!({ "plan": plan }).to_string()).await
    };
    assert_eq!(put("asia-*", "pro").await.json(), json!({ "subject": "asia-*", "plan": "pro" }));
    assert_eq!(admitted(&one, "api", "asia-1").await, 4);
    pass(&other.clock, OVERRIDES_EVERY).await;
    let assigned = async || other.get("/v1/policies").await.json()["plans"][0]["assigned"].clone();
    while assigned().await == json!([]) {
        tokio::task::yield_now().await;
    }
    assert_eq!(admitted(&other, "api", "asia-1").await, 4);
    let unknown = put("x", "prx").await;
    assert_eq!(unknown.status, 404, "{}", unknown.text);
    assert!(unknown.text.contains("did you mean pro?"), "{}", unknown.text);
    let tie = put("eu-west-**", "pro").await;
    assert!(tie.status == 400 && tie.text.contains("equally specific"), "{}", tie.text);
    let removed = one.send("DELETE", "/v1/subjects/asia-*/plan", "").await;
    assert_eq!(removed.json(), json!({ "changed": true }));
    assert_eq!(admitted(&one, "api", "asia-1").await, 0, "4 of 2 are used");
    // A file without the plan leaves the subject without it.
    assert_eq!(put("asia-*", "pro").await.status, 200);
    one.app.replace_policies(Policies::new(policies().iter().cloned()).unwrap()).unwrap();
    assert_eq!(one.get("/v1/policies").await.json()["plans"], Value::Null);
}

#[tokio::test]
async fn policies_are_made_by_api_with_the_checks_of_the_file() {
    let store: Arc<dyn OverrideStore> = Arc::new(MemoryOverrides::default());
    let (one, other) = (server(&store).await, server(&store).await);
    let put = async |name: &str, limit: u64| {
        let limits = json!([{
            "name": "rpm", "unit": "requests", "rule": "rolling-window", "limit": limit, "window": "1m",
        }]);
        let path = format!("/v1/policies/{name}");
        one.send("PUT", &path, &json!({ "limits": limits }).to_string()).await
    };
    let made = put("extra", 3).await;
    assert_eq!((made.status, &made.json()["source"]), (200, &json!("api")), "{}", made.text);
    assert_eq!(admitted(&one, "extra", "alice").await, 3);
    assert_eq!(admitted(&one, "extra", "ops/1").await, 9, "plans of the file apply");
    let path = "/v1/policies/extra/overrides/alice";
    assert_eq!(one.send("PUT", path, &json!({ "limit": 0 }).to_string()).await.status, 200);
    assert_eq!(admitted(&one, "extra", "alice").await, 0);
    other.app.refresh_overrides().await.unwrap();
    assert_eq!(admitted(&other, "extra", "bob").await, 3);
    for (name, limit, status, expected) in [
        ("api", 3, 409, "is in the configuration"),
        ("cl.throttle", 3, 400, "reserved"),
        ("extra", 0, 400, "limit 0 must be between 1 and"),
    ] {
        let refused = put(name, limit).await;
        assert!(refused.status == status && refused.text.contains(expected), "{}", refused.text);
    }
    assert_eq!(one.send("DELETE", "/v1/policies/api", "").await.status, 409);
    assert_eq!(
        one.send("DELETE", "/v1/policies/extra", "").await.json(),
        json!({ "changed": true })
    );
    assert_eq!(
        one.send("DELETE", "/v1/policies/extra", "").await.json(),
        json!({ "changed": false })
    );
    let gone = json!({ "policy": "extra", "subject": "alice" }).to_string();
    assert_eq!(one.post("/v1/acquire", &gone).await.status, 404);
}
