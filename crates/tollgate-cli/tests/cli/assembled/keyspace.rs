//! Callers who make up subjects take the room of their own policy only.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use super::post;
use crate::clients::redis_cli;
use crate::folder::Folder;
use crate::running::{Broker, get, get_with};

const BOUNDED: &str = r#"
[[policy]]
name = "bounded"
subjects_max = 5
limits = [{ name = "burst", unit = "requests", rule = "token-bucket", capacity = 2, refill = "1/h" }]
"#;

const API: &str = r#"
[[policy]]
name = "api"
limits = [{ name = "burst", unit = "requests", rule = "token-bucket", capacity = 2, refill = "1/h" }]
"#;

/// Sends `CL.THROTTLE` for keys that hold something back for ten years. Returns how many of them are refused as `full`.
fn flood(broker: &Broker, numbers: std::ops::Range<u32>) -> usize {
    let port = broker.resp.as_deref().and_then(|at| at.rsplit(':').next()).expect("a port");
    let answer = |number| redis_cli(port, &format!("CL.THROTTLE k{number} 0 1 315360000"));
    numbers.map(answer).filter(|answer| answer.starts_with("FULL")).count()
}

fn ask(broker: &Broker, policy: &str, number: u32) -> (u16, Value) {
    let body = json!({ "policy": policy, "subject": format!("s{number}") });
    post(&broker.url, "/v1/acquire", "", &body.to_string())
}

/// How many keys of `CL.THROTTLE` are sent before their answers are read.
const BATCH: usize = 10_000;

/// Sends `keys` commands to the Redis protocol at `address`, each about a key that holds something back for ten years.
fn fill(address: &str, keys: usize) {
    let mut stream = BufReader::new(TcpStream::connect(address).expect("the broker listens"));
    stream.get_ref().set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    for first in (0..keys).step_by(BATCH) {
        let batch = first..keys.min(first + BATCH);
        let (sent, expected) = (batch.clone(), batch.len());
        let commands = sent.map(|number| format!("CL.THROTTLE k{number} 0 1 315360000\r\n"));
        let commands: String = commands.chain(["PING\r\n".to_owned()]).collect();
        let mut writing = stream.get_ref().try_clone().expect("a socket");
        let write = std::thread::spawn(move || writing.write_all(commands.as_bytes()));
        let (mut answers, mut line) = (0, String::new());
        while line != "+PONG\r\n" {
            line.clear();
            assert_ne!(stream.read_line(&mut line).expect("an answer"), 0, "it is cut off");
            answers += usize::from(line.starts_with(['*', '-']));
        }
        assert_eq!(answers, expected);
        write.join().expect("no panic").expect("the broker reads");
    }
}

/// As many keys as the store has room for, from a caller without a key: other policies still take new subjects.
#[test]
fn a_flood_of_as_many_keys_as_the_store_holds_leaves_room() {
    let config = |store: &str| format!("[store]\nkind = \"memory\"\n{store}{API}");
    // A small store. Older versions do not know the setting, and hold a million.
    let small = Folder::with(&config("keys_max = 2000\n"));
    let (folder, keys) = match small.run("policies check tollgate.toml").code {
        0 => (small, 2_000),
        _ => (Folder::with(&config("")), 1_000_000),
    };
    let broker = Broker::start(&folder, "");
    fill(broker.resp.as_deref().expect("it is on"), keys + BATCH);
    for subject in ["alice", "bob"] {
        let body = json!({ "policy": "api", "subject": subject });
        let (status, answer) = post(&broker.url, "/v1/acquire", "", &body.to_string());
        assert_eq!(status, 200, "{answer}");
    }
}

#[test]
fn a_flood_of_keys_leaves_room_for_other_policies() {
    for kind in ["memory", "embedded"] {
        let config = format!(
            "[server]\nthrottle_subjects_max = 20\n[store]\nkind = \"{kind}\"\n{BOUNDED}{API}"
        );
        let folder = Folder::with(&config);
        let broker = Broker::start(&folder, "");
        assert_eq!((flood(&broker, 0..20), flood(&broker, 20..30)), (0, 10), "{kind}");
        let port = broker.resp.as_deref().and_then(|at| at.rsplit(':').next()).expect("a port");
        let refused = redis_cli(port, "CL.THROTTLE another 0 1 315360000");
        assert!(refused.contains("raise throttle_subjects_max of [server]"), "{refused}");
        for number in 0..10 {
            let (status, answer) = ask(&broker, "bounded", number);
            assert_eq!(status, if number < 5 { 200 } else { 503 }, "{kind}: {answer}");
            assert_eq!(ask(&broker, "api", number).0, 200, "{kind}");
        }
        let (_, answer) = ask(&broker, "bounded", 99);
        let detail = answer["detail"].as_str().expect("text");
        assert!(detail.starts_with(kind) && detail.contains("subjects_max"), "{detail}");
        // A known subject is not refused.
        assert_eq!(ask(&broker, "bounded", 0).0, 200, "{kind}");
        assert!(get(&broker.url, "/readyz").starts_with("HTTP/1.1 200"), "{kind}");
        let log = broker.end("-TERM").2;
        assert!(log.contains("could not answer") && log.contains("subjects_max"), "{log}");
    }
}

/// A restart does not make room for another flood, even after `kill -9`.
#[test]
fn a_data_folder_stays_bounded_over_restarts() {
    let config = format!("[store]\nkind = \"embedded\"\nkeys_max = 40\n{API}");
    let folder = Folder::with(&config);
    let broker = Broker::start(&folder, "");
    // One policy has half of the keys.
    assert_eq!(flood(&broker, 0..30), 10);
    broker.kill();
    drop(broker);
    let broker = Broker::start(&folder, "");
    assert_eq!(flood(&broker, 20..30), 10);
    let statuses: Vec<u16> = (0..22).map(|number| ask(&broker, "api", number).0).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 20, "{statuses:?}");
    let detail = &ask(&broker, "api", 99).1["detail"];
    assert!(detail.as_str().expect("text").contains("keys_max"), "{detail}");
}

/// A client with one IPv6 address usually has 2^64 of them.
#[test]
fn addresses_of_one_network_are_one_subject() {
    let broker = Broker::start(&Folder::with(&format!("[store]\nkind = \"memory\"\n{API}")), "");
    let path = "/v1/forward-auth?policy=api&subject_header=X-Real-IP";
    let statuses: Vec<String> = ["2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::1"]
        .iter()
        .map(|address| {
            let fields = format!("x-forwarded-host: shop\r\nx-real-ip: {address}\r\n");
            get_with(&broker.url, path, &fields)[9..12].to_owned()
        })
        .collect();
    assert_eq!(statuses, ["200", "200", "429", "200"]);
}

/// A bound that the store would ignore is refused.
#[test]
fn bounds_are_for_stores_in_the_broker() {
    let redis = "[store]\nkind = \"redis\"\nurl = \"redis://127.0.0.1:1/\"\n";
    let server = format!("[server]\nthrottle_subjects_max = 5\n{redis}{API}");
    for (config, expected) in [
        (format!("{redis}{BOUNDED}"), "7: subjects_max is for the stores"),
        (server, "2: throttle_subjects_max is for the stores"),
        (format!("{redis}keys_max = 5\n{API}"), "4: a redis store takes no keys_max"),
    ] {
        let ran = Folder::with(&config).run("policies check tollgate.toml");
        assert_eq!(ran.code, 2, "{}", ran.out);
        assert!(ran.err.starts_with(&format!("tollgate.toml:{expected}")), "{}", ran.err);
        assert!(ran.err.contains("bounds of its own"), "{}", ran.err);
    }
}
