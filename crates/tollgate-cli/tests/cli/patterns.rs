//! Patterns of subjects, blocked and unlimited subjects: on every store, over every protocol, in the file and by API.

use hyper::Request;
use serde_json::{Value, json};
use tollgate_testkit::servers::{DynamoDb, Postgres, Redis};

use crate::clients::redis_cli;
use crate::folder::Folder;
use crate::http::{Http, post_json};
use crate::running::Broker;

const POLICIES: &str = r#"
[[policy]]
name = "api"
limits = [{ name = "burst", unit = "requests", rule = "rolling-window", limit = 2, window = "1h" }]

[[policy.overrides]]
subject = "eu-*"
limits = [{ name = "burst", limit = 3 }]

[[policy.overrides]]
subject = "eu-west-*"
limits = [{ name = "burst", limit = 4 }]

[[policy.overrides]]
subject = "eu-west-1"
limits = [{ name = "burst", limit = 5 }]

[[policy.overrides]]
subject = "mallory*"
limit = 0

[[policy.overrides]]
subject = "ops/*"
unlimited = true

[[policy]]
name = "account"
limits = [
  { name = "rate", unit = "requests", rule = "token-bucket", capacity = 3, refill = "1/d" },
  { name = "running", unit = "jobs", rule = "concurrency", limit = 2, ttl = "1h" },
  { name = "daily", unit = "requests", rule = "calendar-window", limit = 1_000, period = "month" },
]
overrides = [{ subject = "free/*", limits = [{ name = "rate", capacity = 0 }] }, { subject = "vip", unlimited = true }]
"#;

/// The subject, and how many of ten asks are admitted.
const EXPECTED: [(&str, usize); 6] =
    [("us-1", 2), ("eu-1", 3), ("eu-west-2", 4), ("eu-west-1", 5), ("mallory-7", 0), ("ops/1", 10)];

fn ask(http: &Http, url: &str, body: &Value) -> (u16, Value, bool) {
    let answer = http.send(post_json(&format!("{url}/v1/acquire"), "", body.to_string()));
    let has_fields = answer.headers().contains_key("ratelimit");
    (answer.status().as_u16(), serde_json::from_str(answer.body()).expect("JSON"), has_fields)
}

fn admitted(http: &Http, url: &str, subject: &str) -> usize {
    let body = json!({ "policy": "api", "subject": subject });
    (0..10).filter(|_| ask(http, url, &body).0 == 200).count()
}

/// The same decisions whatever the store.
fn decides(store: &str) {
    let folder = Folder::with(&format!("{store}{POLICIES}"));
    if store.contains("dynamodb") {
        assert_eq!(folder.run("dynamodb create-table").code, 0);
    }
    let (broker, http) = (Broker::start(&folder, ""), Http::new());
    let url = &*broker.url;
    for (subject, expected) in EXPECTED {
        assert_eq!(admitted(&http, url, subject), expected, "{subject}");
    }
    let (status, blocked, _) = ask(&http, url, &json!({ "policy": "api", "subject": "mallory-7" }));
    assert_eq!((status, &blocked["never"], &blocked["most"]), (429, &json!(true), &json!(0)));
    assert_eq!(blocked["retry_after_ms"], Value::Null, "{blocked}");
    let (_, free, has_fields) = ask(&http, url, &json!({ "policy": "api", "subject": "ops/1" }));
    assert!(!has_fields, "no limit applies, so none is shown");
    assert_eq!((&free["limits"], &free["shadow_denied"]), (&json!([]), &Value::Null), "{free}");

    // A limit of one unit is blocked, the others are not; slots are counted without an end.
    let free = json!({ "policy": "account", "subject": "free/1", "costs": { "jobs": 1 } });
    assert_eq!(ask(&http, url, &free).1["limit"], "rate");
    let jobs =
        json!({ "policy": "account", "subject": "free/1", "costs": { "requests": 0, "jobs": 1 } });
    assert_eq!(ask(&http, url, &jobs).0, 200);
    let vip = json!({ "policy": "account", "subject": "vip", "costs": { "jobs": 2 } });
    let permits: Vec<Value> = (0..5).map(|_| ask(&http, url, &vip).1["permit"].clone()).collect();
    for permit in &permits {
        let body = json!({ "permit": permit }).to_string();
        let answer = http.send(post_json(&format!("{url}/v1/release"), "", body));
        assert_eq!(answer.status(), 200, "{}", answer.body());
    }

    // Joint asks: one that is blocked charges nothing, one that is unlimited does not lift the limit of another.
    let joint = |first: &str, second: &str| {
        json!({ "charges": [
            { "policy": "api", "subject": first }, { "policy": "account", "subject": second },
        ] })
    };
    let (status, denied, _) = ask(&http, url, &joint("mallory", "team"));
    assert_eq!((status, &denied["never"]), (429, &json!(true)), "{denied}");
    let all = (0..10).filter(|_| ask(&http, url, &joint("ops/2", "team")).0 == 200).count();
    assert_eq!(all, 3, "the account has three");
    assert_eq!(ask(&http, url, &joint("ops/2", "vip")).0, 200);
}

