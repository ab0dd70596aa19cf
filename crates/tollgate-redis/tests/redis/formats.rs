//! Entries in each format, and those that are shared with programs that know format 3 and no later one. The fixtures of a
//! format are what a program of its version wrote.

mod stories;

use std::sync::Arc;

use redis::AsyncCommands;
use tollgate::clock::ManualClock;
use tollgate::core::bounds::PERMIT_TTL;
use tollgate::{
    Ask, Clock, Concurrency, Costs, ErrorKind, GateExt, Limit, Permit, Policy, RollingWindow, Span,
    TokenBucket,
};
use tollgate_redis::{Options, Redis};
use tollgate_testkit::servers;

use self::stories::{SUBJECT, Stage};
use crate::{admitted, connect, open_at, server, slow_bucket, used};

macro_rules! fixtures {
    ($($name:literal),*) => {
        [$((
            $name,
            [
                (3, include_str!(concat!("formats/3/", $name, ".txt"))),
                (4, include_str!(concat!("formats/4/", $name, ".txt"))),
            ],
        )),*]
    };
}

/// Every kind of limit, and all that an entry can say of one.
const FIXTURES: [(&str, [(u8, &str); 2]); 14] = fixtures![
    "boundaries",
    "bucket",
    "calendar",
    "changed",
    "closed",
    "debt",
    "renewed",
    "reset",
    "runs",
    "several",
    "slots",
    "window",
    "window-large",
    "window-resolution"
];

/// The story `bucket`, and then two asks with the ids `a` and `b`.
const IDS: &str = include_str!("formats/3/ids.txt");

type Fields = Vec<(String, Vec<u8>)>;

/// The fields of a fixture, and what was used and left of each limit.
fn parse(fixture: &str) -> (Fields, Vec<(u64, u64)>) {
    let (mut fields, mut standings) = (Fields::new(), Vec::new());
    for line in fixture.lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["standing", _, used, left] => {
                standings.push((used.parse().unwrap(), left.parse().unwrap()));
            }
            [name, hex] => {
                let byte = |place| u8::from_str_radix(&hex[place..place + 2], 16).unwrap();
                let value = (0..hex.len()).step_by(2).map(byte);
                fields.push((name.to_owned(), value.collect()));
            }
            _ => panic!("{line}"),
        }
    }
    (fields, standings)
}

async fn put(redis: &servers::Redis, key: &str, fields: &Fields) {
    redis.command(&["flushall"]).unwrap();
    let client = redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let () = connection.hset_multiple(key, fields).await.unwrap();
}

async fn fields(redis: &servers::Redis, key: &str) -> Fields {
    let client = redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let mut fields: Fields = connection.hgetall(key).await.unwrap();
    fields.sort();
    fields
}

async fn field(redis: &servers::Redis, key: &str, name: &str) -> Vec<u8> {
    let all = fields(redis, key).await;
    all.into_iter().find(|(field, _)| field == name).expect("the field is there").1
}

async fn standings(gate: &Redis, policy: &Policy) -> Vec<(u64, u64)> {
    let standings = gate.standing(policy, SUBJECT).await.unwrap();
    standings.iter().map(|limit| (limit.used, limit.remaining)).collect()
}

/// Gates that write format 3 and format 4, on one server and one clock.
async fn both(redis: &servers::Redis, clock: &ManualClock) -> [Redis; 2] {
    let options = || Options::single(redis.url());
    [open_at(options().format(3).unwrap(), clock).await, open_at(options(), clock).await]
}

/// What an ask of one more unit writes is in the format of the gate, unless the entry is in a newer one.
#[tokio::test]
async fn what_programs_of_each_format_wrote_is_read() {
    let redis = server();
    for (name, fixtures) in FIXTURES {
        for ((stored_as, fixture), (place, version)) in
            fixtures.into_iter().flat_map(|fixture| [(fixture, (0, 3)), (fixture, (1, 4))])
        {
            let (stored, expected) = parse(fixture);
            // The story tells the policy and the time.
            let clock = ManualClock::new();
            let gates = both(&redis, &clock).await;
            redis.command(&["flushall"]).unwrap();
            let policy = Stage { gate: &gates[0], clock: &clock }.play(name).await;
            let (gate, key) = (&gates[place], gates[place].key(&policy, SUBJECT));
            put(&redis, &key, &stored).await;
            assert_eq!(standings(gate, &policy).await, expected, "{name}");
            let ask = Ask::new(&policy, SUBJECT).cost("units", 1);
            let is_admitted = gate.acquire(&ask).await.unwrap().is_admitted();
            assert_eq!(is_admitted, !["closed", "debt"].contains(&name), "{name}");
            let written = field(&redis, &key, "e").await[0];
            let newest = stored_as.max(version);
            assert_eq!(written, if is_admitted { newest } else { stored_as }, "{name}");
            let more = |limit: &(u64, u64)| limit.0 + u64::from(is_admitted);
            let after = standings(gate, &policy).await;
            let after: Vec<u64> = after.iter().map(|limit| limit.0).collect();
            assert_eq!(after, expected.iter().map(more).collect::<Vec<_>>(), "{name}");
        }
    }
}

