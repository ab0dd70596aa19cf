//! The log of a broker for programs: every line is one JSON object, with the request that it is about.

use serde_json::Value;
use tollgate_testkit::servers::{Program, Redis, run};

use crate::folder::Folder;
use crate::http::{Http, post_json};
use crate::keys::new_key;
use crate::running::Broker;

const POLICIES: &str = r#"
[[policy]]
name = "api"
limits = [{ name = "burst", unit = "requests", rule = "rolling-window", limit = 2, window = "1h" }]
"#;

/// The next line whose message is `message`; those before it are JSON too.
fn line(broker: &mut Broker, message: &str) -> Value {
    loop {
        let text = broker.error_line();
        assert_ne!(text, "", "the log ended before {message:?}");
        let line: Value = serde_json::from_str(&text).expect(&text);
        for name in ["timestamp", "level", "target", "fields"] {
            assert!(!line[name].is_null(), "{name} is missing: {text}");
        }
        if line["fields"]["message"] == message {
            return line;
        }
    }
}

#[test]
fn a_log_of_json_says_which_request_a_line_is_about() {
    let mut redis = Redis::start().expect("a server");
    let store = format!("{}attempt_timeout = \"5s\"\n", redis.snippet());
    let folder = Folder::with(&format!("[server]\nlog = \"json\"\n{store}{POLICIES}"));
    let mut broker = Broker::start(&folder, "");
    let serving = line(&mut broker, "serving");
    assert_eq!((&serving["level"], &serving["fields"]["store"]), (&"INFO".into(), &"redis".into()));
    assert_eq!(serving["fields"]["http"], broker.url);

    let at = format!("--server {}", broker.url);
    let ran = folder.run(&format!("policies override api alice --set burst.limit=5 {at}"));
    assert_eq!(ran.code, 0, "{}", ran.err);
    let done = line(&mut broker, "overridden");
    assert_eq!(done["fields"]["subject"], "alice");
    let made = done["span"]["request_id"].as_str().expect("a name was made");
    assert_eq!(made.len(), 16, "{made}");

    redis.process().kill().expect("it is killed");
    let http = Http::new();
    let ask = |id: &str| {
        let body = r#"{"policy": "api", "subject": "alice"}"#;
        let mut request = post_json(&format!("{}/v1/acquire", broker.url), "", body);
        request.headers_mut().insert("x-request-id", id.parse().expect("a value"));
        let answer = http.send(request);
        let back = answer.headers()["x-request-id"].to_str().expect("text").to_owned();
        (answer.status().as_u16(), back)
    };
    assert_eq!(ask("edge-7/42"), (503, "edge-7/42".to_owned()));
    let (_, other) = ask("what {is} \"this\"");
    assert_eq!(other.len(), 16, "what is not plain is not taken over: {other}");
    let said = line(&mut broker, "could not answer");
    assert_eq!(said["level"], "ERROR");
    assert_eq!(said["span"]["request_id"], "edge-7/42", "{said}");
    assert_eq!(said["span"]["path"], "/v1/acquire");
}

/// With everything logged that can be, of calls that go through, are refused, and cannot be answered.
#[test]
fn bodies_keys_and_permits_are_never_logged() {
    let mut redis = Redis::start().expect("a server");
    let (key, table) = new_key("all", "--scope acquire --scope administer");
    let store = format!("{}attempt_timeout = \"5s\"\n", redis.snippet());
    let talkative = "[server]\nlog = \"json\"\n[telemetry]\nlog = \"info\"\n";
    let folder = Folder::with(&format!("{talkative}{table}\n{store}{POLICIES}"));
    let broker = Broker::start(&folder, "");
    let http = Http::new();
    let call = |key: &str, path: &str, body: &str| -> (u16, Value) {
        let answer = http.send(post_json(&format!("{}{path}", broker.url), key, body));
        (answer.status().as_u16(), serde_json::from_str(answer.body()).expect("JSON"))
    };
    let ask = r#"{"policy": "api", "subject": "alice", "id": "mark-of-a-body"}"#;
    let other = r#"{"policy": "api", "subject": "alice", "costs": {"mark-of-a-body": 1}}"#;
    let (status, admitted) = call(&key, "/v1/acquire", ask);
    let permit = admitted["permit"].as_str().expect("a permit");
    let (of_permit, wrong) = (format!(r#"{{"permit": "{permit}"}}"#), "tg_another_key");
    let settle = format!("TG.SETTLE {permit}");
    let redis_cli = |key: &str, words: &str| {
        let port = broker.resp.as_deref().and_then(|at| at.rsplit(':').next()).expect("a port");
        let program = Program::new("redis-cli").args("--no-auth-warning -p").arg(port);
        run(&program.arg("-a").arg(key).args(words)).expect("redis-cli runs")
    };
    let statuses = [
        status,
        call(&key, "/v1/acquire", other).0,
        call(wrong, "/v1/acquire", ask).0,
        call(&key, "/v1/settle", &of_permit).0,
        call(&key, "/v1/violations", r#"{"mark-of-a-body": 1}"#).0,
    ];
    assert_eq!(statuses, [200, 400, 401, 200, 400]);
    redis_cli(wrong, "PING");
    redis_cli(&key, &settle);
    redis.process().kill().expect("it is killed");
    assert_eq!(call(&key, "/v1/acquire", ask).0, 503);
    call(&key, "/v1/release", &of_permit);
    redis_cli(&key, &settle);
    let logged = broker.end("-TERM").2;
    for said in ["serving", "could not answer", "\"event\":"] {
        assert!(logged.contains(said), "{said} is missing: {logged}");
    }
    for secret in [&*key, wrong, permit] {
        assert!(!logged.contains(secret), "{secret} was logged: {logged}");
    }
    // The events of `[telemetry] log` are decisions, with the id that the caller gave; the log itself has nothing of it.
    let (own, events): (Vec<&str>, Vec<&str>) =
        logged.lines().partition(|line| line.contains("\"timestamp\":"));
    let has_mark = |lines: &[&str]| lines.iter().any(|line| line.contains("mark-of-a-body"));
    assert_eq!((has_mark(&own), has_mark(&events)), (false, true), "{logged}");
}

#[test]
fn a_wrong_format_is_refused() {
    let folder = Folder::new();
    let ran = folder.run("serve --log-format yaml");
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("--log-format \"yaml\" is neither text nor json"), "{}", ran.err);
    folder.write("tollgate.toml", &format!("[server]\nlog = \"yaml\"\n{POLICIES}"));
    let ran = folder.run("serve");
    assert!(ran.err.contains("tollgate.toml:2:"), "{}", ran.err);
    assert!(
        ran.err.contains("unknown log format \"yaml\"; use \"text\" or \"json\""),
        "{}",
        ran.err
    );
}
