//! Ids, and how many limits there may be.

use tollgate::clock::ManualClock;
use tollgate::core::bounds;
use tollgate::policy::{Period, Rule};
use tollgate::{
    Ask, CalendarWindow, Concurrency, ErrorKind, GateExt, Limit, Policy, RollingWindow, Span,
    TokenBucket,
};
use tollgate_redis::{Options, Redis};
use tollgate_testkit::servers::RedisCluster;

use crate::agreement::Both;
use crate::{acquire, admitted, open_at, server, slow_bucket, used};

/// 2,000 ids on one subject: each is recognised, a conflict is one, and when they expire they are new.
async fn two_thousand_ids(gate: &Redis, clock: &ManualClock) {
    let policy = slow_bucket(10_000);
    let ask = |number: u64| Ask::new(&policy, "p").id(format!("id-{number}"));
    let mut permits = Vec::new();
    for number in 0..2_000 {
        permits.push(admitted(gate.acquire(&ask(number)).await.unwrap()));
    }
    clock.advance(Span::from_secs(119));
    for number in 0..2_000 {
        let again = admitted(gate.acquire(&ask(number)).await.unwrap());
        assert_eq!(again.grant(), permits[usize::try_from(number).unwrap()].grant());
    }
    assert_eq!(used(gate, &policy, "p").await, 2_000);
    let other = gate.acquire(&ask(1_500).cost("requests", 2)).await.unwrap_err();
    assert_eq!(other.kind(), ErrorKind::Conflict);
    assert!(gate.release(&permits[1_500]).await.unwrap());
    assert_ne!(admitted(gate.acquire(&ask(1_500)).await.unwrap()).grant(), permits[1_500].grant());
    clock.advance(Span::from_secs(1));
    for number in [0, 8, 1_999] {
        let again = admitted(gate.acquire(&ask(number)).await.unwrap());
        assert_ne!(again.grant(), permits[usize::try_from(number).unwrap()].grant());
    }
    assert_eq!(used(gate, &policy, "p").await, 2_003);
    // A reset makes those from before it new, and no others.
    assert!(gate.reset(&policy, "p").await.unwrap());
    let after = admitted(gate.acquire(&ask(8)).await.unwrap());
    assert_eq!(admitted(gate.acquire(&ask(8)).await.unwrap()).grant(), after.grant());
    assert_eq!(used(gate, &policy, "p").await, 1);
}

#[tokio::test]
async fn two_thousand_ids_of_one_subject_are_recognised() {
    let (redis, clock) = (server(), ManualClock::new());
    two_thousand_ids(&open_at(Options::single(redis.url()), &clock).await, &clock).await;
}

#[tokio::test]
async fn two_thousand_ids_of_one_subject_are_recognised_on_a_cluster() {
    let (cluster, clock) = (RedisCluster::start().unwrap(), ManualClock::new());
    two_thousand_ids(&open_at(Options::cluster(cluster.urls()), &clock).await, &clock).await;
}

/// On a cluster ids are fields of their entry. Those that expired go while others come, so that few are kept.
#[tokio::test]
async fn expired_ids_leave_the_entry_on_a_cluster() {
    for (format, asks) in [(4, 6_000), (3, 3_000)] {
        expired_ids_leave(format, asks).await;
    }
}

async fn expired_ids_leave(format: u8, asks: usize) {
    let (cluster, clock) = (RedisCluster::start().unwrap(), ManualClock::new());
    let options = Options::cluster(cluster.urls()).format(format).unwrap();
    let gate = open_at(options.attempt_timeout(Span::from_millis(500)), &clock);
    let (gate, policy) = (gate.await, slow_bucket(50_000));
    let key = gate.key(&policy, "p");
    let fields = || -> u64 {
        let count = |node| cluster.command(node, &["hlen", &key]).ok()?.trim().parse().ok();
        (0..3).find_map(count).unwrap()
    };
    let ask = Ask::new(&policy, "p");
    let mut most = 0;
    for number in 0..asks {
        clock.advance(Span::from_millis(20));
        let ask = ask.clone().id_for(format!("id-{number}"), Span::from_secs(4));
        assert!(gate.acquire(&ask).await.unwrap().is_admitted());
        if number % 100 == 0 {
            most = most.max(fields());
        }
    }
    // 200 live at a time.
    assert!(most <= 400, "{most} fields");
    clock.advance(Span::from_secs(5));
    for _ in 0..400 {
        assert!(acquire(&gate, &policy, "p").await.unwrap());
        clock.advance(Span::from_mins(1));
    }
    assert!(fields() <= 40, "{} fields", fields());
}

