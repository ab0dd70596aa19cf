//! What is stored, for how long, and at what price.

use tollgate::core::bounds;
use tollgate::policy::{Period, Rule};
use tollgate::{
    Ask, CalendarWindow, Concurrency, Costs, Decision, ErrorKind, GateExt, Limit, Policy,
    RollingWindow, Span, Timestamp, TokenBucket,
};
use tollgate_redis::{Options, Redis};
use tollgate_testkit::servers::{self, Append};

use crate::{TRIES_MAX, acquire, admitted, connect, connect_hasty, daily, server};

/// How often the server ran `command`.
pub(crate) fn calls(redis: &servers::Redis, command: &str) -> u64 {
    let stats = redis.command(&["info", "commandstats"]).unwrap();
    let line =
        stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

/// One command per decision, counted by the server: admitted, denied, repeated, settled, released, looked at.
#[tokio::test]
async fn every_decision_is_exactly_one_command() {
    let redis = server();
    let gate = connect(Options::single(redis.url())).await;
    let day = Span::from_hours(24);
    let policy = Policy::new(
        "three",
        [
            Limit::new("rolling", "requests", RollingWindow::new(50, day)),
            Limit::new("bucket", "tokens", TokenBucket::per(1, day).burst(1_000)),
            Limit::new("daily", "requests", CalendarWindow::new(500, Period::Month)),
        ],
    )
    .unwrap();
    // The scripts are loaded by their first use.
    let permit = admitted(gate.acquire(&Ask::new(&policy, "warm")).await.unwrap());
    gate.settle(&permit, &Costs::new()).await.unwrap();
    gate.standing(&policy, "warm").await.unwrap();
    redis.command(&["config", "resetstat"]).unwrap();
    let (mut decisions, mut standings) = (0, 0);
    for number in 0..80_u64 {
        let id = format!("id-{}", number / 2);
        let ask = Ask::new(&policy, "p").cost("tokens", 3).id(id);
        let decision = gate.acquire(&ask).await.unwrap();
        decisions += 1;
        if let (Decision::Admitted(permit), 0) = (&decision, number % 8) {
            gate.settle(permit, &Costs::new().with("tokens", 2)).await.unwrap();
            gate.standing(&policy, "p").await.unwrap();
            decisions += 2;
            standings += 1;
        }
        if number % 3 == 0 {
            gate.acquire(&Ask::new(&policy, "p").cost("requests", 60)).await.unwrap();
            gate.acquire(&Ask::new(&policy, "p").cost("tokens", 1_000)).await.unwrap();
            decisions += 2;
        }
    }
    assert_eq!((calls(&redis, "evalsha"), calls(&redis, "eval")), (decisions, 0));
    // A standing is no decision, and a replica must not answer it.
    assert_eq!(calls(&redis, "role"), standings);
    let stats = redis.command(&["info", "commandstats"]).unwrap();
    let inside = "evalsha role time get set hget hmget hset pexpireat info config|resetstat";
    let inside: Vec<&str> = inside.split(' ').collect();
    for name in stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")) {
        let name = name.split(':').next().unwrap();
        assert!(inside.contains(&name), "a command of its own: {name}");
    }
}

/// Promise 3: a denial writes nothing, neither the value nor its expiry.
#[tokio::test]
async fn a_denial_writes_nothing() {
    let redis = server();
    let (gate, policy) = (connect(Options::single(redis.url())).await, daily(1));
    let key = gate.key(&policy, "p");
    assert!(acquire(&gate, &policy, "p").await.unwrap());
    let seen = || {
        (redis.command(&["hgetall", &key]).unwrap(), redis.command(&["pexpiretime", &key]).unwrap())
    };
    let before = seen();
    for cost in [1, 2, 50] {
        assert!(
            !gate
                .acquire(&Ask::new(&policy, "p").cost("requests", cost).id("x"))
                .await
                .unwrap()
                .is_admitted()
        );
    }
    assert_eq!(seen(), before);
    assert_eq!(calls(&redis, "hset"), 1);
    assert!(
        !gate.acquire(&Ask::new(&policy, "new").cost("requests", 2)).await.unwrap().is_admitted()
    );
    assert_eq!(redis.command(&["exists", &gate.key(&policy, "new")]).unwrap(), "0\n");
}

/// A key goes in the first millisecond in which it says what an absent one says, and not before.
#[tokio::test]
async fn a_key_expires_when_it_equals_an_absent_one() {
    let redis = server();
    let gate = connect(Options::single(redis.url())).await;
    let minute = Span::from_mins(1);
    let rules: [(&str, Rule); 5] = [
        ("continuous", TokenBucket::per(7, minute).burst(20).into()),
        ("interval", TokenBucket::per(3, minute).burst(20).at_boundaries().into()),
        ("rolling", RollingWindow::new(20, minute).into()),
        ("coarse", RollingWindow::new(20, minute).resolution(7).into()),
        ("slots", Concurrency::new(20, minute).into()),
    ];
    for (name, rule) in rules {
        let policy = Policy::new(name, [Limit::new("only", "requests", rule)]).unwrap();
        let expires = |subject: &str| -> u64 {
            let text = redis.command(&["pexpiretime", &gate.key(&policy, subject)]).unwrap();
            text.trim().parse().unwrap()
        };
        let ask = Ask::new(&policy, "plain").cost("requests", 5);
        let permit = admitted(gate.acquire(&ask).await.unwrap());
        let full_at = permit.limits[0].full_at.unwrap().as_micros();
        assert_eq!(expires("plain"), full_at.div_ceil(1_000), "{name}");
        let ask = Ask::new(&policy, "id").cost("requests", 5).id("x");
        let permit = admitted(gate.acquire(&ask).await.unwrap());
        let full_at = permit.limits[0].full_at.unwrap();
        assert_eq!(expires("id"), full_at.as_micros().div_ceil(1_000), "{name}");
        let known = permit.grant().at + bounds::ID_HORIZON;
        let id = format!("tg:id2:{{{name}/id}}x");
        let id: u64 = redis.command(&["pexpiretime", &id]).unwrap().trim().parse().unwrap();
        assert_eq!(id, known.as_micros().div_ceil(1_000), "{name}");
        let until = Timestamp::from_micros(permit.grant().at.as_micros() + 7_200_000_001);
        let ask = Ask::new(&policy, "closed");
        assert!(gate.close_until(&ask, "only", until).await.unwrap(), "{name}");
        assert_eq!(expires("closed"), until.as_micros().div_ceil(1_000), "{name}");
        gate.settle(&permit, &Costs::new()).await.unwrap();
        let settled = permit.grant().at + bounds::PERMIT_TTL;
        assert_eq!(expires("id"), settled.as_micros().div_ceil(1_000), "{name}");
    }
}

