//! A Redis that loses its data, or is set up so that it may.

use serde_json::json;
use tollgate_testkit::servers::{Append, Redis};

use super::permit_of;
use crate::redis::closed;
use crate::running::Broker;
use crate::strategies::Caller;

/// A Redis that was flushed is noticed by every broker, and permits from before are still accepted.
#[test]
fn a_flushed_redis_is_logged_and_permits_survive() {
    let redis = Redis::start().expect("a server");
    let folder = closed(&format!("url = \"{}\"", redis.url()));
    let mut brokers = [Broker::start(&folder, ""), Broker::start(&folder, "")];
    let before = permit_of(Caller::of(&brokers[0]).ask("api"));
    redis.command(&["flushall"]).expect("it is flushed");
    for broker in &mut brokers {
        broker.log_until("Redis lost its data: every subject starts fresh");
    }
    let settle = json!({ "permit": before });
    let (status, body) = Caller::of(&brokers[1]).post("/v1/release", &settle).expect("an answer");
    assert_eq!(status, 200, "{body}");
    let after = permit_of(Caller::of(&brokers[0]).ask("api"));
    let (status, body) =
        Caller::of(&brokers[1]).post("/v1/release", &json!({ "permit": after })).expect("one");
    assert!(status == 200 && body["changed"] == true, "{body}");
}

/// Where another program was faster to make a new key, brokers adopt it and accept the one before too.
#[test]
fn brokers_adopt_the_key_of_a_flushed_redis() {
    let redis = Redis::start().expect("a server");
    let folder = closed(&format!("url = \"{}\"", redis.url()));
    let mut broker = Broker::start(&folder, "");
    let caller = Caller::of(&broker);
    let before = permit_of(caller.ask("api"));
    // What the other program does, in one step.
    let (key, mark) = ("k".repeat(32), "m".repeat(8));
    let script = "redis.call('flushall') return redis.call('hset', 'tg:{permit-key}', 'key', ARGV[1], 'mark', ARGV[2])";
    redis.command(&["eval", script, "0", &key, &mark]).expect("it is flushed");
    broker.log_until("permits are sealed with the key that the store has now");
    let permit = permit_of(caller.ask("api"));
    for permit in [&before, &permit] {
        let (status, body) =
            caller.post("/v1/release", &json!({ "permit": permit })).expect("an answer");
        assert_eq!(status, 200, "{body}");
    }
    // A command, which only knows the new key, accepts the new permit and not the old one.
    let permit = permit_of(caller.ask("api"));
    assert_eq!(folder.run(&format!("release {permit}")).code, 0);
    assert_eq!(folder.run(&format!("release {before}")).code, 2);
}

/// A broker warns at the start of settings under which limits do not hold.
#[test]
fn a_broker_warns_of_settings_under_which_limits_do_not_hold() {
    let redis = Redis::start_with(Append::Never, "--maxmemory-policy allkeys-lru").expect("one");
    let mut broker = Broker::start(&closed(&format!("url = \"{}\"", redis.url())), "");
    let log = broker.log_until("nothing is kept on disk");
    assert!(log.contains("WARN") && log.contains("maxmemory-policy is allkeys-lru"), "{log}");
    let safe = Redis::start_with(Append::Always, "").expect("a server");
    let broker = Broker::start(&closed(&format!("url = \"{}\"", safe.url())), "");
    let (_, _, log) = broker.end("-TERM");
    assert!(!log.contains("maxmemory") && !log.contains("on disk"), "{log}");
}

/// A Redis that is out of memory refuses new usage. That is the error of each ask, and no outage begins and ends with it.
#[test]
fn a_redis_out_of_memory_is_full_and_no_outage() {
    let redis = Redis::start().expect("a server");
    let folder = closed(&format!("url = \"{}\"", redis.url()));
    let broker = Broker::start(&folder, "");
    let caller = Caller::of(&broker);
    permit_of(caller.ask("api"));
    redis.command(&["config", "set", "maxmemory", "1"]).expect("it is set");
    for _ in 0..5 {
        let (status, body) = caller.ask("api").expect("an answer");
        assert_eq!((status, &body["kind"]), (503, &"full".into()), "{body}");
    }
    redis.command(&["config", "set", "maxmemory", "0"]).expect("it is set");
    permit_of(caller.ask("api"));
    let log = broker.end("-TERM").2;
    assert!(!log.contains("the store failed") && !log.contains("available again"), "{log}");
    assert_eq!(log.matches("could not answer").count(), 1, "{log}");
}
