//! The OpenAPI document: held against the router, against real answers, and called by schemathesis.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use tollgate_server::keys::{Key, KeyHash, Scopes};
use tollgate_testkit::servers::{schemathesis, violations};

use crate::client::{Answer, Server};
use crate::forward_auth::ask_of;
use crate::translations::{COMPLETED, MemoryJobs};

async fn document(server: &Server) -> Value {
    let answer = server.get("/openapi.json").await;
    assert_eq!((answer.status, answer.field("content-type")), (200, Some("application/json")));
    answer.json()
}

/// Which methods a path takes is what the server says in `Allow`, and what the document says.
#[tokio::test]
async fn each_path_takes_the_methods_that_are_described() {
    let server = Server::start().await;
    let document = document(&server).await;
    assert_eq!(document["openapi"], "3.1.0");
    for (path, calls) in document["paths"].as_object().unwrap() {
        let answer = server.send("BREW", path, "").await;
        assert_eq!(answer.status, 405, "{path}");
        let allowed = answer.fields("allow").flat_map(|methods| methods.split(','));
        // Every GET endpoint answers HEAD, without the body.
        let allowed: BTreeSet<String> =
            allowed.map(str::to_lowercase).filter(|method| method != "head").collect();
        let described: BTreeSet<String> = calls.as_object().unwrap().keys().cloned().collect();
        assert_eq!(allowed, described, "{path}");
    }
}

/// The document is for authors of clients: it needs no key, and says which calls do.
#[tokio::test]
async fn the_document_needs_no_key_and_says_what_does() {
    let server = crate::keys::guarded().await;
    let document = document(&server).await;
    for (path, calls) in document["paths"].as_object().unwrap() {
        for (method, call) in calls.as_object().unwrap() {
            let answer = server.send(&method.to_uppercase(), path, "").await;
            let is_open = call["security"] == json!([]);
            assert_eq!(answer.status == 401, !is_open, "{method} {path}");
        }
    }
}

/// Answers to be held against the document.
struct Tour {
    server: Server,
    seen: Vec<Value>,
}

impl Tour {
    /// Makes a call that must be answered with `status`, and remembers the answer.
    async fn call(&mut self, status: u16, method: &str, target: &str, body: &Value) -> Value {
        let text = if body.is_null() { String::new() } else { body.to_string() };
        let answer = self.server.send(&method.to_uppercase(), target, &text).await;
        self.remember(status, method, target, &answer)
    }

    fn remember(&mut self, status: u16, method: &str, target: &str, answer: &Answer) -> Value {
        assert_eq!(answer.status, status, "{method} {target}: {}", answer.text);
        let path = match target.split('?').next().unwrap() {
            named if named.contains("/overrides/") => "/v1/policies/{name}/overrides/{subject}",
            named if named.starts_with("/v1/policies/") => "/v1/policies/{name}",
            named if named.ends_with("/plan") => "/v1/subjects/{subject}/plan",
            named if named.ends_with("/document") => "/v1/translations/{id}/document",
            named if named.ends_with("/cancel") => "/v1/translations/{id}/cancel",
            named if named.starts_with("/v1/translations/") => "/v1/translations/{id}",
            path => path,
        };
        let usual = [
            "content-type",
            "content-length",
            "cache-control",
            "connection",
            "date",
            "x-request-id",
        ];
        let fields: Vec<&str> = answer.names().filter(|name| !usual.contains(name)).collect();
        let media_type = answer.field("content-type");
        let body = match media_type {
            Some("application/octet-stream") => json!(answer.text),
            _ => answer.json(),
        };
        self.seen.push(json!({
            "path": path, "method": method, "status": status, "fields": fields,
            "media_type": media_type, "body": body,
        }));
        body
    }
}

