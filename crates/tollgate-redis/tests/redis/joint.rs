//! Asks with several charges: exact sums under contention, and what a refusal leaves in the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use redis::AsyncCommands;
use redis::aio::ConnectionLike;
use tokio::sync::Barrier;
use tollgate::core::Period;
use tollgate::entries::EntryStore;
use tollgate::{
    Ask, CalendarWindow, Concurrency, ErrorKind, Gate, GateExt, Limit, Policy, RollingWindow, Span,
    TokenBucket,
};
use tollgate_redis::{Options, Redis};
use tollgate_testkit::servers::{RedisCluster, unique_name};

use crate::{admitted, connect, daily, server, used};

const CALLERS: usize = 64;
const CHARGES: usize = 4;

/// Six parties by four rules. None of them recovers during a test.
fn parties() -> Vec<Policy> {
    let day = Span::from_hours(24);
    let limit = |rule: usize, most: u64| match rule {
        0 => Limit::new("window", "requests", RollingWindow::new(most, day)),
        1 => Limit::new("bucket", "requests", TokenBucket::per(1, day).burst(most)),
        2 => Limit::new("slots", "requests", Concurrency::new(most, day)),
        _ => {
            let rule = TokenBucket::per(1, Span::from_hours(24 * 30)).burst(most);
            Limit::new("boundaries", "requests", rule.at_boundaries())
        }
    };
    let policy = |(rule, most)| Policy::new(format!("party-{rule}"), [limit(rule % 4, most)]);
    [700, 900, 1_100, 800, 1_000, 950]
        .into_iter()
        .enumerate()
        .map(policy)
        .map(Result::unwrap)
        .collect()
}

/// A step of a xorshift generator.
fn next(seed: &mut u64) -> usize {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    usize::try_from(*seed >> 33).unwrap()
}

/// 64 callers charge four of six parties with each ask, in random order, and release the permits without a continuous bucket.
/// What each party has used in the end is what the admitted asks charged to it.
async fn sums_are_exact(gate: Arc<Redis>, asks: usize) {
    let parties = Arc::new(parties());
    let barrier = Arc::new(Barrier::new(CALLERS));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (gate, parties, barrier) =
                (Arc::clone(&gate), Arc::clone(&parties), Arc::clone(&barrier));
            tokio::spawn(async move {
                let mut seed = 0x9e37_79b9_7f4a_7c15 ^ (caller as u64 + 1) << 20;
                let mut charged = [0_u64; 6];
                let mut refused = 0_u64;
                barrier.wait().await;
                for _ in (caller..asks).step_by(CALLERS) {
                    let mut order = [0, 1, 2, 3, 4, 5];
                    (1..order.len())
                        .for_each(|last| order.swap(last, next(&mut seed) % (last + 1)));
                    let order = &order[..CHARGES];
                    let mut ask = Ask::new(&parties[order[0]], "one");
                    for index in &order[1..] {
                        ask = ask.and(&parties[*index], "one");
                    }
                    let Some(permit) = gate.acquire(&ask).await.unwrap().into_permit() else {
                        refused += 1;
                        continue;
                    };
                    assert_eq!(permit.parts().count(), CHARGES);
                    // A continuous bucket remembers 64 lows, and gives back less than was charged in a longer burst.
                    if order.iter().all(|index| index % 4 != 1) {
                        assert!(gate.release(&permit).await.unwrap());
                    } else {
                        order.iter().for_each(|index| charged[*index] += 1);
                    }
                }
                (charged, refused)
            })
        })
        .collect();
    let (mut charged, mut refused) = ([0; 6], 0);
    for caller in callers {
        let (by_caller, refusals) = caller.await.unwrap();
        charged.iter_mut().zip(by_caller).for_each(|(sum, by_caller)| *sum += by_caller);
        refused += refusals;
    }
    for (policy, charged) in parties.iter().zip(charged) {
        let standing = &gate.standing(policy, "one").await.unwrap()[0];
        let name = policy.name();
        assert_eq!(standing.used, charged, "{name}");
        assert!(standing.used <= standing.limit, "{name}: {standing:?}");
    }
    assert!(0 < refused, "nothing was contended");
}

