//! Policies by API: with the checks of the file, kept in the store, seen by every broker on it.

use hyper::Request;
use serde_json::{Value, json};
use tollgate_testkit::servers::Redis;

use crate::folder::Folder;
use crate::http::{Http, post_json};
use crate::keys::new_key;
use crate::running::Broker;

const FILE: &str = r#"
[[policy]]
name = "api"
limits = [{ name = "burst", unit = "requests", rule = "rolling-window", limit = 2, window = "1h" }]

[[plan]]
name = "internal"
subjects = ["ops/*"]
unlimited = true
"#;

/// Broker changes are seen by others within 2 s; each look is a request.
const LOOKS_MAX: usize = 100_000;

fn send(http: &Http, method: &str, url: &str, key: &str, body: &Value) -> (u16, Value) {
    let mut request = Request::builder().method(method).uri(url);
    request = request.header("content-type", "application/json");
    if !key.is_empty() {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let answer = http.send(request.body(body.to_string()).expect("a request"));
    (answer.status().as_u16(), serde_json::from_str(answer.body()).expect("JSON"))
}

fn rolling(limit: u64) -> Value {
    json!({ "limits": [
        { "name": "rpm", "unit": "requests", "rule": "rolling-window", "limit": limit, "window": "1h" },
    ] })
}

fn admitted(http: &Http, url: &str, subject: &str) -> usize {
    let body = json!({ "policy": "extra", "subject": subject }).to_string();
    let ask = |_: &usize| {
        http.send(post_json(&format!("{url}/v1/acquire"), "", body.as_str())).status() == 200
    };
    (0..9).filter(ask).count()
}

#[test]
fn a_policy_by_api_is_in_force_at_every_broker_and_kept() {
    let server = Redis::start().expect("a server");
    let folder = Folder::with(&format!("{}{FILE}", server.snippet()));
    let (one, other, http) = (Broker::start(&folder, ""), Broker::start(&folder, ""), Http::new());
    let at = |broker: &Broker| format!("{}/v1/policies/extra", broker.url);
    let (status, made) = send(&http, "PUT", &at(&one), "", &rolling(3));
    assert_eq!((status, &made["name"], &made["source"]), (200, &json!("extra"), &json!("api")));
    assert_eq!(admitted(&http, &one.url, "alice"), 3, "at once");
    assert_eq!(admitted(&http, &one.url, "ops/1"), 9, "plans of the file apply to it");
    let listed = |broker: &Broker| {
        send(&http, "GET", &format!("{}/v1/policies", broker.url), "", &json!({})).1
    };
    let has = |broker: &Broker, limit: &Value| {
        listed(broker)["policies"]
            .as_array()
            .expect("a list")
            .iter()
            .any(|policy| policy["name"] == "extra" && policy["limits"][0]["limit"] == *limit)
    };
    assert!((0..LOOKS_MAX).any(|_| has(&other, &json!(3))), "the other broker has it soon");
    assert_eq!(admitted(&http, &other.url, "alice"), 0, "3 of 3 are used");
    // Another number keeps the usage, and an override applies to it.
    assert_eq!(send(&http, "PUT", &at(&other), "", &rolling(5)).0, 200);
    assert_eq!(admitted(&http, &other.url, "alice"), 2);
    let bob = format!("{}/overrides/bob", at(&other));
    let (status, body) = send(&http, "PUT", &bob, "", &json!({ "limit": 0 }));
    assert_eq!(status, 200, "{body}");
    assert_eq!(admitted(&http, &other.url, "bob"), 0);
    drop((one, other));
    let late = Broker::start(&folder, "");
    assert!(has(&late, &json!(5)), "it is there from the start");
    assert_eq!(send(&http, "DELETE", &at(&late), "", &json!({})).1, json!({ "changed": true }));
    assert_eq!(send(&http, "DELETE", &at(&late), "", &json!({})).1, json!({ "changed": false }));
    let ask = json!({ "policy": "extra", "subject": "alice" }).to_string();
    let gone = http.send(post_json(&format!("{}/v1/acquire", late.url), "", ask));
    assert_eq!(gone.status(), 404);
}

#[test]
fn a_policy_by_api_has_the_checks_of_the_file() {
    let server = Redis::start().expect("a server");
    let (operator, one) = new_key("operator", "--scope administer");
    let (worker, two) = new_key("worker", "--scope acquire");
    let (bound, three) = new_key("bound", "--scope administer");
    let bound_table = format!("{three}\npolicies = [\"api\"]");
    let folder = Folder::with(&format!("{}{one}\n{two}\n{bound_table}\n{FILE}", server.snippet()));
    let (broker, http) = (Broker::start(&folder, ""), Http::new());
    let at = |name: &str| format!("{}/v1/policies/{name}", broker.url);
    let with = |field: &str, value: Value| {
        let mut body = rolling(3);
        body[field] = value;
        body
    };
    let rows = [
        ("api", rolling(3), 409, "is in the configuration; change it there"),
        ("cl.throttle", rolling(3), 400, "reserved"),
        ("a%20b", rolling(3), 400, "must be 1 to 64 letters"),
        ("extra", json!({}), 400, "limits"),
        ("extra", json!({ "limits": [] }), 400, "needs limits"),
        ("extra", rolling(0), 400, "limit \"rpm\": limit 0 must be between 1 and"),
        ("extra", with("limit", json!(1)), 400, "there is no \"limit\" here"),
        ("extra", with("on_store_failure", json!("panic")), 400, "on_store_failure"),
        ("extra", with("on_store_failure", json!("fallback")), 400, "instances = 10"),
        ("extra", with("subjects_max", json!(5)), 400, "subjects_max is for the stores"),
        ("extra", with("weight", json!(0)), 400, "weight must be 1 to 1000"),
    ];
    for (name, body, status, expected) in rows {
        let (answered, problem) = send(&http, "PUT", &at(name), &operator, &body);
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert!(answered == status && detail.contains(expected), "{name} {body}: {problem}");
    }
    assert_eq!(send(&http, "PUT", &at("extra"), &worker, &rolling(3)).0, 403);
    assert_eq!(send(&http, "PUT", &at("extra"), &bound, &rolling(3)).0, 403);
    assert_eq!(send(&http, "PUT", &at("extra"), "", &rolling(3)).0, 401);
    assert_eq!(send(&http, "DELETE", &at("api"), &operator, &json!({})).0, 409);
    assert_eq!(send(&http, "PUT", &at("extra"), &operator, &rolling(3)).0, 200);
    assert_eq!(send(&http, "DELETE", &at("extra"), &operator, &json!({})).0, 200);
}