#[test]
fn patterns_blocks_and_unlimited_subjects_in_memory() {
    decides("[store]\nkind = \"memory\"\n");
}

#[test]
fn patterns_blocks_and_unlimited_subjects_on_a_folder() {
    decides("");
}

#[test]
fn patterns_blocks_and_unlimited_subjects_on_redis() {
    let server = Redis::start().expect("a server");
    decides(&server.snippet());
}

#[test]
fn patterns_blocks_and_unlimited_subjects_on_postgres() {
    let server = Postgres::start().expect("a server");
    decides(&server.snippet());
}

#[test]
fn patterns_blocks_and_unlimited_subjects_on_dynamodb() {
    let server = DynamoDb::start().expect("a server");
    decides(&server.snippet());
}

/// Leased and optimistic brokers keep nothing of a blocked subject and nothing from an unlimited one.
#[test]
fn brokers_with_a_strategy_block_and_let_through() {
    let server = Redis::start().expect("a server");
    for (kind, options) in [("leased", ""), ("optimistic", "unposted_max = 20\n")] {
        let policies = POLICIES.replacen("name = \"api\"", "name = \"api\"\nblock_ttl = \"1s\"", 1);
        let folder = Folder::with(&format!(
            "{}prefix = \"{kind}\"\n[strategy]\nkind = \"{kind}\"\n{options}{policies}",
            server.snippet()
        ));
        let (broker, http) = (Broker::start(&folder, ""), Http::new());
        for (subject, expected) in [("mallory-7", 0), ("ops/1", 10)] {
            assert_eq!(admitted(&http, &broker.url, subject), expected, "{kind} {subject}");
        }
    }
}

/// The other protocols name the subject, too, and a client of another broker over gRPC.
#[test]
fn the_redis_protocol_and_grpc_decide_alike() {
    let folder = Folder::with(&format!("[store]\nkind = \"memory\"\n{POLICIES}"));
    let broker = Broker::start(&folder, "--grpc 127.0.0.1:0");
    let address = broker.resp.clone().expect("it is on");
    let port = address.rsplit(':').next().expect("a port");
    let grpc = broker.grpc.clone().expect("it is on");
    let client = Folder::with(&format!(
        "[store]\nkind = \"broker\"\ngrpc = \"{grpc}\"\nurl = \"{}\"\n{POLICIES}",
        broker.url
    ));
    for (subject, expected) in EXPECTED {
        let ask = format!("-3 TG.ACQUIRE api {subject}");
        let is_admitted = |_: &usize| redis_cli(port, &ask).starts_with("admitted (true)\n");
        assert_eq!((0..10).filter(is_admitted).count(), expected, "{subject}");
        let is_admitted = |_: &usize| client.run(&format!("acquire api {subject}-g")).code == 0;
        let expected = if subject == "eu-west-1" { 4 } else { expected };
        assert_eq!((0..10).filter(is_admitted).count(), expected, "{subject} over gRPC");
    }
}

