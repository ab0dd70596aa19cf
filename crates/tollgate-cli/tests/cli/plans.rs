//! Plans: numbers for the subjects on them, in the file and by API, on every broker of a store.

use hyper::Request;
use serde_json::{Value, json};

use crate::folder::Folder;
use crate::http::{Http, post_json};
use crate::running::Broker;

const PLANS: &str = r#"
[[policy]]
name = "api"
limits = [{ name = "burst", unit = "requests", rule = "rolling-window", limit = 2, window = "1h" }]
overrides = [{ subject = "eu-west-1", limits = [{ name = "burst", limit = 7 }] }]

[[policy]]
name = "exports"
limits = [{ name = "rate", unit = "requests", rule = "token-bucket", capacity = 1, refill = "1/d" }]

[[plan]]
name = "free"
subjects = ["*"]
limits = { api = { burst = 1 } }
limit = 0

[[plan]]
name = "pro"
subjects = ["acme", "eu-*"]
limits.api = { burst = 4 }
limits.exports = { rate = { capacity = 3, refill = "2/d" } }

[[plan]]
name = "internal"
subjects = ["ops/*"]
unlimited = true
"#;

fn admitted(http: &Http, url: &str, policy: &str, subject: &str) -> usize {
    let body = json!({ "policy": policy, "subject": subject }).to_string();
    let ask = |_: &usize| {
        let answer = http.send(post_json(&format!("{url}/v1/acquire"), "", body.as_str()));
        answer.status() == 200
    };
    (0..9).filter(ask).count()
}

fn send(http: &Http, method: &str, url: &str, body: Option<Value>) -> (u16, Value) {
    let request = Request::builder().method(method).uri(url);
    let request = request.header("content-type", "application/json");
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    let answer = http.send(request.body(body).expect("a request"));
    (answer.status().as_u16(), serde_json::from_str(answer.body()).expect("JSON"))
}

/// The plan of a subject decides under every policy; an override of a policy goes before a plan that is not more specific.
#[test]
fn the_plan_of_a_subject_decides_under_every_policy() {
    let folder = Folder::with(&format!("[store]\nkind = \"memory\"\n{PLANS}"));
    let (broker, http) = (Broker::start(&folder, ""), Http::new());
    let rows = [
        ("somebody", 1, 0),
        ("acme", 4, 3),
        ("eu-north-1", 4, 3),
        ("eu-west-1", 7, 3),
        ("ops/1", 9, 9),
    ];
    for (subject, api, exports) in rows {
        assert_eq!(admitted(&http, &broker.url, "api", subject), api, "{subject}");
        assert_eq!(admitted(&http, &broker.url, "exports", subject), exports, "{subject}");
    }
    let (_, listed) = folder.json(&format!("policies --server {}", broker.url));
    let plan = &listed["plans"][1];
    assert_eq!((&plan["name"], &plan["subjects"]), (&json!("pro"), &json!(2)), "{plan}");
    assert_eq!(plan["policies"][0]["limits"][0]["limit"], 4);
    assert_eq!(listed["plans"][2]["policies"][1]["unlimited"], true);
    let printed = folder.run("policies").out;
    assert!(printed.contains("\nplan internal, subjects: 1\n  api: unlimited\n"), "{printed}");
}

