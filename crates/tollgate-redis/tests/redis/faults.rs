//! What goes wrong, and what is said about it.

use std::error::Error as _;

use tollgate::clock::SystemClock;
use tollgate::entries::EntryStore;
use tollgate::{Ask, Clock, Error, ErrorKind, GateExt, Span};
use tollgate_redis::{CONNECT_TIMEOUT, Options, Redis};
use tollgate_testkit::servers::{self, Append, Port};

use crate::{acquire, admitted, connect, connect_hasty, daily, server, used, used_once_back};

/// Scripts are loaded again when the server forgot them (stores note 3.1: the most repeated incident of its kind).
#[tokio::test]
async fn a_flushed_script_is_sent_again() {
    let redis = server();
    let (gate, policy) = (connect(Options::single(redis.url())).await, daily(5));
    assert!(acquire(&gate, &policy, "p").await.unwrap());
    redis.command(&["script", "flush"]).unwrap();
    assert!(acquire(&gate, &policy, "p").await.unwrap());
    assert_eq!(used(&gate, &policy, "p").await, 2);
}

/// A server without persistence forgets everything when it is killed: every subject begins with a full limit again. This
/// is the most that a crash of Redis may forget, and it is documented.
#[tokio::test]
async fn a_crash_without_persistence_forgets_what_was_used() {
    let mut redis = server();
    let (gate, policy) = (connect(Options::single(redis.url())).await, daily(5));
    assert!(acquire(&gate, &policy, "p").await.unwrap());
    redis.process().kill().unwrap();
    let down = acquire(&gate, &policy, "p").await.unwrap_err();
    assert_eq!(down.kind(), ErrorKind::Unavailable, "{down}");
    redis.process().restart().unwrap();
    assert_eq!(used_once_back(&gate, &policy, "p").await, 0);
    assert!(acquire(&gate, &policy, "p").await.unwrap());
}

/// R004.5: with `appendonly yes` and `appendfsync always` nothing that was answered is forgotten, killed or stopped.
#[tokio::test]
async fn with_appendonly_a_crash_forgets_nothing() {
    let mut redis = servers::Redis::start_with(Append::Always, "").unwrap();
    let (gate, policy) = (connect(Options::single(redis.url())).await, daily(5));
    for expected in 1..=4 {
        assert!(acquire(&gate, &policy, "p").await.unwrap());
        if expected % 2 == 0 {
            redis.process().kill().unwrap();
        }
        redis.process().restart().unwrap();
        assert_eq!(used_once_back(&gate, &policy, "p").await, expected);
    }
}

/// A paused server delays callers by at most the timeout, and goes on where it was.
#[tokio::test]
async fn a_paused_server_is_unavailable_within_the_timeout() {
    let mut redis = server();
    let options = Options::single(redis.url()).attempt_timeout(Span::from_millis(200));
    let (hasty, policy) = (connect_hasty(options).await, daily(5));
    // What must be answered is asked with patience: a busy machine may take longer than the timeout.
    let gate = connect(Options::single(redis.url())).await;
    assert!(acquire(&gate, &policy, "p").await.unwrap());
    redis.process().pause().unwrap();
    let start = SystemClock.now();
    let slow = acquire(&hasty, &policy, "p").await.unwrap_err();
    let took = SystemClock.now().since(start);
    redis.process().resume().unwrap();
    assert_eq!(slow.kind(), ErrorKind::TimedOut, "{slow}");
    assert!(
        slow.to_string().contains("after 200ms") || slow.to_string().contains("in time"),
        "{slow}"
    );
    assert!(took < CONNECT_TIMEOUT, "{took}");
    // It is unknown whether the ask was carried out, but it is charged at most once.
    assert!(used_once_back(&gate, &policy, "p").await <= 2);
}

/// The kind and the text of an error, after looking for secrets in everything that could be printed.
fn kind_and_text(error: &Error) -> (ErrorKind, String) {
    let mut text = format!("{error} {error:?}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(" {error} {error:?}");
        cause = error.source();
    }
    assert!(!text.contains("s3cret"), "{text}");
    (error.kind(), error.to_string())
}

async fn refused(url: String) -> (ErrorKind, String) {
    kind_and_text(&Redis::open(Options::single(url)).await.unwrap_err())
}

#[tokio::test]
async fn each_way_to_misconnect_has_its_own_text() {
    let redis = servers::Redis::start_with(Append::Never, "--requirepass s3cret-right").unwrap();
    let place = redis.url().replace("redis://", "");
    let unused = Port::free().unwrap();
    for (url, kind, text) in [
        (format!("redis://:s3cret-wrong@{place}"), ErrorKind::Misconfigured, "password is wrong"),
        (format!("redis://nobody:s3cret@{place}"), ErrorKind::Misconfigured, "password is wrong"),
        (format!("redis://{place}"), ErrorKind::Misconfigured, "password is wrong"),
        (
            format!("redis://:s3cret@127.0.0.1:{}", unused.number()),
            ErrorKind::Unavailable,
            "nothing listens",
        ),
        ("redis//s3cret".to_owned(), ErrorKind::Invalid, "the url"),
        (format!("rediss://:s3cret@{place}"), ErrorKind::Unavailable, "could not connect"),
    ] {
        let (got, said) = refused(url).await;
        assert!(got == kind && said.contains(text), "expected {kind:?} {text:?}: {got:?} {said}");
    }
    connect(Options::single(format!("redis://:s3cret-right@{place}"))).await;
}

