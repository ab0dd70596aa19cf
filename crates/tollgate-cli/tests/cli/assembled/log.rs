//! A log that cannot be written costs lines, and nothing else.

use std::fs::File;
use std::io::{Read as _, pipe};
use std::process::Stdio;

use hyper::Request;

use crate::folder::Folder;
use crate::http::Http;
use crate::running::{Broker, get};

const CONFIG: &str = r#"
[server]
log = "json"
[store]
kind = "memory"
[[policy]]
name = "api"
limits = [{ name = "burst", unit = "requests", rule = "rolling-window", limit = 2, window = "1h" }]
"#;

/// More lines than a pipe and the queue in front of it hold.
const LINES: usize = 8_000;

fn start(folder: &Folder, stderr: Stdio) -> Broker {
    let mut command = folder.command("serve --http 127.0.0.1:0 --resp off --grpc off");
    Broker::logging_to(&mut command, stderr)
}

/// Writes an override, which is one line of the log, `times`; the last status.
fn override_often(broker: &Broker, times: usize) -> u16 {
    let http = Http::new();
    let url = format!("{}/v1/policies/api/overrides/alice", broker.url);
    let body = r#"{"limits": [{"name": "burst", "limit": 5}]}"#;
    let mut status = 0;
    for _ in 0..times {
        let request = Request::put(&url).header("content-type", "application/json");
        status = http.send(request.body(body).expect("a request")).status().as_u16();
    }
    status
}

/// A broker that cannot write a line serves and ends as any other.
fn serves_without_a_log(stderr: Stdio) {
    let folder = Folder::with(CONFIG);
    let broker = start(&folder, stderr);
    assert_eq!(override_often(&broker, 3), 200);
    assert!(get(&broker.url, "/healthz").starts_with("HTTP/1.1 200"));
    assert_eq!(broker.end("-TERM").0, Some(0));
}

#[test]
fn a_closed_log_changes_nothing() {
    let (reader, closed) = pipe().expect("a pipe");
    drop(reader);
    serves_without_a_log(closed.into());
}

#[test]
fn a_full_log_changes_nothing() {
    let full = File::options().write(true).open("/dev/full").expect("Linux has it");
    serves_without_a_log(full.into());
}

/// Nothing waits for a reader that stopped reading; when it reads again, a line counts what it missed.
#[test]
fn a_stalled_log_drops_lines_and_counts_them() {
    let folder = Folder::with(CONFIG);
    let (mut reader, stalled) = pipe().expect("a pipe");
    let broker = start(&folder, Stdio::from(stalled));
    assert_eq!(override_often(&broker, LINES), 200);
    let mut log = Vec::new();
    let mut some = [0; 1 << 16];
    let missed = loop {
        let read = reader.read(&mut some).expect("the log");
        log.extend_from_slice(&some[..read]);
        let text = String::from_utf8_lossy(&log);
        let mut lines =
            text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        if let Some(line) = lines.find(|line| line["fields"]["dropped"].is_u64()) {
            break line;
        }
    };
    let dropped = missed["fields"]["dropped"].as_u64().expect("a number");
    assert_eq!(missed["fields"]["message"], format!("{dropped} lines dropped"));
    let written = String::from_utf8_lossy(&log).matches("overridden").count() as u64;
    assert!(0 < dropped && dropped + written <= LINES as u64, "{dropped} and {written}");
}

/// A reader that never reads again does not hold up the end.
#[test]
fn a_stalled_log_does_not_hold_up_the_end() {
    let folder = Folder::with(CONFIG);
    let (reader, stalled) = pipe().expect("a pipe");
    let broker = start(&folder, Stdio::from(stalled));
    assert_eq!(override_often(&broker, 500), 200);
    assert_eq!(broker.end("-TERM").0, Some(0));
    drop(reader);
}
