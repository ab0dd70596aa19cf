//! `tollgate audit denials` and `tollgate top`: what a broker wrote down, and that it outlives the broker.

use std::io::{Read as _, Write as _};
use std::process::Stdio;

use serde_json::json;
use tollgate_testkit::servers::Postgres;

use crate::folder::Folder;
use crate::running::Broker;

const POLICIES: &str = r#"
[[policy]]
name = "api"
limits = [{ name = "burst", unit = "requests", rule = "rolling-window", limit = 1, window = "1h" }]

[[policy]]
name = "team"
limits = [{ name = "rph", unit = "requests", rule = "rolling-window", limit = 9, window = "1h" }]
"#;

/// Asks twice, of which one is refused.
fn limited(folder: &Folder, broker: &Broker, subject: &str) {
    for code in [0, 1] {
        let ran = folder.run(&format!("acquire api {subject} --server {}", broker.url));
        assert_eq!(ran.code, code, "{}", ran.err);
    }
}

/// Records are there when a broker starts again on the same store, and are found by a person and by a program.
fn survives(store: &str) {
    let folder = Folder::with(&format!("{store}\n{POLICIES}"));
    let broker = Broker::start(&folder, "");
    limited(&folder, &broker, "alice");
    assert_eq!(broker.end("-TERM").0, Some(0));
    let broker = Broker::start(&folder, "");
    limited(&folder, &broker, "bob");
    let url = &broker.url;
    let ran = folder.run(&format!("audit denials --server {url}"));
    let lines: Vec<Vec<&str>> =
        ran.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        lines[0],
        ["when", "subject", "policy", "limit", "asked", "retry", "after", "outcome"]
    );
    assert_eq!(lines[1][1..6], ["bob", "api", "burst", "1", "request"]);
    assert_eq!(lines[2][1..6], ["alice", "api", "burst", "1", "request"]);
    assert_eq!(lines.len(), 3, "{}", ran.out);
    let (code, found) = folder.json(&format!("audit denials --limit 1 --since 1h --server {url}"));
    assert_eq!((code, &found["records"][0]["subject"]), (0, &"bob".into()), "{found}");
    let next = found["next"].as_u64().expect("there are more");
    let (_, found) = folder.json(&format!("audit denials --before {next} --server {url}"));
    assert_eq!((&found["records"][0]["subject"], found.get("next")), (&"alice".into(), None));
    // An ask with several charges is one record, which each of them finds.
    let ran = folder.run(&format!("acquire api:carol team:t7 api:bob --server {url}"));
    assert_eq!(ran.code, 1, "{}", ran.err);
    for subject in ["carol", "t7", "bob"] {
        let arguments = format!("audit denials --subject {subject} --limit 1 --server {url}");
        let (_, found) = folder.json(&arguments);
        let charges = json!([
            { "policy": "api", "subject": "carol", "costs": { "requests": 1 } },
            { "policy": "team", "subject": "t7", "costs": { "requests": 1 } },
            { "policy": "api", "subject": "bob", "costs": { "requests": 1 }, "refused": ["burst"] },
        ]);
        assert_eq!(
            (&found["records"][0]["charges"], &found["records"][0]["subject"]),
            (&charges, &"bob".into())
        );
    }
    let ran = folder.run(&format!("audit denials --policy team --server {url}"));
    let expected =
        "api:carol requests=1; team:t7 requests=1; api:bob requests=1 (refused by burst)";
    assert!(ran.out.contains(expected) && ran.out.lines().count() == 2, "{}", ran.out);
    let none = folder.run(&format!("audit denials --subject dave --server {url}"));
    assert_eq!((none.code, &*none.out), (0, "the audit log has no such records\n"));
    let wrong = folder.run(&format!("audit denials --since yesterday --server {url}"));
    assert_eq!(wrong.code, 2);
    assert!(wrong.err.contains("nor a length of time, as in 24h"), "{}", wrong.err);
}

#[test]
fn the_audit_of_a_folder_outlives_its_broker() {
    survives("");
}

