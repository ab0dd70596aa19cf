//! Administrative actions and failed authentications: the audit and the metrics name the key, on every protocol.

use serde_json::{Value, json};

use super::post;
use crate::clients::redis_cli;
use crate::folder::Folder;
use crate::grpc_clients::call;
use crate::keys::new_key;
use crate::running::{Broker, get_with};

const POLICY: &str = r#"
[[policy]]
name = "api"
limits = [{ name = "burst", unit = "requests", rule = "token-bucket", capacity = 5, refill = "1/h" }]
"#;

const UNTIL: &str = "2099-01-01T00:00:00Z";

#[test]
fn actions_are_recorded_and_counted_under_the_name_of_their_key() {
    let all = "--scope acquire --scope inspect --scope administer";
    let [(http, http_table), (resp, resp_table), (grpc, grpc_table), (expired, expired_table)] =
        ["http-key", "resp-key", "grpc-key", "expired-key"].map(|name| new_key(name, all));
    let config = format!(
        "[server]\nwatch = false\n[store]\nkind = \"memory\"\n{http_table}{resp_table}{grpc_table}{expired_table}\
         expires = \"2020-01-01T00:00:00Z\"\n{POLICY}"
    );
    let folder = Folder::with(&config);
    let mut broker = Broker::start(&folder, "--grpc 127.0.0.1:0");
    let url = broker.url.clone();

    let at = format!("--server {url}");
    for command in ["reset api h", "policies override api h --set burst.capacity=9"] {
        let ran = folder.run_as(&http, &format!("{command} {at}"));
        assert_eq!(ran.code, 0, "{command}: {}", ran.err);
    }
    let ask = json!({ "policy": "api", "subject": "h" });
    let with = |more: Value| {
        let mut body = ask.clone();
        body.as_object_mut().expect("an object").extend(more.as_object().expect("one").clone());
        body.to_string()
    };
    for (path, body) in [
        ("/v1/charge", ask.to_string()),
        ("/v1/close", with(json!({ "limit": "burst", "until": UNTIL }))),
        ("/v1/violations", with(json!({ "retry_after_ms": 1_000 }))),
    ] {
        let (status, answer) = post(&url, path, &http, &body);
        assert_eq!(status, 200, "{path}: {answer}");
    }

    let port = broker.resp.as_deref().and_then(|at| at.rsplit(':').next()).expect("a port");
    for command in [
        "TG.RESET api r".to_owned(),
        "TG.CHARGE api r".to_owned(),
        format!("TG.CLOSE api r burst {UNTIL}"),
        "CL.THROTTLE r 15 30 60".to_owned(),
        "DEL r".to_owned(),
    ] {
        let answer = redis_cli(port, &format!("-a {resp} {command}"));
        assert!(!answer.contains("ERR") && !answer.contains("FORBIDDEN"), "{command}: {answer}");
    }

    let subject = json!({ "policy": "api", "subject": "g" });
    let closing = json!({ "policy": "api", "subject": "g", "limit": "burst", "until": UNTIL });
    let violation = json!({ "policy": "api", "subject": "g", "retryAfterMs": "1000" });
    for (method, message) in [
        ("Reset", &subject),
        ("Charge", &subject),
        ("CloseUntil", &closing),
        ("ReportViolation", &violation),
    ] {
        let name = format!("tollgate.v1.Gate/{method}");
        let answer = call(&broker, &grpc, &message.to_string(), &name);
        assert!(answer.get("answer").is_some(), "{method}: {answer}");
    }

    // The audit has one failed authentication in a second, so the one with a name comes first.
    assert_eq!(post(&url, "/v1/acquire", &expired, &ask.to_string()).0, 401);
    assert_eq!(post(&url, "/v1/acquire", "tg_wrong", &ask.to_string()).0, 401);
    redis_cli(port, "-a tg_wrong TG.RESET api r");
    broker.signal("-HUP");
    assert_eq!(broker.line(), "reloaded\n");

    let found =
        folder.run_as(&http, &format!("audit denials --outcome all --limit 100 --json {at}"));
    let found: Value = serde_json::from_str(&found.out).expect("JSON");
    let records: Vec<[&str; 3]> = found["records"]
        .as_array()
        .expect("records")
        .iter()
        .map(|record| {
            ["outcome", "by", "subject"].map(|field| record[field].as_str().unwrap_or_default())
        })
        .collect();
    let authorization = format!("authorization: Bearer {http}\r\n");
    let metrics = get_with(&url, "/metrics", &authorization);
    for (outcome, by, subject, times) in [
        ("reset", "http-key", "h", 1),
        ("overridden", "http-key", "h", 1),
        ("charged", "http-key", "h", 1),
        ("closed", "http-key", "h", 1),
        ("violated", "http-key", "h", 1),
        ("reset", "resp-key", "r", 2),
        ("charged", "resp-key", "r", 1),
        ("closed", "resp-key", "r", 1),
        ("reset", "grpc-key", "g", 1),
        ("charged", "grpc-key", "g", 1),
        ("closed", "grpc-key", "g", 1),
        ("violated", "grpc-key", "g", 1),
        ("unauthenticated", "expired-key", "", 1),
        ("reloaded", "", "", 1),
    ] {
        let record = [outcome, by, subject];
        assert_eq!(
            records.iter().filter(|found| **found == record).count(),
            times,
            "{record:?}: {found}"
        );
        let line =
            format!("tollgate_administered_total{{action=\"{outcome}\",key=\"{by}\"}} {times}\n");
        assert!(metrics.contains(&line), "{line} is missing: {metrics}");
    }
    // One over HTTP; over the Redis protocol a wrong key, and a command without one.
    let line = "tollgate_administered_total{action=\"unauthenticated\",key=\"\"} 3\n";
    assert!(metrics.contains(line), "{metrics}");
}