/// A subject moves to another plan by API: at once, at every broker, after a restart, and without a free burst.
#[test]
fn a_subject_is_put_on_a_plan_by_api() {
    let folder = Folder::with(PLANS);
    let (broker, http) = (Broker::start(&folder, ""), Http::new());
    let at = |subject: &str| format!("{}/v1/subjects/{subject}/plan", broker.url);
    assert_eq!(admitted(&http, &broker.url, "api", "acme"), 4);
    let (status, body) = send(&http, "PUT", &at("acme"), Some(json!({ "plan": "free" })));
    assert_eq!((status, &body), (200, &json!({ "subject": "acme", "plan": "free" })));
    assert_eq!(admitted(&http, &broker.url, "api", "acme"), 0, "4 of 1 are used");
    assert_eq!(admitted(&http, &broker.url, "exports", "acme"), 0);
    let (status, _) = send(&http, "PUT", &at("asia-*"), Some(json!({ "plan": "pro" })));
    assert_eq!(status, 200);
    assert_eq!(admitted(&http, &broker.url, "api", "asia-1"), 4);
    let rows = [
        ("x", json!({ "plan": "prx" }), 404, "did you mean pro? known: free, pro, internal"),
        ("x", json!({}), 400, "plan"),
        ("**", json!({ "plan": "pro" }), 400, "are equally specific and match the same subjects"),
    ];
    for (subject, body, status, expected) in rows {
        let (answered, problem) = send(&http, "PUT", &at(subject), Some(body));
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert!(answered == status && detail.contains(expected), "{subject}: {problem}");
    }
    let (_, audited) = folder.json(&format!("audit denials --outcome all --server {}", broker.url));
    let records = audited["records"].to_string();
    assert!(records.contains("\"assigned\""), "{records}");

    drop(broker);
    let broker = Broker::start(&folder, "");
    assert_eq!(admitted(&http, &broker.url, "api", "asia-2"), 4, "it is kept");
    let (_, listed) = folder.json(&format!("policies --server {}", broker.url));
    assert_eq!(listed["plans"][1]["assigned"], json!([{ "subject": "asia-*", "unfit": null }]));
    // A plan that is gone leaves its subjects without it, and the list says so.
    folder.write("tollgate.toml", &PLANS.replace("name = \"pro\"", "name = \"team\""));
    broker.signal("-HUP");
    let url = format!("{}/v1/subjects/asia-*/plan", broker.url);
    let gone = (0..10_000).any(|_| {
        let (status, _) = send(&http, "PUT", &url, Some(json!({ "plan": "pro" })));
        status == 404
    });
    assert!(gone, "the plan was renamed");
    assert_eq!(admitted(&http, &broker.url, "api", "asia-3"), 1);
    let (status, body) = send(&http, "DELETE", &url, None);
    assert_eq!((status, body), (200, json!({ "changed": true })));
    let (_, body) = send(&http, "DELETE", &url, None);
    assert_eq!(body, json!({ "changed": false }));
}

#[test]
fn mistakes_in_plans_are_reported_with_their_line() {
    let rows = [
        (
            "\"acme\", \"eu-*\"",
            "\"*\"",
            "19: plan \"pro\": \"*\" is there twice; keep one; the other is in plan \"free\"",
        ),
        (
            "\"acme\", \"eu-*\"",
            "\"\"",
            "19: plan \"pro\": a subject must be 1 to 256 bytes long, not 0",
        ),
        ("\"ops/*\"", "\"eu-**\"", "are equally specific and match the same subjects"),
        ("name = \"pro\"", "name = \"free\"", "18: two plans are called \"free\""),
        ("name = \"pro\"", "name = \"a b\"", "18: plan name \"a b\" must be 1 to 64 letters"),
        ("name = \"pro\"", "nam = \"pro\"", "18: there is no \"nam\" here; did you mean name?"),
        (
            "limits.exports",
            "limits.export",
            "21: plan \"pro\": there is no policy \"export\"; did you mean exports?",
        ),
        (
            "rate = {",
            "rat = {",
            "21: plan \"pro\": policy \"exports\": limit \"rat\": the policy has no such limit; did you mean rate?",
        ),
        (
            "refill = \"2/d\"",
            "refill = \"fast\"",
            "21: plan \"pro\": policy \"exports\": limit \"rate\": refill",
        ),
        (
            "burst = 4",
            "burst = \"4\"",
            "20: invalid type: string \"4\", expected a number, or a table of the fields that change",
        ),
        (
            "burst = 4",
            "burst = 9007199254740993",
            "20: plan \"pro\": policy \"api\": limit \"burst\"",
        ),
        (
            "unlimited = true",
            "unlimited = true\nlimit = 0",
            "limit = 0 refuses everything; remove it, or unlimited",
        ),
    ];
    for (from, to, expected) in rows {
        let ran = Folder::with(&PLANS.replacen(from, to, 1)).run("policies check tollgate.toml");
        assert!(ran.code == 2 && ran.err.contains(expected), "{to}: {}", ran.err);
    }
}
