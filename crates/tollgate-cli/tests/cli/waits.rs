//! What the binary says of waits that depend on others: held slots, and asks that wait ahead.

use std::process::{Child, Stdio};

use serde_json::Value;
use tollgate_testkit::servers::{Append, Redis};

use crate::clients::redis_cli;
use crate::folder::Folder;
use crate::running::{Broker, get_with};

const POLICIES: &str = r#"
[[policy]]
name = "jobs"
limits = [{ name = "running", unit = "jobs", rule = "concurrency", limit = 1, ttl = "5m" }]

[[policy]]
name = "api"
limits = [{ name = "burst", unit = "requests", rule = "token-bucket", capacity = 50, refill = "1/m" }]
"#;

const JOB: &str = "acquire jobs ci --cost jobs=1";

fn broker(store: &str) -> (Folder, Broker, String) {
    let folder = Folder::with(&format!("[store]\n{store}\n{POLICIES}"));
    let broker = Broker::start(&folder, "");
    let server = format!("--server {}", broker.url);
    (folder, broker, server)
}

/// Asks for a slot, and returns the permit.
fn taken(folder: &Folder, server: &str) -> String {
    let (code, body) = folder.json(&format!("{JOB} {server}"));
    assert_eq!(code, 0, "{body}");
    body["permit"].as_str().expect("text").to_owned()
}

/// An ask in the background that waits.
fn waiting(folder: &Folder, call: &str) -> Child {
    folder.command(call).stdout(Stdio::null()).spawn().expect("the binary starts")
}

/// Asks again until the answer counts an ask ahead of it. What is admitted before that is given back.
fn behind_one(folder: &Folder, call: &str, server: &str) -> Value {
    loop {
        let (code, body) = folder.json(&format!("{call} {server}"));
        if code == 0 {
            let permit = body["permit"].as_str().expect("text");
            folder.run(&format!("release {permit} {server}"));
        } else if body["waiting_ahead"] == 1 {
            return body;
        }
    }
}

fn is_soon(body: &Value) -> bool {
    body["retry_after_ms"].as_u64().is_some_and(|wait| (1..=30_000).contains(&wait))
}

/// A slot that was given back after a moment is promised after a moment; its expiry is the bound.
#[test]
fn a_refusal_for_slots_says_an_estimate_and_the_expiry() {
    let (folder, broker, server) = broker("kind = \"memory\"");
    let permit = taken(&folder, &server);
    assert_eq!(folder.run(&format!("release {permit} {server}")).out, "released\n");
    taken(&folder, &server);
    let (code, body) = folder.json(&format!("{JOB} {server}"));
    assert_eq!((code, &body["estimated"]), (1, &Value::Bool(true)), "{body}");
    assert!(is_soon(&body), "{body}");
    assert!(body["reset_at"].as_str() < body["expires_at"].as_str(), "{body}");
    let denied = folder.run(&format!("{JOB} {server}")).out;
    assert!(denied.starts_with("denied by running: 0 of 1 left, try again in about "), "{denied}");
    assert!(denied.contains(" (estimated; at the latest "), "{denied}");

    let path = "/v1/forward-auth?policy=jobs&subject=ci&costs=jobs=1";
    let answer = get_with(&broker.url, path, "x-forwarded-host: a\r\n").to_lowercase();
    let after = answer.lines().find_map(|line| line.strip_prefix("retry-after: "));
    assert!(after.is_some_and(|secs| secs.parse::<u64>().is_ok_and(|secs| secs <= 30)), "{answer}");
    let (_, port) = broker.resp.as_deref().and_then(|at| at.rsplit_once(':')).expect("it is on");
    let answer = redis_cli(port, "-3 TG.ACQUIRE jobs ci COST jobs 1");
    assert!(answer.contains("estimated (true)"), "{answer}");
    assert!(answer.contains("expires_at "), "{answer}");
}

/// A command that opens the store itself has observed nothing: it says the default, one second.
#[test]
fn a_command_without_a_broker_estimates_one_second() {
    let folder = Folder::with(POLICIES);
    taken(&folder, "");
    let (code, body) = folder.json(JOB);
    assert_eq!((code, &body["estimated"]), (1, &Value::Bool(true)), "{body}");
    assert_eq!(body["retry_after_ms"], 1_000);
    let denied = folder.run(JOB).out;
    assert!(
        denied.starts_with("denied by running: 0 of 1 left, try again in about 1s (es"),
        "{denied}"
    );
}

/// A broker cannot notify another of a released slot; an ask that waits there finds it long before it would expire.
#[test]
fn a_slot_that_another_broker_releases_goes_to_a_waiting_ask() {
    let redis = Redis::start_with(Append::Never, "").expect("a server");
    let store = format!("kind = \"redis\"\nurl = \"{}\"", redis.url());
    let (here, _one, server) = broker(&store);
    let (there, _other, other) = broker(&store);
    let permit = taken(&here, &server);
    let mut waiting = waiting(&there, &format!("{JOB} --wait 4m {other}"));
    let body = behind_one(&there, JOB, &other);
    assert!(body["estimated"] == true && is_soon(&body), "{body}");
    assert_eq!(here.run(&format!("release {permit} {server}")).out, "released\n");
    assert_eq!(waiting.wait().expect("it ends").code(), Some(0));
}

/// Behind an ask for all 50 one is refused although 49 are left: because of the ask ahead, and for as long as it takes.
#[test]
fn a_refusal_behind_others_says_that_they_wait_ahead() {
    let (folder, _broker, server) = broker("kind = \"memory\"");
    let one = "acquire api alice";
    assert_eq!(folder.run(&format!("{one} {server}")).code, 0);
    let all = format!("acquire api alice --cost requests=50 --wait 4m {server}");
    let mut waiting = waiting(&folder, &all);
    let body = behind_one(&folder, one, &server);
    assert_eq!(body["limits"][0]["remaining"], 49, "{body}");
    let detail = body["detail"].as_str().expect("text");
    assert!(detail.starts_with("1 ask waits ahead for limit \"burst\"; ask again in "), "{detail}");
    let denied = folder.run(&format!("{one} {server}")).out;
    let start = "denied by burst: 49 of 50 left, asked for 1, 1 ask waits ahead, try again in ";
    assert!(denied.starts_with(start) && denied.ends_with("Z)\n"), "{denied}");
    waiting.kill().expect("it waits");
    waiting.wait().expect("it was started here");
}
