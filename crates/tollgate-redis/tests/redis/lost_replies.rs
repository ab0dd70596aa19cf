//! Replies that get lost on the way, after what was asked for was done (R000.12).

use tollgate::{Ask, Decision, ErrorKind, GateExt, Permit, Span};
use tollgate_redis::Options;
use tollgate_testkit::servers::{Lossy, RedisCluster};

use crate::cluster::subject_among;
use crate::{TRIES_MAX, acquire, connect, connect_hasty, daily, server, used};

fn admitted(decision: Decision) -> Permit {
    decision.into_permit().expect("there is room")
}

/// Promise 5: the connection breaks after the charge. The ask is sent again with its id, and charged once.
#[tokio::test]
async fn r000_12_an_ask_whose_reply_was_lost_is_charged_once() {
    let redis = server();
    let proxy = Lossy::start(redis.address()).unwrap();
    let gate = connect(Options::single(format!("redis://{}/", proxy.address()))).await;
    let policy = daily(5);
    assert!(acquire(&gate, &policy, "p").await.unwrap());
    proxy.cut_replies(1);
    let ask = Ask::new(&policy, "p").id("once");
    let first = admitted(gate.acquire(&ask).await.unwrap());
    assert_eq!((proxy.cut(), used(&gate, &policy, "p").await), (1, 2));
    let again = admitted(gate.acquire(&ask).await.unwrap());
    assert_eq!((first.grant(), used(&gate, &policy, "p").await), (again.grant(), 2));
}

/// An ask without an id is never sent again: its outcome is unknown, and the caller gets an error. A caller who asks
/// again is charged twice, which is what the id is for.
#[tokio::test]
async fn an_ask_without_an_id_is_not_sent_again() {
    let redis = server();
    let proxy = Lossy::start(redis.address()).unwrap();
    let gate = connect(Options::single(format!("redis://{}/", proxy.address()))).await;
    let policy = daily(5);
    assert!(acquire(&gate, &policy, "p").await.unwrap());
    proxy.cut_replies(1);
    let lost = acquire(&gate, &policy, "p").await.unwrap_err();
    assert_eq!((lost.kind(), proxy.cut()), (ErrorKind::Unavailable, 1), "{lost}");
    assert_eq!(used(&gate, &policy, "p").await, 2);
    assert!(acquire(&gate, &policy, "p").await.unwrap());
    assert_eq!(used(&gate, &policy, "p").await, 3);
}

/// Promise 5: the answer comes too late. Asking again with the id gets the permit of the first time.
#[tokio::test]
async fn r000_12_an_ask_that_took_too_long_is_charged_once() {
    let redis = server();
    let proxy = Lossy::start(redis.address()).unwrap();
    let options = Options::single(format!("redis://{}/", proxy.address()));
    let gate = connect_hasty(options.attempt_timeout(Span::from_secs(1))).await;
    let (policy, watching) = (daily(5), connect(Options::single(redis.url())).await);
    assert!(acquire(&watching, &policy, "p").await.unwrap());
    proxy.hold_replies(true);
    let ask = Ask::new(&policy, "p").id("once");
    let late = gate.acquire(&ask).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::TimedOut, "{late}");
    // It was applied, if perhaps only now.
    while used(&watching, &policy, "p").await != 2 {
        tokio::task::yield_now().await;
    }
    proxy.hold_replies(false);
    let mut answer = gate.acquire(&ask).await;
    for _ in 0..TRIES_MAX {
        if answer.is_err() {
            answer = gate.acquire(&ask).await;
        }
    }
    assert!(answer.unwrap().is_admitted());
    assert_eq!(used(&watching, &policy, "p").await, 2);
}

/// The client of a cluster sends an ask again on its own when a connection breaks; the id that the ask was given for that
/// makes it one charge.
#[tokio::test]
async fn r000_12_a_cluster_charges_once_though_its_client_asks_twice() {
    let cluster = RedisCluster::start().unwrap();
    let node = cluster.urls()[0].replace("redis://", "").replace('/', "");
    let proxy = Lossy::start(node.parse().unwrap()).unwrap();
    // The node says of itself that it is where the proxy is.
    let port = proxy.address().port().to_string();
    cluster.command(0, &["config", "set", "cluster-announce-port", &port]).unwrap();
    let (policy, subject) = (daily(5), subject_among(&cluster, 5_461));
    let gate = connect(Options::cluster([format!("redis://{}/", proxy.address())])).await;
    assert!(acquire(&gate, &policy, &subject).await.unwrap());
    cluster.command(0, &["config", "resetstat"]).unwrap();
    proxy.cut_replies(1);
    assert!(acquire(&gate, &policy, &subject).await.unwrap());
    assert_eq!(proxy.cut(), 1);
    let stats = cluster.command(0, &["info", "commandstats"]).unwrap();
    assert!(stats.contains("cmdstat_evalsha:calls=2,"), "it was sent twice: {stats}");
    assert_eq!(used(&gate, &policy, &subject).await, 2);
}