/// What the README says that a user needs.
pub(crate) const RULES: &str = "on >s3cret ~tg:* +evalsha +eval +time +get +set +hget +hmget +hset +hdel +del +pexpireat +ping +role +wait";

/// A user who may run nothing but what the README lists can do everything; a missing permission is named in the error.
#[tokio::test]
async fn an_acl_user_needs_the_documented_permissions_and_no_others() {
    let redis = server();
    let place = redis.url().replace("redis://", "");
    for (user, more) in [("full", ""), ("less", "-hset")] {
        let mut words = vec!["acl", "setuser", user];
        words.extend(RULES.split(' ').chain(more.split_whitespace()));
        assert_eq!(redis.command(&words).unwrap(), "OK\n");
    }
    let (policy, gate) =
        (daily(5), connect(Options::single(format!("redis://full:s3cret@{place}"))).await);
    let permit = admitted(gate.acquire(&Ask::new(&policy, "p").id("x")).await.unwrap());
    assert!(gate.release(&permit).await.unwrap());
    assert!(acquire(&gate, &policy, "p").await.unwrap());
    assert!(acquire(&gate, &daily(6), "p").await.unwrap());
    assert!(gate.reset(&policy, "p").await.unwrap());
    let gate = connect(Options::single(format!("redis://less:s3cret@{place}"))).await;
    let (kind, text) = kind_and_text(&acquire(&gate, &policy, "q").await.unwrap_err());
    assert!(kind == ErrorKind::Misconfigured && text.contains("ACL SETUSER"), "{kind:?} {text}");
    let gate =
        connect(Options::single(format!("redis://full:s3cret@{place}")).prefix("other")).await;
    let (kind, text) = kind_and_text(&acquire(&gate, &policy, "q").await.unwrap_err());
    assert!(kind == ErrorKind::Misconfigured && text.contains("ACL SETUSER"), "{kind:?} {text}");
}

/// The permissions in the error are enough for asks, for `export` and `repair`, and for the checks at the start.
#[tokio::test]
async fn the_printed_permissions_are_complete() {
    let redis = server();
    let place = redis.url().replace("redis://", "");
    let app = Options::single(format!("redis://app:s3cret@{place}"));
    let set = |rules: &str| {
        let words: Vec<&str> = "acl setuser app".split(' ').chain(rules.split(' ')).collect();
        assert_eq!(redis.command(&words).unwrap(), "OK\n");
    };
    set("on >s3cret +ping");
    let gate = connect(app.clone()).await;
    let text = acquire(&gate, &daily(5), "p").await.unwrap_err().to_string();
    let rules = text.split_once("ACL SETUSER name ").unwrap().1.split_once(',').unwrap().0;
    set(rules);
    let gate = connect(app).await;
    assert!(acquire(&gate, &daily(5), "p").await.unwrap());
    let page = EntryStore::page(&gate, b"", None).await.unwrap();
    assert_eq!(page.entries.len(), 1);
    let warnings = gate.check_server().await;
    assert!(!warnings.iter().any(|warning| warning.contains("not checked")), "{warnings:?}");
}

#[tokio::test]
async fn a_replica_a_full_server_and_a_foreign_key_are_distinguished() {
    let redis = server();
    let (gate, policy) = (connect(Options::single(redis.url())).await, daily(5));
    redis.command(&["set", &gate.key(&policy, "foreign"), "mine"]).unwrap();
    let (kind, text) = kind_and_text(&acquire(&gate, &policy, "foreign").await.unwrap_err());
    assert!(kind == ErrorKind::Corrupt && text.contains("another program"), "{kind:?} {text}");
    redis.command(&["config", "set", "maxmemory", "1"]).unwrap();
    let (kind, text) = kind_and_text(&acquire(&gate, &policy, "p").await.unwrap_err());
    assert!(kind == ErrorKind::Full && text.contains("maxmemory"), "{kind:?} {text}");
    redis.command(&["config", "set", "maxmemory", "0"]).unwrap();
    redis.command(&["replicaof", "127.0.0.1", "1"]).unwrap();
    let (kind, text) = kind_and_text(&acquire(&gate, &policy, "p").await.unwrap_err());
    assert!(kind == ErrorKind::Unavailable && text.contains("replica"), "{kind:?} {text}");
}

/// Checks at the start that the server does not allow are named, and do not fail.
#[tokio::test]
async fn settings_that_a_user_may_not_read_are_named() {
    let redis = server();
    let place = redis.url().replace("redis://", "");
    for (more, warning) in [
        ("+info +config|get", "nothing is kept on disk"),
        ("+info", "persistence of the server was not checked"),
        ("+config|get", "eviction and persistence of the server were not checked"),
        ("+ping", "eviction and persistence of the server were not checked"),
    ] {
        let mut words = vec!["acl", "setuser", "app", "reset"];
        words.extend(RULES.split(' ').chain(more.split(' ')));
        assert_eq!(redis.command(&words).unwrap(), "OK\n");
        let gate = connect(Options::single(format!("redis://app:s3cret@{place}"))).await;
        let warnings = gate.check_server().await;
        assert!(warnings.len() == 1 && warnings[0].contains(warning), "{more}: {warnings:?}");
        assert!(acquire(&gate, &daily(5), "p").await.unwrap());
    }
}
