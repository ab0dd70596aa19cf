//! A broker whose store is another broker, which refuses its key.

use serde_json::json;

use super::credentials::refused;
use super::{Assembled, FIVE, post};
use crate::folder::Folder;
use crate::keys::new_key;
use crate::running::Broker;

/// A broker with the policies of [`Assembled`] and `keys`, and one that asks it with `key` by `protocol`.
fn pair(keys: &str, key: &str, protocol: &str) -> (Folder, Broker, Assembled) {
    let behind = Assembled::folder(&format!("{keys}\n[store]\nkind = \"memory\"\n"));
    let upstream = Broker::start(&behind, "--grpc 127.0.0.1:0");
    let address = match protocol {
        "grpc" => format!("grpc = \"{}\"", upstream.grpc.as_ref().expect("it is on")),
        "resp" => format!("resp = \"redis://{}\"", upstream.resp.as_ref().expect("it is on")),
        _ => format!("url = \"{}\"", upstream.url),
    };
    let store = format!("[store]\nkind = \"broker\"\n{address}\nkey = \"{key}\"\n");
    let front = Assembled::start(&store);
    (behind, upstream, front)
}

/// A revoked key is reported to the operator of the broker that uses it, not to its callers.
#[test]
fn a_key_that_another_broker_refuses_is_for_the_operator() {
    let scopes = "--scope acquire --scope inspect --scope administer";
    for protocol in ["grpc", "http", "resp"] {
        let ((key, right), (_, other)) = (new_key("front", scopes), new_key("front", scopes));
        let (behind, mut upstream, front) = pair(&right, &key, protocol);
        let config = std::fs::read_to_string(behind.path().join("tollgate.toml")).expect("a file");
        let mut put = |text: &str| {
            behind.write("tollgate.toml", text);
            upstream.signal("-HUP");
            assert_eq!(upstream.line(), "reloaded\n");
        };
        let (wrong, right) = (config.replace(&right, &other), config.clone());
        assert_ne!(wrong, right);
        let put = std::cell::RefCell::new(&mut put);
        refused(
            front,
            || (put.borrow_mut())(&wrong),
            "refuses the key",
            || {
                (put.borrow_mut())(&right);
            },
        );
    }
}

/// A call that the key does not allow fails alone: it neither cuts the others off nor opens their limits.
#[test]
fn a_call_that_the_upstream_key_forbids_fails_alone() {
    let (key, table) = new_key("front", "--scope acquire --scope inspect");
    for protocol in ["grpc", "http", "resp"] {
        let (_behind, _upstream, front) = pair(&table, &key, protocol);
        let url = &front.broker.url;
        let charge = json!({ "policy": "five", "subject": "victim", "costs": { "requests": 1 } });
        let (status, body) = post(url, "/v1/charge", "", &charge.to_string());
        assert_eq!((status, &body["kind"]), (503, &"misconfigured".into()), "{body}");
        assert!(!body.to_string().contains("127.0.0.1"), "{body}");
        let (_, permit) = front.ask("five", "victim");
        let violation = json!({
            "policy": "five", "subject": "victim", "permit": permit["permit"], "retry_after_ms": 1_000,
        });
        post(url, "/v1/violations", "", &violation.to_string());
        let admitted = (0..2 * FIVE).filter(|_| {
            let (_, body) = front.ask("five", "victim");
            assert_eq!(body["degraded"], false, "{body}");
            body["admitted"] == true
        });
        assert_eq!(admitted.count() as u64, FIVE - 1);
        assert_eq!(front.ready().0, 200);
        let log = front.log();
        let is_named = |line: &str| line.contains(" ERROR ") && line.contains("scope administer");
        assert!(log.lines().any(is_named), "{log}");
        assert!(!log.contains("RateLimiterFallbackActivated"), "{log}");
    }
}
