//! A Redis whose primary changes, or whose replicas are away.

use serde_json::json;
use tollgate_testkit::servers::{Append, Lossy, Redis, RedisSentinel, eventually};

use super::permit_of;
use crate::redis::closed;
use crate::running::{Broker, get};
use crate::strategies::Caller;

/// A primary that is demoted behind one address costs no ask: the broker leaves it for the one that the address leads to.
#[test]
fn a_broker_leaves_a_demoted_primary_behind_one_address() {
    let old = Redis::start().expect("a server");
    let new = old.start_replica().expect("a replica");
    let address = Lossy::start(old.address()).expect("a proxy");
    let folder = closed(&format!("url = \"redis://{}/\"", address.address()));
    let broker = Broker::start(&folder, "");
    let caller = Caller::of(&broker);
    permit_of(caller.ask("api"));
    address.redirect(new.address());
    old.yield_to(&new).expect("a failover");
    permit_of(caller.ask("api"));
    assert!(get(&broker.url, "/readyz").starts_with("HTTP/1.1 200"));
}

/// While the address leads to a replica, nothing is admitted and the broker is not ready.
#[test]
fn a_broker_on_a_replica_is_not_ready() {
    let old = Redis::start().expect("a server");
    let new = old.start_replica().expect("a replica");
    let folder = closed(&format!("url = \"{}\"", old.url()));
    let broker = Broker::start(&folder, "");
    assert!(get(&broker.url, "/readyz").starts_with("HTTP/1.1 200"));
    old.yield_to(&new).expect("a failover");
    // The answer of the store counts for a second.
    let is_refused = || get(&broker.url, "/readyz").starts_with("HTTP/1.1 503").then_some(());
    eventually(is_refused).expect("it is not ready");
    let (status, body) = Caller::of(&broker).ask("api").expect("an answer");
    assert_eq!((status, &body["kind"]), (503, &"unavailable".into()), "{body}");
    let log = broker.end("-TERM").2;
    assert!(
        log.contains("the store failed; ") && log.contains("Point the url at the primary"),
        "{log}"
    );
}

/// The primary is found by Sentinel, again after a failover, and again after it was killed.
#[test]
fn a_broker_follows_sentinel() {
    let one = Redis::start_with(Append::Never, "--requirepass s3cret --masterauth s3cret");
    let one = one.expect("a server");
    let at = one.address();
    let replica = format!("--replicaof {} {}", at.ip(), at.port());
    let other = Redis::start_with(
        Append::Never,
        &format!("--requirepass s3cret --masterauth s3cret {replica}"),
    );
    let mut other = other.expect("a replica");
    let sentinel = RedisSentinel::start(&one, "sentinel auth-pass mymaster s3cret").expect("one");
    sentinel.await_replica(&other).expect("a replica that can be promoted");
    let folder = closed(&format!(
        "sentinel = [\"127.0.0.1:1\", \"{}\"]\nmaster = \"{}\"\npassword_file = \"secret\"\n\
         [fallback]\nprobe_min = \"100ms\"\nprobe_max = \"200ms\"",
        sentinel.address(),
        RedisSentinel::MASTER
    ));
    folder.write("secret", "s3cret\n");
    let broker = Broker::start(&folder, "");
    let caller = Caller::of(&broker);
    let first = permit_of(caller.ask("api"));
    assert_eq!(sentinel.command(&["sentinel", "failover", RedisSentinel::MASTER]).unwrap(), "OK\n");
    sentinel.await_primary(&other).expect("a failover");
    // Until then it takes writes, so a broker that stays with it would be served.
    sentinel.await_replica(&one).expect("the old primary follows");
    let admits = || {
        let (status, _) = caller.ask("api").expect("an answer");
        (status == 200).then_some(())
    };
    eventually(admits).expect("it asks the new primary");
    let (status, body) = caller.post("/v1/release", &json!({ "permit": first })).expect("one");
    assert_eq!(status, 200, "{body}");
    other.process().kill().expect("it ends");
    sentinel.await_primary(&one).expect("a failover");
    eventually(admits).expect("it asks the next primary");
    assert_eq!(folder.run("acquire api p7").code, 0);
}

/// With `wait_replicas`, what no replica has is not admitted, however often the broker or the command tries.
#[test]
fn wait_replicas_holds_through_the_broker_and_the_command() {
    let primary = Redis::start().expect("a server");
    let mut replica = primary.start_replica().expect("a replica");
    let store = format!("url = \"{}\"\nwait_replicas = 1\nattempt_timeout = \"4s\"", primary.url());
    let folder = closed(&store);
    let broker = Broker::start(&folder, "");
    let caller = Caller::of(&broker);
    permit_of(caller.ask("api"));
    replica.process().pause().expect("it stops");
    let (status, body) = caller.ask("api").expect("an answer");
    assert_eq!(status, 503, "{body}");
    let ran = folder.run("acquire api p7");
    assert!(ran.code == 2 && ran.err.contains("0 of 1 replicas"), "{}: {}", ran.code, ran.err);
    replica.process().resume().expect("it goes on");
    let ran = folder.run("acquire api p7");
    assert_eq!(ran.code, 0, "{}", ran.err);
}