#[test]
fn the_audit_in_postgres_outlives_its_broker() {
    let postgres = Postgres::start().expect("a server");
    let name = postgres.database().expect("a database");
    survives(&format!("[store]\nkind = \"postgres\"\nurl = \"{}\"", postgres.url(&name)));
}

#[test]
fn top_prints_once_into_a_pipe_and_json_for_programs() {
    let folder = Folder::with(&format!("[store]\nkind = \"memory\"\n{POLICIES}"));
    let broker = Broker::start(&folder, "");
    limited(&folder, &broker, "alice");
    let ran = folder.run(&format!("top --server {}", broker.url));
    assert_eq!(ran.code, 0, "{}", ran.err);
    for part in ["store memory answers", "POLICIES", "MOST LIMITED", "alice", "RECENT", "denied"] {
        assert!(ran.out.contains(part), "{part} is not in {}", ran.out);
    }
    let (code, shown) = folder.json(&format!("top --once --server {}", broker.url));
    assert_eq!((code, &shown["stats"]["policies"][0]["refused"]), (0, &1.into()), "{shown}");
    assert_eq!(shown["top"]["subjects"][0]["count"], 1);
    assert_eq!(shown["recent"]["records"][0]["subject"], "alice");
}

/// On a terminal it draws, takes keys, and puts everything back. `script` makes the terminal.
#[test]
fn top_draws_on_a_terminal_until_q() {
    let folder = Folder::with(&format!("[store]\nkind = \"memory\"\n{POLICIES}"));
    let broker = Broker::start(&folder, "");
    limited(&folder, &broker, "alice");
    let mut top = folder.command(&format!("top --server {}", broker.url));
    let words: Vec<String> = std::iter::once(top.get_program())
        .chain(top.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let mut script = std::process::Command::new("script");
    let mut child = script
        .args(["--quiet", "--flush", "--return", "--command", &words.join(" "), "/dev/null"])
        .current_dir(top.current_dir(folder.path()).get_current_dir().expect("it was set"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script runs");
    let (mut keys, mut out) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut drawn = String::new();
    let mut until = |mark: &str| {
        let mut bytes = [0; 4_096];
        while !drawn.contains(mark) {
            let read = out.read(&mut bytes).expect("it draws");
            assert_ne!(read, 0, "it ended before {mark}: {drawn}");
            drawn += &String::from_utf8_lossy(&bytes[..read]);
        }
    };
    until("POLICIES ◂");
    keys.write_all(b"\t").unwrap();
    until("LIMITS ◂");
    keys.write_all(b"\t").unwrap();
    until("MOST LIMITED ◂");
    keys.write_all(b"\r").unwrap();
    until("STANDING of alice under");
    keys.write_all(b"q").unwrap();
    until("\u{1b}[?1049l");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

/// A subject of an unknown policy is an error at the start, not a screen without it.
#[test]
fn top_refuses_a_standing_that_there_is_not() {
    let folder = Folder::with(&format!("[store]\nkind = \"memory\"\n{POLICIES}"));
    let broker = Broker::start(&folder, "");
    let ran = folder.run(&format!("top --once --standing nope alice --server {}", broker.url));
    assert!(ran.code == 2 && ran.err.contains("nope"), "{}", ran.err);
    let ran = folder.run(&format!("top --once --standing api alice --server {}", broker.url));
    assert!(ran.code == 0 && ran.out.contains("STANDING of alice under api"), "{}", ran.err);
}

#[test]
fn a_wrong_audit_is_refused_with_its_line() {
    let rows = [
        (
            "record = \"some\"",
            "unknown value \"some\" of record; use \"limited\", \"all\" or \"none\"",
        ),
        ("entries_max = 0", "entries_max 0 must be between 1 and 100000000"),
        ("age_max = \"1ms\"", "age_max 1ms must be between 1s and"),
        ("keep = 3", "keep"),
    ];
    for (line, expected) in rows {
        let folder = Folder::with(&format!("[audit]\n{line}\n{POLICIES}"));
        let ran = folder.run("policies check tollgate.toml");
        assert_eq!(ran.code, 2, "{line}");
        assert!(ran.err.contains("tollgate.toml:2:") && ran.err.contains(expected), "{}", ran.err);
    }
}