/// From how many ids on they are looked through. The scripts of format 3 say it otherwise than its programs do.
const IDS_LOOK: std::ops::Range<usize> = 21..23;

#[tokio::test]
async fn each_format_is_written_as_its_programs_write_it() {
    let redis = server();
    for (name, fixtures) in FIXTURES {
        for (place, (format, fixture)) in fixtures.into_iter().enumerate() {
            let clock = ManualClock::new();
            let gate = &both(&redis, &clock).await[place];
            redis.command(&["flushall"]).unwrap();
            let policy = Stage { gate, clock: &clock }.play(name).await;
            let mut written = fields(&redis, &gate.key(&policy, SUBJECT)).await;
            let (mut stored, _) = parse(fixture);
            for (field, value) in written.iter_mut().chain(&mut stored) {
                if field == "e" && format == 3 {
                    value[IDS_LOOK].fill(0);
                }
            }
            assert_eq!(written, stored, "{name} in format {format}");
        }
    }
}

/// The ids of the other programs stay with an entry until the permit they belong to is released.
#[tokio::test]
async fn ids_in_an_entry_of_format_3_outlive_changes_and_go_with_a_release() {
    let (redis, clock) = (server(), ManualClock::new());
    let [gate, _] = both(&redis, &clock).await;
    let policy = Stage { gate: &gate, clock: &clock }.play("bucket").await;
    let key = gate.key(&policy, SUBJECT);
    let (stored, _) = parse(IDS);
    put(&redis, &key, &stored).await;
    let id = |name: &str| stored.iter().find(|(field, _)| field == name).unwrap().1.clone();
    let stamp = u64::from_le_bytes([&id("ia")[..7], &[0]].concat().try_into().unwrap());
    admitted(gate.acquire(&Ask::new(&policy, SUBJECT).cost("units", 2)).await.unwrap());
    let kept = fields(&redis, &key).await;
    assert!(kept.contains(&("ia".to_owned(), id("ia"))), "{kept:?}");
    assert!(kept.contains(&("ib".to_owned(), id("ib"))), "{kept:?}");
    // How many there are, and when they expire.
    let id_fields = |hot: &[u8]| (hot[19], hot[23..37].to_vec());
    let before = id_fields(&id("e"));
    assert_eq!((before.0, &id_fields(&field(&redis, &key, "e").await)), (2, &before));
    let grant = tollgate::core::Grant { at: clock.now(), stamp, use_by: None, expires_at: None };
    let ask = Ask::new(&policy, SUBJECT).cost("units", 3);
    assert!(gate.release(&Permit::for_ask(&ask, grant, Vec::new())).await.unwrap());
    let kept = fields(&redis, &key).await;
    assert!(!kept.iter().any(|(field, _)| field == "ia"), "{kept:?}");
    assert!(kept.iter().any(|(field, _)| field == "ib"), "{kept:?}");
    assert_eq!(id_fields(&field(&redis, &key, "e").await), (1, before.1));
    assert!(gate.reset(&policy, SUBJECT).await.unwrap());
    let kept = fields(&redis, &key).await;
    assert!(!kept.iter().any(|(field, _)| field == "ib"), "{kept:?}");
    assert_eq!(id_fields(&field(&redis, &key, "e").await), (0, vec![0; 14]));
}

/// Asks that are repeated to either gate are charged once, and their permits are settled by either.
#[tokio::test]
async fn ids_and_permits_of_one_format_are_known_in_the_other() {
    let (redis, clock) = (server(), ManualClock::new());
    let gates = both(&redis, &clock).await;
    let policy = slow_bucket(100);
    for (given, other) in [(0, 1), (1, 0)] {
        let subject = format!("from-{given}");
        let ask = Ask::new(&policy, &*subject).cost("requests", 10).id("one");
        let permit = admitted(gates[given].acquire(&ask).await.unwrap());
        let again = admitted(gates[other].acquire(&ask).await.unwrap());
        assert_eq!(permit.grant(), again.grant());
        let actual = Costs::new().with("requests", 4);
        assert!(gates[other].settle(&permit, &actual).await.unwrap());
        assert!(!gates[given].settle(&permit, &actual).await.unwrap());
        // A permit may come without its id in format 3, and then a release could not forget it.
        let repeated = admitted(gates[0].acquire(&ask).await.unwrap());
        assert_ne!(permit.grant(), repeated.grant());
        let again = admitted(gates[1].acquire(&ask).await.unwrap());
        assert_eq!(repeated.grant(), again.grant());
    }
}

/// Three limits of one hundred by three rules, the first of which has a grid in format 4.
fn hundred() -> Policy {
    let day = Span::from_hours(24);
    let limits = [
        Limit::new("rolling", "requests", RollingWindow::new(1_000, day)),
        Limit::new("bucket", "requests", TokenBucket::per(1, day).burst(100)),
        Limit::new("slots", "requests", Concurrency::new(200, day)),
    ];
    Policy::new("hundred", limits).unwrap()
}