/// What was used stays used: an unlimited subject has used its limit when it is limited again.
#[test]
fn an_override_by_api_takes_patterns_blocks_and_unlimited() {
    let folder = Folder::with(POLICIES);
    let broker = Broker::start(&folder, "");
    let (at, http) = (format!("--server {}", broker.url), Http::new());
    let run = |words: &str| {
        let ran = folder.run(&format!("policies override api {words} {at}"));
        assert_eq!(ran.code, 0, "{words}: {}", ran.err);
        ran.out
    };
    assert!(run("asia-* --set burst.limit=6").starts_with("asia-* (made at run time)\n"));
    assert_eq!(admitted(&http, &broker.url, "asia-1"), 6);
    assert!(run("asia-* --unlimited").contains("\n  unlimited\n"));
    assert_eq!(admitted(&http, &broker.url, "asia-1"), 10);
    run("asia-* --remove");
    assert_eq!(admitted(&http, &broker.url, "asia-1"), 0, "6 of 2 are used");
    run("asia-* --block");
    assert_eq!(admitted(&http, &broker.url, "asia-2"), 0);
    // Without the broker, and after a restart.
    drop(broker);
    assert_eq!(folder.run("acquire api asia-3").code, 1);
    let broker = Broker::start(&folder, "");
    assert_eq!(admitted(&http, &broker.url, "asia-3"), 0);
    let put = |subject: &str, body: Value| {
        let url = format!("{}/v1/policies/api/overrides/{subject}", broker.url);
        let request = Request::put(url).header("content-type", "application/json");
        let answer = http.send(request.body(body.to_string()).expect("a request"));
        (answer.status().as_u16(), answer.into_body())
    };
    assert_eq!(put("asia-*", json!({ "unlimited": true })).0, 200);
    assert_eq!(admitted(&http, &broker.url, "asia-3"), 10);
    let rows = [
        ("as*b*", json!({ "limit": 0 }), 200, ""),
        ("as*a*", json!({ "limit": 0 }), 400, "are equally specific and match the same subjects"),
        ("x", json!({ "limit": 5 }), 400, "limit is 0, which refuses everything, or absent"),
        ("x", json!({ "limit": 0, "unlimited": true }), 400, "remove it, or unlimited"),
        (
            "x",
            json!({ "unlimited": true, "limits": [{ "name": "burst", "limit": 1 }] }),
            400,
            "unlimited is about every limit",
        ),
    ];
    for (subject, body, status, expected) in rows {
        let (answered, text) = put(subject, body);
        assert!(answered == status && text.contains(expected), "{subject}: {answered} {text}");
    }
}

#[test]
fn mistakes_are_reported_with_their_line() {
    let rows = [
        (
            "subject = \"mallory*\"",
            "subject = \"eu-*\"",
            "19: override for \"eu-*\": \"eu-*\" is there twice",
        ),
        (
            "subject = \"mallory*\"",
            "subject = \"**\"\nlimit = 0\n[[policy.overrides]]\nsubject = \"*\"",
            "are equally specific and match the same subjects; make one of them longer",
        ),
        ("limit = 0", "limit = 1", "20: override for \"mallory*\": limit is 0, which refuses"),
        (
            "limit = 0",
            "limit = 0\nunlimited = true",
            "limit = 0 refuses everything; remove it, or unlimited",
        ),
        ("capacity = 3", "capacity = 0", "limit \"rate\": capacity 0 must be between 1 and"),
    ];
    for (from, to, expected) in rows {
        let ran = Folder::with(&POLICIES.replacen(from, to, 1)).run("policies check tollgate.toml");
        assert!(ran.code == 2 && ran.err.contains(expected), "{to}: {}", ran.err);
    }
}
