//! A key that may only ask cannot shut a subject out.

use serde_json::{Value, json};

use super::post;
use crate::clients::redis_cli;
use crate::folder::Folder;
use crate::grpc_clients;
use crate::keys::new_key;
use crate::running::Broker;

const POLICY: &str = r#"
[[policy]]
name = "api"
limits = [{ name = "burst", unit = "tokens", rule = "token-bucket", capacity = 100, refill = "100/m" }]
"#;

/// How long until 1 token is admitted, in seconds.
fn wait(url: &str, key: &str) -> u64 {
    let ask = json!({ "policy": "api", "subject": "victim", "costs": { "tokens": 1 } });
    let (status, answer) = post(url, "/v1/acquire", key, &ask.to_string());
    match status {
        200 => 0,
        _ => answer["retry_after_ms"].as_u64().expect("a time") / 1_000,
    }
}

fn permit(url: &str, key: &str) -> String {
    let ask = json!({ "policy": "api", "subject": "victim", "costs": { "tokens": 1 } });
    let (status, answer) = post(url, "/v1/acquire", key, &ask.to_string());
    assert_eq!(status, 200, "{answer}");
    answer["permit"].as_str().expect("a permit").to_owned()
}

#[test]
fn a_violation_needs_its_permit_or_an_administrator() {
    let (ask, asking) = new_key("ask", "--scope acquire");
    let (admin, administering) =
        new_key("admin", "--scope acquire --scope administer --scope inspect");
    // The attack itself, before a setting that older versions do not know.
    for (server, hint_max) in [("", 3_600), ("[server]\nviolation_hint_max = \"10m\"\n", 600)] {
        violate(server, hint_max, [&ask, &admin], &format!("{asking}\n{administering}"));
    }
}

/// Reports violations to a broker with the table `server` and `keys`: by a key that may ask, then by an administrator.
fn violate(server: &str, hint_max: u64, [ask, admin]: [&str; 2], keys: &str) {
    let config = format!("{server}[store]\nkind = \"memory\"\n{keys}\n{POLICY}");
    let folder = Folder::with(&config);
    let broker = Broker::start(&folder, "");
    let report = |key: &str, permit: Value, subject: &str| {
        let mut body =
            json!({ "policy": "api", "subject": subject, "retry_after_ms": 2_678_400_000_u64 });
        if !permit.is_null() {
            body["permit"] = permit;
        }
        post(&broker.url, "/v1/violations", key, &body.to_string())
    };
    let (status, answer) = report(ask, Value::Null, "victim");
    assert_eq!((status, &answer["kind"]), (403, &"forbidden".into()), "{answer}");
    assert_eq!(wait(&broker.url, ask), 0);
    // A permit of another subject is no permit for this one.
    let given = permit(&broker.url, ask);
    assert_eq!(report(ask, given.clone().into(), "another").0, 400);
    let (status, answer) = report(ask, given.into(), "victim");
    assert_eq!(status, 200, "{answer}");
    assert_eq!((&answer["limits"], &answer["acquisitions"]), (&json!([]), &json!([])), "{answer}");
    let waits = wait(&broker.url, ask);
    assert!((1..=hint_max).contains(&waits), "closed for {waits} s");
    let (status, answer) = report(admin, Value::Null, "victim");
    assert_eq!((status, answer["limits"][0]["name"].as_str()), (200, Some("burst")), "{answer}");
    assert!(hint_max < wait(&broker.url, ask));
}

/// The cost beyond an estimate is charged up to a bound, on every protocol.
#[test]
fn a_settlement_leaves_a_bounded_debt() {
    // The client of gRPC reads the methods by reflection, which is to inspect.
    let (ask, asking) = new_key("ask", "--scope acquire --scope inspect");
    let most = (1_u64 << 53) - 1;
    let bounds = [("", 10), ("[server]\nsettle_excess_max = 3\n", 3)];
    for ((server, times), protocol) in bounds
        .into_iter()
        .flat_map(|bound| ["http", "resp", "grpc"].map(|protocol| (bound, protocol)))
    {
        let config = format!("{server}[store]\nkind = \"memory\"\n{asking}\n{POLICY}");
        let broker = Broker::start(&Folder::with(&config), "--grpc 127.0.0.1:0");
        let given = permit(&broker.url, &ask);
        let body = json!({ "permit": given, "actual": { "tokens": most } }).to_string();
        match protocol {
            "http" => {
                let (status, answer) = post(&broker.url, "/v1/settle", &ask, &body);
                assert_eq!((status, &answer["changed"]), (200, &true.into()), "{answer}");
                let (status, answer) = post(&broker.url, "/v1/settle", &ask, &body);
                assert_eq!((status, &answer["changed"]), (200, &false.into()), "{answer}");
            }
            "resp" => {
                let port = broker.resp.as_deref().and_then(|at| at.rsplit(':').next());
                let settle = format!("-a {ask} TG.SETTLE {given} COST tokens {most}");
                redis_cli(port.expect("a port"), &settle);
            }
            _ => {
                let answer = grpc_clients::call(&broker, &ask, &body, "tollgate.v1.Gate/Settle");
                assert_eq!(answer["answer"]["changed"], true, "{answer}");
            }
        }
        // So many times 100 tokens beyond the estimate, at 100 a minute.
        let waits = wait(&broker.url, &ask);
        assert!((1..=60 * times + 1).contains(&waits), "{protocol}: {waits} s");
        let log = broker.end("-TERM").2;
        assert!(log.contains(" WARN ") && log.contains("settle_excess_max"), "{protocol}: {log}");
        // Nothing is logged where nothing changed.
        assert_eq!(log.matches("settled for less").count(), 1, "{protocol}: {log}");
    }
}
