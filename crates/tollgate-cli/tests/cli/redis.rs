//! The commands on Redis: `[store] kind = "redis"`.

use serde_json::{Value, json};
use tollgate_testkit::servers::{Append, Authority, Lossy, Redis, RedisSentinel, eventually};

use crate::folder::Folder;
use crate::running::{Broker, get};
use crate::stores::on;
use crate::strategies::Caller;

/// A folder on the server at `url`, where an outage refuses and probes are far apart.
fn closed(store: &str) -> Folder {
    let limit = r#"{ name = "all", unit = "requests", rule = "token-bucket", capacity = 1000, refill = "1/d" }"#;
    Folder::with(&format!(
        "[store]\nkind = \"redis\"\n{store}\n\
         [[policy]]\nname = \"api\"\non_store_failure = \"closed\"\nlimits = [{limit}]\n"
    ))
}

/// Reads the broker's log up to a line with `text`, and returns what was read.
fn logs_until(broker: &mut Broker, text: &str) -> String {
    let mut log = String::new();
    while !log.contains(text) {
        let line = broker.error_line();
        assert!(!line.is_empty(), "the log ended without {text:?}: {log}");
        log += &line;
    }
    log
}

fn permit_of(answer: Option<(u16, Value)>) -> String {
    let (status, body) = answer.expect("an answer");
    assert_eq!(status, 200, "{body}");
    body["permit"].as_str().expect("a permit").to_owned()
}

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

/// While the address leads to a replica, the broker is not ready.
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
    let admits = || {
        let (status, _) = caller.ask("api").expect("an answer");
        (status == 200).then_some(())
    };
    eventually(admits).expect("it asks the new primary");
    let (status, body) = caller.post("/v1/release", &json!({ "permit": first })).expect("one");
    assert_eq!(status, 200, "{body}");
    sentinel.await_replica(&one).expect("the old primary follows");
    other.process().kill().expect("it ends");
    sentinel.await_primary(&one).expect("a failover");
    eventually(admits).expect("it asks the next primary");
    assert_eq!(folder.run("acquire api p7").code, 0);
}

/// Settings under which limits do not hold are told when a broker starts.
#[test]
fn a_broker_warns_of_settings_under_which_limits_do_not_hold() {
    let redis = Redis::start_with(Append::Never, "--maxmemory-policy allkeys-lru").expect("one");
    let mut broker = Broker::start(&closed(&format!("url = \"{}\"", redis.url())), "");
    let log = logs_until(&mut broker, "nothing is kept on disk");
    assert!(log.contains("WARN") && log.contains("maxmemory-policy is allkeys-lru"), "{log}");
    let safe = Redis::start_with(Append::Always, "").expect("a server");
    let broker = Broker::start(&closed(&format!("url = \"{}\"", safe.url())), "");
    let (_, _, log) = broker.end("-TERM");
    assert!(!log.contains("maxmemory") && !log.contains("on disk"), "{log}");
}

