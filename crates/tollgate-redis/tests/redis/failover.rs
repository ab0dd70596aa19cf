//! A primary that is demoted, behind one address and behind Sentinel.

use tollgate::{ErrorKind, GateExt};
use tollgate_redis::Options;
use tollgate_testkit::servers::{Lossy, Redis, eventually};

use crate::{acquire, connect, daily, server};

/// Waits until `replica` has `key`.
fn follows(replica: &Redis, key: &str) {
    eventually(|| (replica.command(&["exists", key]).ok()? == "1\n").then_some(())).unwrap();
}

/// A connection that leads to a server that was demoted is dropped, and the command is sent to the primary.
#[tokio::test]
async fn a_demoted_primary_behind_one_address_is_left() {
    let old = server();
    let new = old.start_replica().unwrap();
    let address = Lossy::start(old.address()).unwrap();
    let url = format!("redis://{}/", address.address());
    // Each call is sent once: what tries again here is the connection.
    let (gate, policy) = (connect(Options::single(url).once()).await, daily(5));
    assert!(acquire(&gate, &policy, "p").await.unwrap());
    follows(&new, &gate.key(&policy, "p"));
    address.redirect(new.address());
    old.yield_to(&new).unwrap();
    assert!(acquire(&gate, &policy, "p").await.unwrap());
    assert_eq!(gate.standing(&policy, "p").await.unwrap()[0].used, 2);
}

/// A probe asks for a standing. On a replica it fails, and where the address leads to the primary it finds it.
#[tokio::test]
async fn a_probe_on_a_replica_fails_until_there_is_a_primary() {
    let old = server();
    let new = old.start_replica().unwrap();
    let address = Lossy::start(old.address()).unwrap();
    let url = format!("redis://{}/", address.address());
    let (gate, policy) = (connect(Options::single(url).once()).await, daily(5));
    assert!(acquire(&gate, &policy, "p").await.unwrap());
    follows(&new, &gate.key(&policy, "p"));
    old.yield_to(&new).unwrap();
    let error = gate.standing(&policy, "p").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("replica"), "{error}");
    address.redirect(new.address());
    // For a moment after a failed attempt no other one is made.
    let found = loop {
        if let Ok(found) = gate.standing(&policy, "p").await {
            break found;
        }
    };
    assert_eq!(found[0].used, 1);
}
