//! Sentinel with passwords, users and TLS, and what is said when it refuses this program.

use tollgate::{Error, ErrorKind};
use tollgate_redis::{Options, Redis};
use tollgate_testkit::servers::{self, Append, Authority, RedisSentinel};

use crate::{acquire, connect, daily, server, used};

const MASTER: &str = RedisSentinel::MASTER;
const PASSWORD: &str = "s3cret-sentinel";
const REFUSED: &str = "Check sentinel_user and sentinel_password";

fn by(sentinel: &RedisSentinel) -> Options {
    Options::sentinel([sentinel.address().to_string()], MASTER)
}

type Step<'a> = &'a dyn Fn();

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

async fn refused(options: Options) -> Error {
    Redis::open(options).await.expect_err("Sentinel refuses this program")
}

/// Promotes `replica`, and demotes `primary`. The gate charges the new one, on top of what was charged before.
async fn fails_over(
    options: Options,
    sentinel: &RedisSentinel,
    [primary, replica]: [&servers::Redis; 2],
) {
    let (gate, policy) = (connect(options).await, daily(5));
    assert!(acquire(&gate, &policy, "p").await.unwrap());
    // Sentinel waits for the replica while it demotes the primary.
    sentinel.await_replica(replica).unwrap();
    assert_eq!(sentinel.command(&["sentinel", "failover", MASTER]).unwrap(), "OK\n");
    sentinel.await_primary(replica).unwrap();
    // Until then the old primary takes writes.
    sentinel.await_replica(primary).unwrap();
    let admitted = loop {
        match acquire(&gate, &policy, "p").await {
            Ok(is_admitted) => break is_admitted,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
    };
    assert!(admitted);
    assert_eq!(used(&gate, &policy, "p").await, 2);
}

#[tokio::test]
async fn sentinel_and_servers_with_passwords_of_their_own() {
    let passwords = "--requirepass s3cret-server --masterauth s3cret-server";
    let primary = servers::Redis::start_with(Append::Never, passwords).unwrap();
    let port = primary.address().port();
    let replica = format!("{passwords} --replicaof 127.0.0.1 {port}");
    let replica = servers::Redis::start_with(Append::Never, &replica).unwrap();
    let lines = format!("sentinel auth-pass {MASTER} s3cret-server");
    let sentinel = RedisSentinel::start_with_password(&primary, &lines, PASSWORD).unwrap();
    let options = by(&sentinel).login(None, some("s3cret-server"));
    for login in [(None, None), (None, some("wrong")), (some("nobody"), some(PASSWORD))] {
        let error = refused(options.clone().sentinel_login(login.0, login.1)).await;
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains(REFUSED), "{error}");
        assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
    }
    let options = options.sentinel_login(None, some(PASSWORD));
    let error = refused(options.clone().login(None, some("wrong"))).await;
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    assert!(!error.to_string().contains("sentinel_password"), "{error}");
    fails_over(options, &sentinel, [&primary, &replica]).await;
}

/// One command is all that a user of the sentinels needs.
#[tokio::test]
async fn sentinel_with_a_user_that_may_only_look_up_the_primary() {
    let primary = server();
    let users = format!(
        "user full on >{PASSWORD} -@all +sentinel|get-master-addr-by-name\nuser less on >{PASSWORD} -@all +ping"
    );
    let sentinel = RedisSentinel::start(&primary, &users).unwrap();
    let login = |user: &str| by(&sentinel).sentinel_login(some(user), some(PASSWORD));
    let gate = connect(login("full")).await;
    assert!(acquire(&gate, &daily(5), "p").await.unwrap());
    let error = refused(login("less")).await;
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("+sentinel|get-master-addr-by-name"), "{error}");
}

#[tokio::test]
async fn an_unknown_master_is_misconfigured_and_an_absent_sentinel_is_not() {
    let primary = server();
    let sentinel = RedisSentinel::start(&primary, "").unwrap();
    let (known, absent) = (sentinel.address().to_string(), "127.0.0.1:1".to_owned());
    let error = refused(Options::sentinel([known, absent.clone()], "other")).await;
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("knows no master \"other\""), "{error}");
    let error = refused(Options::sentinel([absent], MASTER)).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