/// The id is remembered though its entry is gone, and nothing is charged then; with slots it is a new ask.
#[tokio::test]
async fn an_id_outlives_its_entry() {
    let (redis, clock) = (server(), ManualClock::new());
    let gate = open_at(Options::single(redis.url()), &clock).await;
    let policy = slow_bucket(100);
    let ask = Ask::new(&policy, "p").id("x");
    let first = admitted(gate.acquire(&ask).await.unwrap());
    redis.command(&["del", &gate.key(&policy, "p")]).unwrap();
    assert_eq!(admitted(gate.acquire(&ask).await.unwrap()).grant(), first.grant());
    assert_eq!(used(&gate, &policy, "p").await, 0);
    let slots = Limit::new("calls", "requests", Concurrency::new(2, Span::from_mins(1)));
    let policy = Policy::new("slots", [slots]).unwrap();
    let ask = Ask::new(&policy, "p").id("x");
    admitted(gate.acquire(&ask).await.unwrap());
    redis.command(&["del", &gate.key(&policy, "p")]).unwrap();
    clock.advance(Span::from_secs(1));
    admitted(gate.acquire(&ask).await.unwrap());
    assert_eq!(used(&gate, &policy, "p").await, 1);
}

/// Pairs of a subject and an id that would read alike are apart.
#[tokio::test]
async fn ids_of_subjects_with_braces_are_apart() {
    let (redis, clock) = (server(), ManualClock::new());
    let gate = open_at(Options::single(redis.url()), &clock).await;
    let policy = slow_bucket(100);
    let pairs = [("a", "}b"), ("a}", "b"), ("a}}b", "b"), ("a", "}}bb"), ("1:{bucket/a", "}b")];
    for (subject, id) in pairs {
        for _ in 0..2 {
            admitted(gate.acquire(&Ask::new(&policy, subject).id(id)).await.unwrap());
        }
    }
    let total = async {
        let mut sum = 0;
        for (subject, _) in &pairs[1..] {
            sum += used(&gate, &policy, subject).await;
        }
        sum
    };
    assert_eq!(total.await, 5);
}

/// The script is put together for the limits of a policy: as many as there may be, of every rule.
#[tokio::test]
async fn as_many_limits_as_there_may_be_are_decided_together() {
    let redis = server();
    let minute = Span::from_mins(1);
    let rules: [Rule; 5] = [
        CalendarWindow::new(20, Period::Day).into(),
        TokenBucket::per(7, minute).burst(20).into(),
        TokenBucket::per(3, minute).burst(20).at_boundaries().into(),
        RollingWindow::new(20, minute).into(),
        Concurrency::new(20, minute).into(),
    ];
    for first in 0..rules.len() {
        let mut both = Both::new(&redis).await;
        let limits = (0..bounds::LIMITS_MAX).map(|number| {
            let rule = rules[if number < 4 { first } else { (first + number) % 5 }].clone();
            Limit::new(format!("limit-{number}"), "requests", rule)
        });
        let policy = Policy::new(format!("all-{first}"), limits).unwrap();
        for number in 0..30_u64 {
            both.clock.advance(Span::from_secs(number % 3));
            let ask = Ask::new(&policy, "p").id(format!("id-{}", number / 2));
            let admitted = both.acquire(&ask).await.unwrap().is_admitted();
            assert!(admitted || 20 <= number, "{first}: {number}");
        }
    }
}