/// While the numbers of a policy change, old and new programs ask at once; every charge counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_with_different_numbers_lose_no_charge() {
    let redis = server();
    let gate = std::sync::Arc::new(connect(Options::single(redis.url())).await);
    let tasks: Vec<_> = (0..8_u64)
        .map(|number| {
            let gate = std::sync::Arc::clone(&gate);
            tokio::spawn(async move {
                let policy = daily(1_000 + number % 2);
                let mut charged = 0;
                while charged < 20 {
                    match acquire(&*gate, &policy, "p").await {
                        Ok(admitted) => charged += u64::from(admitted),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Contended, "{error}"),
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(gate.standing(&daily(1_000), "p").await.unwrap()[0].used, 160);
}

/// An answer is given only after the replica has the change; without one it is an error that never admits.
#[tokio::test]
async fn wait_replicas_waits_for_the_replica() {
    let primary = server();
    let (port, policy) = (primary.url(), daily(5));
    let port = port.trim_matches(|c: char| !c.is_ascii_digit()).rsplit(':').next().unwrap();
    let options = || Options::single(primary.url()).wait_replicas(1);
    let (alone, mut said) = (connect_hasty(options()).await, String::new());
    for number in 0..TRIES_MAX {
        let error = acquire(&alone, &policy, &format!("alone-{number}")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        said = error.to_string();
        // A busy machine may be too slow even for an answer without a replica.
        if said.contains("replicas") {
            break;
        }
    }
    assert!(said.contains("0 of 1 replicas"), "{said}");
    let arguments = format!("--replicaof 127.0.0.1 {port} --repl-diskless-sync-delay 0");
    let replica = servers::Redis::start_with(Append::Never, &arguments).unwrap();
    // Waits for the first write that the replica confirms; the command itself is what waits.
    primary.command(&["config", "set", "repl-diskless-sync-delay", "0"]).unwrap();
    primary.command(&["set", "x", "y"]).unwrap();
    assert_eq!(primary.command(&["wait", "1", "20000"]).unwrap(), "1\n");
    let gate = connect(options()).await;
    assert!(acquire(&gate, &policy, "p").await.unwrap());
    assert_eq!(replica.command(&["exists", &gate.key(&policy, "p")]).unwrap(), "1\n");
    drop(replica);
}

/// A repeat of what the replica does not have is no more certain than the first answer: not on the connection of the first,
/// nor on another one.
#[tokio::test]
async fn wait_replicas_waits_for_repeats() {
    let primary = server();
    let mut replica = primary.start_replica().unwrap();
    let connect = async || {
        let options = Options::single(primary.url()).wait_replicas(1);
        Redis::open(options.attempt_timeout(Span::from_secs(1))).await.unwrap()
    };
    let (policy, gate) = (daily(5), connect().await);
    // A busy machine may be too slow at first; a repeat charges nothing.
    let acquire = async |ask: &Ask<'_>| loop {
        if let Ok(decision) = gate.acquire(ask).await {
            break admitted(decision);
        }
    };
    let ask = Ask::new(&policy, "p").id("once");
    let other = acquire(&Ask::new(&policy, "q").id("other")).await;
    replica.process().pause().unwrap();
    for gate in [&gate, &gate, &connect().await] {
        let error = gate.acquire(&ask).await.unwrap_err();
        assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
        let error = gate.release(&other).await.unwrap_err();
        assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    }
    replica.process().resume().unwrap();
    acquire(&ask).await;
    assert_eq!(gate.standing(&policy, "p").await.unwrap()[0].used, 1);
}

/// Nothing is given back across a change of numbers, so the key stays until every older permit is too old.
#[tokio::test]
async fn a_change_of_numbers_keeps_the_key_until_older_permits_are_too_old() {
    let redis = server();
    let gate = connect(Options::single(redis.url())).await;
    let policy = |secs| {
        let rule = RollingWindow::new(20, Span::from_secs(secs));
        Policy::new("changing", [Limit::new("only", "requests", rule)]).unwrap()
    };
    let (old, new) = (policy(10), policy(20));
    let first = admitted(gate.acquire(&Ask::new(&old, "p")).await.unwrap());
    let last = (first.grant().at + bounds::PERMIT_TTL).as_micros().div_ceil(1_000);
    let key = gate.key(&old, "p");
    // The first is written whole, the second by the script.
    for _ in 0..2 {
        admitted(gate.acquire(&Ask::new(&new, "p")).await.unwrap());
        let expires: u64 = redis.command(&["pexpiretime", &key]).unwrap().trim().parse().unwrap();
        assert!(last <= expires, "{expires} is before {last}");
    }
    assert!(gate.release(&first).await.unwrap());
    assert_eq!(gate.standing(&new, "p").await.unwrap()[0].used, 3);
}