/// R002.4: every call is made, in every way that ends differently; what comes back is what the document says.
#[tokio::test]
async fn real_answers_are_as_described() {
    let jobs = Arc::new(MemoryJobs::default());
    let server = Server::serving(|app| app.legacy_fields(true).translations(jobs)).await;
    let document = document(&server).await;
    let mut tour = Tour { server, seen: Vec::new() };
    let ask = |id: &str, tokens: u64| json!({ "policy": "gemini", "subject": "p7", "costs": { "tokens": tokens }, "id": id });
    let first = tour.call(200, "post", "/v1/acquire", &ask("a", 1)).await;
    tour.call(409, "post", "/v1/acquire", &ask("a", 2)).await;
    tour.call(429, "post", "/v1/acquire", &ask("b", 250_001)).await;
    tour.call(429, "post", "/v1/acquire", &ask("c", 250_000)).await;
    tour.call(400, "post", "/v1/acquire", &json!({})).await;
    let charges = json!({ "charges": [
        { "policy": "gemini", "subject": "u1", "costs": { "tokens": 5 } },
        { "policy": "jobs", "subject": "t7" },
        { "policy": "trial", "subject": "t7" },
    ] });
    let joint = tour.call(200, "post", "/v1/acquire", &charges).await;
    tour.call(429, "post", "/v1/acquire", &charges).await;
    let own = json!([{ "charge": 0, "actual": { "tokens": 4 } }]);
    let settle = json!({ "permit": joint["permit"], "actual": {}, "charges": own });
    tour.call(200, "post", "/v1/settle", &settle).await;
    tour.call(200, "post", "/v1/charge", &charges).await;
    let unknown = json!({ "policy": "none", "subject": "p7" });
    tour.call(404, "post", "/v1/acquire", &unknown).await;
    let trial = json!({ "policy": "trial", "subject": "p7" });
    tour.call(200, "post", "/v1/acquire", &trial).await;
    let shadow = json!({ "policy": "trial", "subject": "p7", "costs": { "requests": 2 } });
    let shadow = tour.call(200, "post", "/v1/acquire", &shadow).await;
    assert_eq!(shadow["shadow_denied"]["admitted"], false);
    let asks = json!({ "asks": [trial, unknown, ask("d", 250_000)] });
    let batch = tour.call(200, "post", "/v1/acquire/batch", &asks).await;
    assert_eq!(batch["answers"][1]["kind"], "unknown-policy");
    let job =
        tour.call(200, "post", "/v1/acquire", &json!({ "policy": "jobs", "subject": "p7" })).await;
    let job = tour.call(200, "post", "/v1/renew", &json!({ "permit": job["permit"] })).await;
    tour.call(200, "post", "/v1/release", &json!({ "permit": job["permit"] })).await;
    tour.call(410, "post", "/v1/renew", &json!({ "permit": job["permit"] })).await;
    let settle = json!({ "permit": first["permit"], "actual": { "tokens": 7 } });
    tour.call(200, "post", "/v1/settle", &settle).await;
    tour.call(400, "post", "/v1/settle", &json!({ "permit": "x" })).await;
    for (status, target) in [
        (200, "/v1/forward-auth?policy=jobs&subject_header=X-Real-IP"),
        (429, "/v1/forward-auth?policy=jobs&subject_header=X-Real-IP"),
        (403, "/v1/forward-auth?policy=jobs&subject_header=X-Real-IP&refusal=403"),
        (404, "/v1/forward-auth?policy=none&subject_header=X-Real-IP"),
        (400, "/v1/forward-auth"),
    ] {
        let answer = ask_of(&tour.server, target, "X-Real-IP: 192.0.2.1\r\n").await;
        tour.remember(status, "get", target, &answer);
    }
    let violation = json!({ "policy": "gemini", "subject": "p7", "retry_after_ms": 1_500 });
    tour.call(200, "post", "/v1/violations", &violation).await;
    let standing = "/v1/standing?policy=gemini&subject=p7";
    for (status, method, target) in [
        (200, "get", standing),
        (400, "get", "/v1/standing"),
        (200, "delete", standing),
        (200, "get", "/v1/policies"),
        (200, "get", "/v1/stats"),
        (200, "get", "/v1/queues"),
        (200, "get", "/v1/access"),
        (200, "get", "/v1/history"),
        (200, "get", "/v1/history?policy=gemini&since=15m&step=5m"),
        (400, "get", "/v1/history?step=1s"),
        (200, "get", "/v1/history/subject?policy=gemini&subject=p7"),
        (400, "get", "/v1/history/subject"),
        (404, "get", "/v1/history/subject?policy=none&subject=p7"),
        (200, "get", "/v1/audit"),
        (400, "get", "/v1/audit?limit=0"),
        (200, "get", "/v1/audit/top"),
        (404, "get", "/metrics"),
        (200, "get", "/healthz"),
        (200, "get", "/readyz"),
        (200, "get", "/openapi.json"),
    ] {
        tour.call(status, method, target, &Value::Null).await;
    }
    let alice = "/v1/policies/gemini/overrides/alice";
    let more = json!({ "limits": [{ "name": "rpm", "limit": 50 }] });
    tour.call(200, "put", alice, &more).await;
    tour.call(200, "get", "/v1/policies", &Value::Null).await;
    tour.call(400, "put", alice, &json!({ "limits": [{ "name": "none" }] })).await;
    tour.call(404, "put", "/v1/policies/none/overrides/alice", &more).await;
    tour.call(200, "delete", alice, &Value::Null).await;
    tour.call(200, "put", alice, &json!({ "unlimited": true })).await;
    tour.call(200, "get", "/v1/policies", &Value::Null).await;
    tour.call(200, "put", alice, &json!({ "limit": 0 })).await;
    tour.call(200, "delete", alice, &Value::Null).await;
    let limits = json!([{ "name": "rpm", "unit": "requests", "rule": "rolling-window", "limit": 5, "window": "1m" }]);
    tour.call(200, "put", "/v1/policies/extra", &json!({ "limits": limits })).await;
    tour.call(200, "get", "/v1/policies", &Value::Null).await;
    tour.call(400, "put", "/v1/policies/extra", &json!({ "limits": [] })).await;
    tour.call(409, "put", "/v1/policies/gemini", &json!({ "limits": limits })).await;
    tour.call(200, "delete", "/v1/policies/extra", &Value::Null).await;
    tour.call(409, "delete", "/v1/policies/gemini", &Value::Null).await;
    let plan = "/v1/subjects/alice/plan";
    tour.call(404, "put", plan, &json!({ "plan": "none" })).await;
    tour.call(400, "put", plan, &json!({})).await;
    tour.call(200, "delete", plan, &Value::Null).await;
    tour.call(200, "post", "/v1/charge", &ask("e", 9)).await;
    let until = json!({ "policy": "gemini", "subject": "p7", "limit": "rpm", "until": "2026-11-15T06:00:00Z" });
    tour.call(200, "post", "/v1/close", &until).await;

    let order = |id: &str, name: &str, text: &str| json!({ "policy": "gemini", "subject": "p7", "to": "fr", "format": "txt", "document": text, "id": id, "name": name });
    let jobs = "/v1/translations";
    tour.call(200, "post", jobs, &order("one", "one.txt", "hello")).await;
    tour.call(200, "post", jobs, &order("two", COMPLETED, "hello")).await;
    tour.call(409, "post", jobs, &order("one", "one.txt", "good bye")).await;
    tour.call(400, "post", jobs, &json!({})).await;
    tour.call(
        404,
        "post",
        jobs,
        &json!({ "policy": "none", "subject": "p7", "to": "fr", "format": "txt" }),
    )
    .await;
    for (status, method, target) in [
        (200, "get", "/v1/translations"),
        (200, "get", "/v1/translations/one"),
        (404, "get", "/v1/translations/none"),
        (503, "get", "/v1/translations/away"),
        (409, "get", "/v1/translations/one/document"),
        (200, "get", "/v1/translations/two/document"),
        (404, "get", "/v1/translations/none/document"),
    ] {
        tour.call(status, method, target, &Value::Null).await;
    }
    for (status, id) in [(200, "one"), (404, "none")] {
        let target = format!("/v1/translations/{id}/cancel");
        tour.call(status, "post", &target, &json!({})).await;
    }

    let folder = tempfile::tempdir().unwrap();
    let wrong = |seen: &[Value]| {
        violations(&document.to_string(), &json!(seen).to_string(), folder.path()).unwrap()
    };
    assert_eq!(wrong(&tour.seen), "");
    let done = |method: &str, path: &str| {
        tour.seen
            .iter()
            .any(|seen| (&seen["method"], &seen["path"]) == (&json!(method), &json!(path)))
    };
    for (path, calls) in document["paths"].as_object().unwrap() {
        for method in calls.as_object().unwrap().keys() {
            assert!(done(method, path), "{method} {path} was not called");
        }
    }
    // The validator finds what is wrong.
    let mut strange = tour.seen[0].clone();
    strange["body"]["limits"][0]["used"] = json!("many");
    strange["body"]["strange"] = json!(true);
    strange["fields"] = json!(["x-strange"]);
    assert_eq!(wrong(&[strange]).lines().count(), 3);
}

/// schemathesis makes some thousand calls, good and bad, with every check that it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schemathesis_finds_nothing() {
    let key = Key::new("all", KeyHash::from_key("all"), Scopes::all());
    let key = Key { tenants: vec!["*".to_owned()], ..key };
    let server = Server::serving(|app| {
        app.replace_keys(Some([key].into_iter().collect()));
        app.translations(Arc::new(MemoryJobs::default()))
    })
    .await;
    let url = format!("http://{}", server.address);
    let report = tokio::task::spawn_blocking(move || {
        let folder = tempfile::tempdir().unwrap();
        let (config, hooks) = (include_str!("schemathesis.toml"), include_str!("hooks.py"));
        schemathesis(&url, "all", config, hooks, folder.path())
    });
    let report = report.await.unwrap().unwrap_or_else(|fault| panic!("{fault}"));
    // It got beyond the door: asks were decided, and permits used.
    let as_all = |path: &'static str| server.send_as("Bearer all", "GET", path, "");
    let stats = as_all("/v1/stats").await.json();
    for policy in stats["policies"].as_array().unwrap() {
        assert!(policy["admitted"].as_u64().unwrap() > 0, "{policy} in {report}");
    }
}
