//! How the broker ends: readiness first, then the port; and what systemd hears of it.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use serde_json::json;

use super::post;
use crate::folder::Folder;
use crate::running::{Broker, get};

const CONFIG: &str = r#"
[store]
kind = "memory"
[[policy]]
name = "api"
limits = [{ name = "burst", unit = "requests", rule = "token-bucket", capacity = 2, refill = "1/h" }]
"#;

/// The same with time between the end of readiness and that of the port.
fn delayed() -> Folder {
    Folder::with(&format!("[server]\ndrain_delay = \"5m\"\n{CONFIG}"))
}

#[test]
fn readiness_fails_before_the_port_closes() {
    let folder = delayed();
    let broker = Broker::start(&folder, "");
    assert!(get(&broker.url, "/readyz").starts_with("HTTP/1.1 200"));
    broker.signal("-TERM");
    while !get(&broker.url, "/readyz").starts_with("HTTP/1.1 503") {
        std::thread::yield_now();
    }
    let ask = json!({ "policy": "api", "subject": "alice" });
    assert_eq!(post(&broker.url, "/v1/acquire", "", &ask.to_string()).0, 200);
    assert!(get(&broker.url, "/healthz").starts_with("HTTP/1.1 200"));
    // A second signal skips the delay.
    assert_eq!(broker.end("-TERM").0, Some(0));
}

/// A broker in `folder` that tells systemd about itself, and what systemd listens on.
fn supervised(folder: &Folder) -> (Broker, UnixDatagram) {
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    let path = path.to_str().expect("text");
    let env = [("NOTIFY_SOCKET", path), ("WATCHDOG_USEC", "20000")];
    (Broker::start_with(folder, "", &env), socket)
}

fn hear(socket: &UnixDatagram, expected: &str) {
    let mut room = [0; 64];
    loop {
        let read = socket.recv(&mut room).expect(expected);
        if &room[..read] == expected.as_bytes() {
            return;
        }
    }
}

#[test]
fn systemd_hears_that_the_broker_is_ready_alive_and_stopping() {
    let folder = Folder::with(CONFIG);
    let (broker, socket) = supervised(&folder);
    hear(&socket, "READY=1");
    hear(&socket, "WATCHDOG=1");
    hear(&socket, "WATCHDOG=1");
    assert_eq!(broker.end("-TERM").0, Some(0));
    // While it stops it is alive.
    let folder = delayed();
    let (broker, socket) = supervised(&folder);
    broker.signal("-TERM");
    hear(&socket, "STOPPING=1");
    // The delay of 5 minutes, and the TimeoutStopSec of the unit.
    hear(&socket, "EXTEND_TIMEOUT_USEC=330000000");
    hear(&socket, "WATCHDOG=1");
    assert_eq!(broker.end("-TERM").0, Some(0));
}

/// Keys that others can read on their way are warned of.
#[test]
fn keys_without_encryption_beyond_loopback_are_warned_of() {
    let (_, table) = crate::keys::new_key("all", "--scope acquire");
    let folder = Folder::with(&format!("{CONFIG}{table}"));
    let mut broker = Broker::serve(&folder, "--http 0.0.0.0:0 --resp off --grpc off", &[]);
    let line = broker.error_line();
    assert!(line.contains("keys travel unencrypted") && line.contains("[server.tls]"), "{line}");
}