/// While the primary is gone, the refusal by Sentinel is what the operator has to know.
#[tokio::test]
async fn sentinel_that_refuses_at_run_time_is_misconfigured_until_it_does_not() {
    let mut primary = server();
    let sentinel = RedisSentinel::start_with_password(&primary, "", PASSWORD).unwrap();
    let options = by(&sentinel).sentinel_login(None, some(PASSWORD));
    let (gate, policy) = (connect(options).await, daily(5));
    let port = primary.address().port().to_string();
    let password = |word: &str| {
        let words = ["acl", "setuser", "default", "resetpass", word];
        assert_eq!(sentinel.command(&words).unwrap(), "OK\n");
    };
    let faults: [(Step<'_>, &str, Step<'_>); 2] = [
        (
            &|| password(">changed"),
            REFUSED,
            // This connection of redis-cli knows the old password.
            &|| {
                let new = format!(">{PASSWORD}");
                let words = ["-a", "changed", "acl", "setuser", "default", "resetpass", &new];
                assert_eq!(sentinel.command(&words).unwrap(), "OK\n");
            },
        ),
        (
            &|| drop(sentinel.command(&["sentinel", "remove", MASTER]).unwrap()),
            "knows no master",
            &|| {
                let words = ["sentinel", "monitor", MASTER, "127.0.0.1", &port, "1"];
                assert_eq!(sentinel.command(&words).unwrap(), "OK\n");
            },
        ),
    ];
    for (break_it, why, mend) in faults {
        assert!(acquire(&gate, &policy, "p").await.unwrap());
        break_it();
        // The primary still serves, so nothing is wrong for callers.
        assert!(acquire(&gate, &policy, "p").await.unwrap());
        primary.process().kill().unwrap();
        // The first call learns that the primary is gone. For a moment after an attempt no other one is made.
        while !acquire(&gate, &policy, "p").await.unwrap_err().to_string().contains(why) {}
        for _ in 0..3 {
            let error = acquire(&gate, &policy, "p").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
            assert!(error.to_string().contains(why), "{error}");
        }
        mend();
        primary.process().restart().unwrap();
        let serves = async || acquire(&gate, &policy, "p").await.is_ok();
        while !serves().await {}
    }
    // What was refused before does not explain a later failure.
    primary.process().kill().unwrap();
    let kind = async || acquire(&gate, &policy, "p").await.unwrap_err().kind();
    while kind().await == ErrorKind::Misconfigured {}
    for _ in 0..3 {
        assert_eq!(kind().await, ErrorKind::Unavailable);
    }
}

/// A killed primary is named by its own address, not by those of the sentinels, which reply.
#[tokio::test]
async fn a_lost_primary_is_named_by_its_address() {
    let mut primary = server();
    let sentinel = RedisSentinel::start(&primary, "").unwrap();
    let (gate, policy) = (connect(by(&sentinel)).await, daily(5));
    assert!(acquire(&gate, &policy, "p").await.unwrap());
    primary.process().kill().unwrap();
    let error = acquire(&gate, &policy, "p").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let text = error.to_string();
    assert!(text.contains(&primary.address().to_string()), "{text}");
    assert!(!text.contains(&sentinel.address().to_string()), "{text}");
    assert!(text.contains("has not elected another primary"), "{text}");
}

#[tokio::test]
async fn sentinel_and_servers_with_tls() {
    let (authority, other) = (Authority::new().unwrap(), Authority::new().unwrap());
    let primary = servers::Redis::start_tls(&authority).unwrap();
    let follow = format!("--replicaof 127.0.0.1 {}", primary.address().port());
    let replica = servers::Redis::start_tls_with(&authority, &follow).unwrap();
    let sentinel = RedisSentinel::start_tls(&primary, &authority).unwrap();
    let options = by(&sentinel).tls();
    for options in [options.clone(), options.clone().authority(other.pem())] {
        let error = refused(options).await;
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains("authority_file"), "{error}");
    }
    fails_over(options.authority(authority.pem()), &sentinel, [&primary, &replica]).await;
}
