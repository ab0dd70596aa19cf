//! A primary behind one address that is demoted, lost or loading its data.

use tollgate::{ErrorKind, GateExt};
use tollgate_redis::Options;
use tollgate_testkit::servers::{Append, Lossy, Redis, eventually};

use crate::{acquire, connect, daily, server, used};

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

/// A server that restarts with much data listens at once and replies LOADING.
#[tokio::test]
async fn a_server_that_loads_its_data_is_unavailable_until_it_has_it() {
    // A hundredth of a second for each key, and clients are served in between.
    let slow =
        "--key-load-delay 10000 --loading-process-events-interval-bytes 1024 --rdbcompression no";
    let mut redis = Redis::start_with(Append::Never, slow).unwrap();
    let (gate, policy) = (connect(Options::single(redis.url()).once()).await, daily(5));
    assert!(acquire(&gate, &policy, "p").await.unwrap());
    let fill = "for i = 1, 5000 do redis.call('set', 'other' .. i, string.rep('x', 1024)) end";
    redis.command(&["eval", fill, "0"]).unwrap();
    assert_eq!(redis.command(&["save"]).unwrap(), "OK\n");
    redis.process().kill().unwrap();
    redis.process().restart().unwrap();
    let loading = loop {
        let error = acquire(&gate, &policy, "p").await.expect_err("it takes most of a minute");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        // The connection to the killed server is lost first.
        if error.to_string().contains("loading") {
            break error;
        }
    };
    assert!(loading.to_string().contains("it is loading its data; retry later"), "{loading}");
    eventually(|| redis.command(&["config", "set", "key-load-delay", "0"]).ok()).unwrap();
    while acquire(&gate, &policy, "p").await.is_err() {}
    assert_eq!(used(&gate, &policy, "p").await, 2);
}

/// A replica without its primary replies MASTERDOWN if it must not serve old data.
#[tokio::test]
async fn a_replica_that_lost_its_primary_is_unavailable_until_it_is_promoted() {
    let mut primary = server();
    let replica = primary.start_replica().unwrap();
    replica.command(&["config", "set", "replica-serve-stale-data", "no"]).unwrap();
    let address = Lossy::start(primary.address()).unwrap();
    let url = format!("redis://{}/", address.address());
    let (gate, policy) = (connect(Options::single(url).once()).await, daily(5));
    assert!(acquire(&gate, &policy, "p").await.unwrap());
    follows(&replica, &gate.key(&policy, "p"));
    address.redirect(replica.address());
    primary.process().kill().unwrap();
    let down = loop {
        let error = acquire(&gate, &policy, "p").await.expect_err("there is no primary");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        if error.to_string().contains("primary (") {
            break error;
        }
    };
    assert!(down.to_string().contains("replica-serve-stale-data"), "{down}");
    replica.command(&["replicaof", "no", "one"]).unwrap();
    while acquire(&gate, &policy, "p").await.is_err() {}
    assert_eq!(used(&gate, &policy, "p").await, 2);
}