/// R018: 64 callers, four charges each, 10,000 asks on one server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_callers_of_four_charges_are_exact() {
    let redis = server();
    sums_are_exact(Arc::new(connect(Options::single(redis.url())).await), 10_000).await;
}

/// The same on a cluster with a slot tag.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_callers_in_one_slot_are_exact() {
    sums_are_exact(Arc::new(connect(cluster().slot_tag("crowd").unwrap()).await), 10_000).await;
}

/// The same where the parties are in several slots: a refused ask may have been in the way of another, but no party is charged
/// anything but what was admitted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_callers_in_several_slots_are_exact() {
    let gate = Arc::new(connect(cluster()).await);
    sums_are_exact(Arc::clone(&gate), 3_000).await;
    assert!(gate.refusals_in_doubt() <= 3_000);
}

fn cluster() -> Options {
    Options::cluster(RedisCluster::shared().unwrap()).prefix(&unique_name())
}

/// A user with buckets and a window, a team with slots and a calendar window, and an account.
fn stack() -> [Policy; 3] {
    let day = Span::from_hours(24);
    let user = [
        Limit::new("rpd", "requests", RollingWindow::new(5, day)),
        Limit::new("tpd", "tokens", TokenBucket::per(1, day).burst(1_000)),
    ];
    let team = [
        Limit::new("calls", "requests", Concurrency::new(3, day)),
        Limit::new("month", "tokens", CalendarWindow::new(2_000, Period::Month)),
    ];
    [
        Policy::new("user", user).unwrap(),
        Policy::new("team", team).unwrap(),
        Policy::new("account", [Limit::new("rpd", "requests", RollingWindow::new(2, day))])
            .unwrap(),
    ]
}

/// Everything that is stored by `gate` for the stack: the serialized key, its fields and its expiry. With ids as fields the
/// server serializes the fields in any order.
async fn stored<C: ConnectionLike + Send + Sync>(
    connection: &mut C,
    gate: &Redis,
    is_cluster: bool,
) -> Vec<(Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>, i64)> {
    let mut all = Vec::new();
    for (policy, subject) in stack().iter().zip(["u1", "t7", "main"]) {
        let key = gate.key(policy, subject);
        let dump = redis::cmd("DUMP").arg(&key).query_async(connection).await.unwrap();
        let dump = if is_cluster { Vec::new() } else { dump };
        let fields = redis::cmd("HGETALL").arg(&key).query_async(connection).await.unwrap();
        let expiry = redis::cmd("PEXPIRETIME").arg(&key).query_async(connection).await.unwrap();
        all.push((dump, fields, expiry));
    }
    all
}