/// A Redis that was flushed is noticed by every broker, and permits from before are still accepted.
#[test]
fn a_flushed_redis_is_told_and_permits_survive() {
    let redis = Redis::start().expect("a server");
    let folder = closed(&format!("url = \"{}\"", redis.url()));
    let mut brokers = [Broker::start(&folder, ""), Broker::start(&folder, "")];
    let before = permit_of(Caller::of(&brokers[0]).ask("api"));
    redis.command(&["flushall"]).expect("it is flushed");
    for broker in &mut brokers {
        logs_until(broker, "Redis lost its data: every subject starts fresh");
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
    logs_until(&mut broker, "permits are sealed with the key that the store has now");
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

/// With `wait_replicas`, what no replica has is not admitted, however often the broker or the command tries.
#[test]
fn wait_replicas_holds_through_the_broker_and_the_command() {
    let primary = Redis::start().expect("a server");
    let mut replica = primary.start_replica().expect("a replica");
    let store = format!("url = \"{}\"\nwait_replicas = 1\nattempt_timeout = \"1s\"", primary.url());
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

/// A url of something else is refused without being asked, and without its password.
#[test]
fn a_url_that_is_not_of_redis_is_refused() {
    for (store, shown) in [
        ("url = \"http://:s3cret@x/\"", "http://x/"),
        ("url = \"x\"", "an unreadable url"),
        ("url = \"redis://:s3cret@x/first\"", "redis://x/first"),
        ("url = \"redis://a/, http://b/\"\ncluster = true", "http://b/"),
    ] {
        let ran = closed(store).run("policies check tollgate.toml");
        let says =
            format!("{shown} is not the url of a Redis server; use redis://[user:password@]host");
        assert!(ran.code == 2 && ran.err.contains(&says), "{store}: {}", ran.err);
        assert!(!ran.err.contains("s3cret"), "{}", ran.err);
    }
    for store in [
        "url = \"redis://:s3cret@x:6379/1\"",
        "url = \"rediss://x\"",
        "url = \"valkey://x/\"",
        "url = \"redis://a/, redis://b:7000\"\ncluster = true",
    ] {
        let ran = closed(store).run("policies check tollgate.toml");
        assert_eq!(ran.code, 0, "{store}: {}", ran.err);
    }
}

/// Mistakes about Sentinel are shown with what would be right.
#[test]
fn wrong_sentinel_settings_are_refused() {
    let sentinel = "sentinel = [\"127.0.0.1:26379\"]\n";
    for (store, says) in [
        (sentinel.to_owned(), "sentinel needs master"),
        ("master = \"m\"\n".to_owned(), "add sentinel"),
        ("url = \"redis://x/\"\npassword = \"p\"\n".to_owned(), "put it into the url"),
        (format!("{sentinel}master = \"m\"\nurl = \"redis://x/\"\n"), "exclude each other"),
        (format!("{sentinel}master = \"m\"\ncluster = true\n"), "a cluster has no sentinels"),
        ("sentinel = []\nmaster = \"m\"\n".to_owned(), "sentinel is empty"),
        ("sentinel = [\"redis://x\"]\nmaster = \"m\"\n".to_owned(), "is not host:port"),
    ] {
        let ran = closed(&store).run("policies check tollgate.toml");
        assert!(ran.code == 2 && ran.err.contains(says), "{store}: {}", ran.err);
    }
    let redis = Redis::start().expect("a server");
    let real = RedisSentinel::start(&redis, "").expect("a sentinel");
    let named = closed(&format!("sentinel = [\"{}\"]\nmaster = \"other\"\n", real.address()));
    let ran = named.run("acquire api p7");
    assert!(ran.code == 2 && ran.err.contains("knows no master \"other\""), "{}", ran.err);
    let absent = closed("sentinel = [\"127.0.0.1:1\"]\nmaster = \"m\"\n").run("acquire api p7");
    assert!(absent.code == 2 && absent.err.contains("no sentinel"), "{}", absent.err);
}

/// The password comes from the environment or a file, and no message shows it.
#[test]
fn a_secret_url_is_read_from_outside_and_never_shown() {
    let redis = Redis::start_with(Append::Never, "--requirepass s3cret").expect("a server");
    let place = redis.url().replace("redis://", "");
    let by_file = on("[store]\nkind = \"redis\"\nurl_file = \"redis-url\"\n");
    by_file.write("redis-url", &format!("redis://:s3cret@{place}\n"));
    assert_eq!(by_file.run("acquire llm p7").code, 0);
    by_file.write("redis-url", &format!("redis://:s3cret-too@{place}\n"));
    let ran = by_file.run("acquire llm p7");
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("password is wrong") && !ran.err.contains("s3cret"), "{}", ran.err);
    let by_variable = on("[store]\nkind = \"redis\"\nurl_env = \"TOLLGATE_TEST_REDIS\"\n");
    let mut command = by_variable.command("acquire llm p7");
    command.env("TOLLGATE_TEST_REDIS", format!("redis://:s3cret@{place}"));
    assert_eq!(command.output().expect("the binary runs").status.code(), Some(0));
    let ran = by_variable.run("acquire llm p7");
    assert!(ran.code == 2 && ran.err.contains("TOLLGATE_TEST_REDIS"), "{}", ran.err);
}

/// Over TLS, with an authority of one's own that the configuration names.
#[test]
fn a_server_with_tls_is_reached_with_its_authority_and_not_without() {
    let authority = Authority::new().expect("an authority");
    let redis = Redis::start_tls(&authority).expect("a server");
    let url = format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url());
    let named = on(&format!("{url}authority_file = \"authority.pem\"\n"));
    let missing = named.run("acquire llm p7");
    assert!(missing.code == 2 && missing.err.contains("authority.pem"), "{}", missing.err);
    std::fs::write(named.path().join("authority.pem"), authority.pem()).expect("a file");
    let trusted = named.run("acquire llm p7");
    assert_eq!(trusted.code, 0, "{}", trusted.err);
    let refused = on(&url).run("acquire llm p7");
    assert!(refused.code == 2 && refused.err.contains("authority_file"), "{}", refused.err);
}
