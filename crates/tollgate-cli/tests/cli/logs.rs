//! The log of a broker for programs: every line is one JSON object, with the request that it is about.

use serde_json::Value;
use tollgate_testing::servers::Redis;

use crate::folder::Folder;
use crate::serve::Broker;

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
    let store = format!("{}attempt_timeout = \"200ms\"\n", redis.snippet());
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
    let agent: ureq::Agent =
        ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let ask = |id: &str| {
        let request = agent.post(format!("{}/v1/acquire", broker.url)).header("x-request-id", id);
        let body = r#"{"policy": "api", "subject": "alice"}"#;
        let answer = request.content_type("application/json").send(body).expect("it answers");
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

#[test]
fn a_wrong_format_is_refused() {
    let folder = Folder::new();
    let ran = folder.run("serve --log-format yaml");
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("--log-format \"yaml\" is neither text nor json"), "{}", ran.err);
    folder.write("tollgate.toml", &format!("[server]\nlog = \"yaml\"\n{POLICIES}"));
    let ran = folder.run("serve");
    assert!(ran.err.contains("tollgate.toml:2:"), "{}", ran.err);
    assert!(ran.err.contains("log \"yaml\" is neither \"text\" nor \"json\""), "{}", ran.err);
}