/// Refuses asks over the stack in every way, and compares what is stored before and after.
async fn refusals_write_nothing<C: ConnectionLike + Send + Sync>(
    connection: &mut C,
    gate: &Redis,
    is_cluster: bool,
) {
    let [user, team, account] = stack();
    let ask = || Ask::new(&user, "u1").and(&team, "t7").and(&account, "main");
    for _ in 0..2 {
        assert!(gate.acquire(&ask().cost("tokens", 400)).await.unwrap().is_admitted());
    }
    let permit = gate.acquire(&Ask::new(&user, "u1").and(&team, "t7").id("known")).await.unwrap();
    assert_eq!(admitted(permit).parts().count(), 2);
    let before = stored(connection, gate, is_cluster).await;
    assert!(before.iter().all(|(_, fields, _)| fields.contains_key(b"e".as_slice())));

    // The account has no request left, the team no slot; the tokens of the user never fit.
    let denial = gate.acquire(&ask()).await.unwrap().into_denial().unwrap();
    let joint = denial.joint.unwrap();
    let names: Vec<(usize, &str)> =
        joint.refused.iter().map(|refused| (refused.charge, &*refused.limit)).collect();
    assert_eq!(names, [(1, "calls"), (2, "rpd")]);
    assert_eq!(joint.charges.len(), 3);
    assert_eq!(joint.charges[0].limits[0].used, 3);
    let reversed = Ask::new(&account, "main").and(&team, "t7").and(&user, "u1");
    assert!(!gate.acquire(&reversed).await.unwrap().is_admitted());
    let never = ask().cost("tokens", 1_500);
    let denial = gate.acquire(&never).await.unwrap().into_denial().unwrap();
    assert_eq!((&*denial.policy, &*denial.limit, denial.retry_after()), ("user", "tpd", None));
    assert!(!gate.acquire(&ask().id("refused")).await.unwrap().is_admitted());

    // Asks that are wrong, and an id of another ask.
    for wrong in [ask().cost("seats", 1), ask().and(&team, "t7"), ask().and(&team, "")] {
        let error = gate.acquire(&wrong).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        let error = gate.charge(&wrong).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    let other = Ask::new(&user, "u1").cost("tokens", 1).id("known");
    assert_eq!(gate.acquire(&other).await.unwrap_err().kind(), ErrorKind::Conflict);
    let other = Ask::new(&user, "u1").and(&team, "t8").id("known");
    assert_eq!(gate.acquire(&other).await.unwrap_err().kind(), ErrorKind::Conflict);

    assert_eq!(stored(connection, gate, is_cluster).await, before);
}

/// R018: a refused or wrong ask leaves every key byte-identical.
#[tokio::test]
async fn a_refusal_leaves_every_key_as_it_was() {
    let redis = server();
    let gate = connect(Options::single(redis.url())).await;
    let client = redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    refusals_write_nothing(&mut connection, &gate, false).await;
    let keys: Vec<String> = connection.keys("*").await.unwrap();
    // Three entries and one id; nothing of an ask that was refused.
    assert_eq!(keys.len(), 4, "{keys:?}");
}

/// The same on a cluster, in one slot and in several.
#[tokio::test]
async fn a_refusal_on_a_cluster_leaves_every_key_as_it_was() {
    for options in [cluster().slot_tag("tenant-a").unwrap(), cluster()] {
        let gate = connect(options).await;
        let client = redis::cluster::ClusterClient::new(RedisCluster::shared().unwrap()).unwrap();
        let mut connection = client.get_async_connection().await.unwrap();
        refusals_write_nothing(&mut connection, &gate, true).await;
        assert_eq!(gate.refusals_in_doubt(), 0);
    }
}

/// How many scripts the server has run.
fn scripts(redis: &tollgate_testkit::servers::Redis) -> u64 {
    let stats = redis.command(&["info", "commandstats"]).unwrap();
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")).unwrap();
    line.split(',').next().unwrap().parse().unwrap()
}

/// A decision over several charges is one script, admitted or refused, and the record of an id grows only with the charges
/// after the first.
#[tokio::test]
async fn a_decision_over_several_charges_is_one_script() {
    let redis = server();
    let gate = connect(Options::single(redis.url())).await;
    let [user, team, account] = stack();
    let ask = || Ask::new(&user, "u1").and(&team, "t7").and(&account, "main");
    assert!(gate.acquire(&ask().id("joint")).await.unwrap().is_admitted());
    assert!(gate.acquire(&Ask::new(&user, "u1").id("single")).await.unwrap().is_admitted());
    let before = scripts(&redis);
    for is_admitted in [true, false] {
        assert_eq!(gate.acquire(&ask()).await.unwrap().is_admitted(), is_admitted);
    }
    assert!(gate.acquire(&ask().id("joint")).await.unwrap().is_admitted());
    assert_eq!(scripts(&redis) - before, 3);
    for (id, bytes) in [("single", "28\n"), ("joint", "56\n")] {
        let key = format!("tg:id2:{{user/u1}}{id}");
        assert_eq!(redis.command(&["strlen", &key]).unwrap(), bytes, "{id}");
    }
}

/// The order of charges does not make another script.
#[tokio::test]
async fn asks_in_any_order_share_a_script() {
    let redis = server();
    let gate = connect(Options::single(redis.url())).await;
    let [user, team, account] = stack();
    assert!(gate.acquire(&Ask::new(&user, "a").and(&team, "a")).await.unwrap().is_admitted());
    assert!(gate.acquire(&Ask::new(&team, "b").and(&user, "b")).await.unwrap().is_admitted());
    assert!(
        gate.acquire(&Ask::new(&user, "c").and(&team, "c").and(&user, "d"))
            .await
            .unwrap()
            .is_admitted()
    );
    let cached = |redis: &tollgate_testkit::servers::Redis| {
        let info = redis.command(&["info", "memory"]).unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix("number_of_cached_scripts:"));
        line.unwrap().trim().to_owned()
    };
    assert_eq!(cached(&redis), "1");
    assert!(gate.acquire(&Ask::new(&user, "c").and(&account, "c")).await.unwrap().is_admitted());
    assert_eq!(cached(&redis), "2");
}

