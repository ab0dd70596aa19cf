//! A cluster while it changes: a master that dies, slots that move.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tollgate_redis::Options;
use tollgate_testkit::servers::{Program, RedisCluster, run};

use crate::faults::RULES;
use crate::{TRIES_MAX, acquire, connect, daily, used_once_back};

/// How many slots move to another node; each takes a while.
const SLOTS_MOVED: u32 = 500;

/// The part of CLUSTER NODES that belongs to the node itself.
fn myself(cluster: &RedisCluster, node: usize) -> Vec<String> {
    let nodes = cluster.command(node, &["cluster", "nodes"]).unwrap();
    let line = nodes.lines().find(|line| line.contains("myself")).unwrap();
    line.split(' ').map(str::to_owned).collect()
}

/// A subject whose slot is among the first `slots`, which the first master has.
pub(crate) fn subject_among(cluster: &RedisCluster, slots: u32) -> String {
    let slot = |subject: &String| -> u32 {
        let key = format!("tg:{{daily/{subject}}}");
        let slot = cluster.command(0, &["cluster", "keyslot", &key]).unwrap();
        slot.trim().parse().unwrap()
    };
    let found = (0..1_000).map(|number| format!("s{number}")).find(|subject| slot(subject) < slots);
    found.expect("one of a thousand")
}

/// A master dies and its replica takes over: the replica has no scripts, and gets them; what reached it counts.
#[tokio::test]
async fn a_failover_keeps_what_was_replicated() {
    let mut cluster = RedisCluster::start_with_replicas(1).unwrap();
    let masters: Vec<usize> =
        (0..6).filter(|node| myself(&cluster, *node)[2].contains("master")).collect();
    let id = myself(&cluster, masters[0])[0].clone();
    let replica = (0..6).find(|node| myself(&cluster, *node)[3] == id).unwrap();
    let options = Options::cluster(cluster.urls()).wait_replicas(1);
    let (gate, policy) = (connect(options).await, daily(5));
    let subject = subject_among(&cluster, 5_461);
    assert!(acquire(&gate, &policy, &subject).await.unwrap());
    assert!(acquire(&gate, &policy, &subject).await.unwrap());
    cluster.processes()[masters[0]].kill().unwrap();
    cluster.command(replica, &["cluster", "failover", "takeover"]).unwrap();
    assert_eq!(used_once_back(&gate, &policy, &subject).await, 2);
    // The new master has no replica to wait for.
    let gate = connect(Options::cluster(cluster.urls())).await;
    assert!(acquire(&gate, &policy, &subject).await.unwrap());
    assert_eq!(used_once_back(&gate, &policy, &subject).await, 3);
}

/// Slots move from one node to another while asks come in: exactly the limit goes through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moving_slots_admit_exactly_the_limit() {
    let cluster = RedisCluster::start().unwrap();
    let gate = Arc::new(connect(Options::cluster(cluster.urls())).await);
    let subject = subject_among(&cluster, SLOTS_MOVED);
    assert!(acquire(&*gate, &daily(5), &subject).await.unwrap());
    let moved = Arc::new(AtomicBool::new(false));
    let asking = {
        let (gate, moved, subject) = (Arc::clone(&gate), Arc::clone(&moved), subject.clone());
        tokio::spawn(async move {
            let policy = daily(5);
            let (mut admitted, mut failed, mut after) = (1, 0, 0);
            // Some asks after the move, so that they are answered by the new owner.
            while after < 50 && failed < TRIES_MAX {
                after += usize::from(moved.load(Ordering::Relaxed));
                match acquire(&*gate, &policy, &subject).await {
                    Ok(through) => admitted += u64::from(through),
                    Err(_) => failed += 1,
                }
            }
            (admitted, failed)
        })
    };
    let (from, to) = (myself(&cluster, 0)[0].clone(), myself(&cluster, 1)[0].clone());
    let place = cluster.urls()[0].replace("redis://", "").replace('/', "");
    let reshard = format!(
        "--cluster reshard {place} --cluster-from {from} --cluster-to {to} --cluster-slots {SLOTS_MOVED} --cluster-yes"
    );
    let done = tokio::task::spawn_blocking(move || run(&Program::new("redis-cli").args(&reshard)));
    done.await.unwrap().unwrap();
    moved.store(true, Ordering::Relaxed);
    let (admitted, failed) = asking.await.unwrap();
    assert_eq!((admitted, failed), (5, 0));
    let key = format!("tg:{{daily/{subject}}}");
    assert_eq!(cluster.command(1, &["exists", &key]).unwrap(), "1\n");
}

/// On a cluster a user needs more permissions: to find expired ids, to ask who has which slots, and to follow a slot that
/// is being moved.
#[tokio::test]
async fn an_acl_user_of_a_cluster_needs_the_documented_permissions() {
    let cluster = RedisCluster::start().unwrap();
    for (user, more) in
        [("full", "+hlen +hscan +cluster|slots +asking"), ("less", "+hlen +hscan +cluster|slots")]
    {
        let words = ["acl", "setuser", user].into_iter();
        let words: Vec<&str> = words.chain(RULES.split(' ')).chain(more.split(' ')).collect();
        for node in 0..3 {
            assert_eq!(cluster.command(node, &words).unwrap(), "OK\n");
        }
    }
    let urls = |user: &str| {
        let from = format!("redis://{user}:s3cret@");
        cluster.urls().iter().map(|url| url.replace("redis://", &from)).collect::<Vec<_>>()
    };
    let (policy, subject) = (daily(5), subject_among(&cluster, 5_461));
    let full = connect(Options::cluster(urls("full"))).await;
    for number in 0..30 {
        assert!(acquire(&full, &policy, &format!("spread-{number}")).await.unwrap());
    }
    for _ in 0..40 {
        assert!(acquire(&full, &daily(100), "often").await.unwrap());
    }
    // A slot that is on its way: the old node redirects asks for a new key to the new one.
    let key = full.key(&policy, &subject);
    let slot = cluster.command(0, &["cluster", "keyslot", &key]).unwrap();
    let (from, to) = (myself(&cluster, 0)[0].clone(), myself(&cluster, 1)[0].clone());
    cluster.command(1, &["cluster", "setslot", slot.trim(), "importing", &from]).unwrap();
    cluster.command(0, &["cluster", "setslot", slot.trim(), "migrating", &to]).unwrap();
    let less = connect(Options::cluster(urls("less"))).await;
    let error = acquire(&less, &policy, &subject).await.unwrap_err();
    assert!(error.to_string().contains("+asking"), "{error}");
    assert!(acquire(&full, &policy, &subject).await.unwrap());
}
