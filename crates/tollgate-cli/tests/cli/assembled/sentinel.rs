//! Redis behind Sentinel that refuses the broker, a Redis that loads its data, and one that hides its settings.

use tollgate_testkit::servers::{Append, Redis, RedisSentinel, eventually};

use super::credentials::refused;
use super::{Assembled, lines};

const MASTER: &str = RedisSentinel::MASTER;

/// A broker that found its primary by `sentinel`.
fn behind(sentinel: &RedisSentinel) -> Assembled {
    let address = sentinel.address();
    Assembled::start(&format!(
        "[store]\nkind = \"redis\"\nsentinel = [\"{address}\"]\nmaster = \"{MASTER}\"\nsentinel_password = \"first\"\n"
    ))
}

/// The primary is demoted, and Sentinel does not say where the next one is.
#[test]
fn sentinel_that_refuses_the_broker_is_for_the_operator() {
    let redis = Redis::start().expect("a server");
    let sentinel = RedisSentinel::start_with_password(&redis, "", "first").expect("a sentinel");
    let port = redis.address().port().to_string();
    let command = |words: &[&str]| {
        assert_eq!(sentinel.command(words).expect("it runs"), "OK\n");
    };
    let demote = || drop(redis.command(&["replicaof", "127.0.0.1", "1"]).expect("a replica"));
    let promote = || drop(redis.command(&["replicaof", "no", "one"]).expect("a primary"));
    refused(
        behind(&sentinel),
        || {
            command(&["acl", "setuser", "default", "resetpass", ">second"]);
            demote();
        },
        "Check sentinel_user and sentinel_password",
        || {
            command(&["-a", "second", "acl", "setuser", "default", "resetpass", ">first"]);
            promote();
        },
    );
    refused(
        behind(&sentinel),
        || {
            command(&["sentinel", "remove", MASTER]);
            demote();
        },
        "knows no master",
        || {
            command(&["sentinel", "monitor", MASTER, "127.0.0.1", &port, "1"]);
            promote();
        },
    );
}

#[test]
fn a_redis_that_loads_its_data_is_unavailable_until_it_has_it() {
    // A hundredth of a second for each key, and clients are served in between.
    let slow =
        "--key-load-delay 10000 --loading-process-events-interval-bytes 1024 --rdbcompression no";
    let mut redis = Redis::start_with(Append::Never, slow).expect("a server");
    let assembled = Assembled::start(&redis.snippet());
    assembled.admits_five("alice");
    let fill = "for i = 1, 5000 do redis.call('set', 'other' .. i, string.rep('x', 1024)) end";
    redis.command(&["eval", fill, "0"]).expect("it is filled");
    assert_eq!(redis.command(&["save"]).expect("it is saved"), "OK\n");
    redis.process().kill().expect("it is killed");
    redis.process().restart().expect("it listens");
    let (status, body) = assembled.ask("closed", "bob");
    assert_eq!((status, &body["kind"]), (503, &"unavailable".into()), "{body}");
    assert_eq!(assembled.ask("open", "bob").1["degraded"], true);
    eventually(|| (assembled.ready().0 == 503).then_some(())).expect("it is not ready");
    eventually(|| redis.command(&["config", "set", "key-load-delay", "0"]).ok()).expect("a reply");
    eventually(|| (assembled.ask("closed", "bob").0 == 200).then_some(())).expect("it serves");
    eventually(|| (assembled.ready().0 == 200).then_some(())).expect("it is ready");
    assert_eq!(assembled.ask("five", "alice").0, 429, "what was used is still used");
    let log = assembled.log();
    assert!(log.contains("it is loading its data; retry later"), "{log}");
    assert!(!log.contains("reconnected to the primary"), "{log}");
}

/// A check that the server does not allow is named at the start, and the broker serves.
#[test]
fn a_redis_that_hides_its_settings_is_served_with_a_warning() {
    let redis = Redis::start().expect("a server");
    let rules = "on >s3cret ~tg:* +evalsha +eval +time +get +set +hget +hmget +hset +hdel +del +pexpireat +ping +role \
                 +wait +info";
    let words: Vec<&str> = "acl setuser app".split(' ').chain(rules.split_whitespace()).collect();
    assert_eq!(redis.command(&words).expect("a user"), "OK\n");
    let url = redis.url().replace("redis://", "redis://app:s3cret@");
    let assembled = Assembled::start(&format!("[store]\nkind = \"redis\"\nurl = \"{url}\"\n"));
    assembled.admits_five("alice");
    assert_eq!(assembled.ready().0, 200);
    let log = assembled.log();
    assert!(log.contains("persistence of the server was not checked"), "{log}");
    assert_eq!(lines(&log, "ERROR"), 0, "{log}");
}