#[tokio::test]
async fn gates_of_both_formats_admit_exactly_the_limit() {
    let (redis, policy) = (server(), hundred());
    let options = || Options::single(redis.url());
    let older = Arc::new(connect(options().format(3).unwrap()).await);
    let newer = Arc::new(connect(options()).await);
    // In turns, then all at once.
    let mut admitted = 0;
    for gate in [&older, &newer, &older, &newer, &older] {
        admitted += u64::from(crate::acquire(&**gate, &policy, "one").await.unwrap());
    }
    assert_eq!(admitted, 5);
    let tasks: Vec<_> = (0..32)
        .map(|number| {
            let gate = Arc::clone(if number % 2 == 0 { &older } else { &newer });
            let ask = Ask::new(&policy, "one").into_owned();
            tokio::spawn(async move {
                let mut admitted = 0;
                for _ in 0..8 {
                    admitted += u64::from(gate.acquire(&ask).await.unwrap().is_admitted());
                }
                admitted
            })
        })
        .collect();
    for task in tasks {
        admitted += task.await.unwrap();
    }
    assert_eq!(admitted, 100);
    assert_eq!(used(&*older, &policy, "one").await, 100);
    assert_eq!(used(&*newer, &policy, "one").await, 100);
}

/// Carried to and fro, amounts would leave the window later each time. So format 4 stays once it is there.
#[tokio::test]
async fn a_window_is_carried_over_once_and_stays_in_the_newer_format() {
    let (redis, clock) = (server(), ManualClock::new());
    let [older, newer] = both(&redis, &clock).await;
    let rule = RollingWindow::new(20_000, Span::from_mins(1));
    let policy = Policy::new("large", [Limit::new("rpm", "requests", rule)]).unwrap();
    let (key, ask) = (older.key(&policy, SUBJECT), Ask::new(&policy, SUBJECT));
    let first = admitted(older.acquire(&ask).await.unwrap());
    let exact = older.standing(&policy, SUBJECT).await.unwrap()[0].full_at;
    assert_eq!(exact, Some(clock.now() + Span::from_mins(1)));
    assert_eq!(field(&redis, &key, "e").await[0], 3);
    admitted(newer.acquire(&ask).await.unwrap());
    let filed = newer.standing(&policy, SUBJECT).await.unwrap()[0].full_at;
    for gate in [&older, &newer, &older, &newer] {
        admitted(gate.acquire(&ask).await.unwrap());
        assert_eq!(gate.standing(&policy, SUBJECT).await.unwrap()[0].full_at, filed);
        assert_eq!(field(&redis, &key, "e").await[0], 4);
    }
    assert!(older.release(&first).await.unwrap());
    assert_eq!(used(&newer, &policy, SUBJECT).await, 6, "what was carried over is not given back");
}

/// The other programs read at most 256 runs of settled permits. Permits below those that are kept are too old.
#[tokio::test]
async fn format_3_keeps_no_more_runs_than_its_programs_read() {
    let (redis, clock) = (server(), ManualClock::new());
    let [gate, newer] = both(&redis, &clock).await;
    let policy = slow_bucket(10_000);
    let mut permits = Vec::new();
    for _ in 0..602 {
        permits.push(admitted(gate.acquire(&Ask::new(&policy, SUBJECT)).await.unwrap()));
    }
    for permit in permits.iter().step_by(2) {
        assert!(gate.settle(permit, &Costs::new()).await.unwrap());
    }
    let settled = field(&redis, &gate.key(&policy, SUBJECT), "s").await;
    assert_eq!(settled[..3], [0xdc, 0x03, 0x01], "a floor and 256 runs of three numbers");
    for gate in [&gate, &newer] {
        let error = gate.release(&permits[1]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Expired, "{error}");
        assert!(!gate.settle(&permits[600], &Costs::new()).await.unwrap());
    }
    assert!(gate.release(&permits[601]).await.unwrap());
    assert_eq!(used(&gate, &policy, SUBJECT).await, 601);
}

/// The key lives as long as programs of format 3 would let it live.
#[tokio::test]
async fn an_entry_in_format_3_expires_when_it_says_nothing_any_more() {
    let redis = server();
    let gate = connect(Options::single(redis.url()).format(3).unwrap()).await;
    let rule = TokenBucket::per_second(10).burst(100);
    let policy = Policy::new("kept", [Limit::new("all", "requests", rule)]).unwrap();
    let permit =
        admitted(gate.acquire(&Ask::new(&policy, SUBJECT).cost("requests", 50)).await.unwrap());
    let ttl = || -> u64 {
        let millis = redis.command(&["pttl", &gate.key(&policy, SUBJECT)]).unwrap();
        millis.trim().parse().unwrap()
    };
    assert!((1..=5_000).contains(&ttl()), "{}", ttl());
    assert!(gate.settle(&permit, &Costs::new()).await.unwrap());
    let hour = PERMIT_TTL.as_micros() / 1_000;
    assert!((hour - 60_000..=hour).contains(&ttl()), "{}", ttl());
}