/// A charge that too few replicas have is an error, also when the ask is sent again, and every subject is charged once.
#[tokio::test]
async fn replicas_are_waited_for() {
    let redis = server();
    let options = Options::single(redis.url()).wait_replicas(1);
    let gate = Redis::open(options.attempt_timeout(Span::from_millis(500))).await.unwrap();
    let (first, second) = (daily(5), stack()[2].clone());
    let ask = Ask::new(&first, "a").and(&second, "b").id("once");
    for _ in 0..2 {
        let error = gate.acquire(&ask).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    }
    assert_eq!((used(&gate, &first, "a").await, used(&gate, &second, "b").await), (1, 1));
}

/// In the format before there is no script, and no entry is changed.
#[tokio::test]
async fn the_format_before_has_no_asks_with_several_charges() {
    let redis = server();
    let gate = connect(Options::single(redis.url()).format(3).unwrap()).await;
    let [user, team, _] = stack();
    let error = gate.acquire(&Ask::new(&user, "u1").and(&team, "t7")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("needs format 4"), "{error}");
    assert_eq!(redis.command(&["dbsize"]).unwrap(), "0\n");
}

/// A slot tag puts entries and ids into one slot, and a store lists its own entries only.
#[tokio::test]
async fn a_slot_tag_selects_the_slot_of_every_entry() {
    let redis = server();
    let [user, team, _] = stack();
    let plain = connect(Options::single(redis.url())).await;
    let tagged = connect(Options::single(redis.url()).slot_tag("tenant-a").unwrap()).await;
    let other = connect(Options::single(redis.url()).slot_tag("tenant-b").unwrap()).await;
    for (gate, subject) in [(&plain, "p"), (&tagged, "t"), (&other, "o")] {
        let ask = Ask::new(&user, subject).and(&team, subject).id("id");
        assert!(gate.acquire(&ask).await.unwrap().is_admitted());
    }
    assert_eq!(tagged.key(&user, "t"), "tg:{tenant-a}{user/t}");
    for (gate, subject) in [(&plain, "p"), (&tagged, "t"), (&other, "o")] {
        let page = gate.page(&[], None).await.unwrap();
        assert!(page.next.is_none());
        let mut names: Vec<(&str, &str)> =
            page.entries.iter().map(|entry| (&*entry.policy, &*entry.subject)).collect();
        names.sort_unstable();
        assert_eq!(names, [("team", subject), ("user", subject)]);
    }
    let client = redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let keys: Vec<String> = connection.keys("tg:*{tenant-a}*").await.unwrap();
    assert_eq!(keys.len(), 3, "two entries and an id: {keys:?}");
    for tag in ["", "{a}", "a}", &"a".repeat(65)] {
        let error = Options::single("redis://127.0.0.1/").slot_tag(tag).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
}

/// A permit of several charges is settled, renewed and released on every charge, and the id is forgotten with it.
#[tokio::test]
async fn permits_of_several_slots_are_released_with_their_id() {
    let gate = connect(cluster()).await;
    let (first, second) = (daily(5), stack()[1].clone());
    let ask = Ask::new(&first, "a").and(&second, "b").cost("tokens", 100).id("once");
    let permit = admitted(gate.acquire(&ask).await.unwrap());
    assert_eq!(admitted(gate.acquire(&ask).await.unwrap()).grant(), permit.grant());
    assert_eq!((used(&gate, &first, "a").await, used(&gate, &second, "b").await), (1, 1));
    let renewed = gate.renew(&permit).await.unwrap();
    assert!(permit.expires_at() <= renewed.expires_at());
    assert!(gate.release(&renewed).await.unwrap());
    assert!(!gate.release(&renewed).await.unwrap());
    assert_eq!((used(&gate, &first, "a").await, used(&gate, &second, "b").await), (0, 0));
    let again = admitted(gate.acquire(&ask).await.unwrap());
    assert_ne!(again.grant().stamp, permit.grant().stamp);
    let gate: &dyn Gate = &gate;
    assert!(gate.release(&again).await.unwrap());
}
