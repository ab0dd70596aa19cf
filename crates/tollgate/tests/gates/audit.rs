//! The log in memory.

use tollgate::audit::{AuditLog, MemoryLog, Outcome, Query, Record};
use tollgate::{Ask, Clock, GateExt, Limit, Policy, TokenBucket};
use tollgate_conformance::audit::{check, record};

use crate::memory;

#[tokio::test]
async fn memory_is_a_log() {
    check(&MemoryLog::new(100)).await;
}

/// It never holds more than it may, trimmed or not, and the numbers go on.
#[tokio::test]
async fn memory_is_a_ring() {
    let log = MemoryLog::new(2);
    for secs in 1..=5 {
        log.append(&[record(secs, "a")]).await.unwrap();
    }
    let numbers: Vec<u64> =
        log.find(&Query::default()).await.unwrap().records.iter().map(|one| one.number).collect();
    assert_eq!(numbers, [5, 4]);
}

/// A record has every charge: of a denial those that refused, and of an admission those that shadow mode let through.
#[tokio::test]
async fn a_record_has_every_charge_and_what_refused_it() {
    let (gate, clock) = memory();
    let policy = |name: &str, most: u64, shadow| {
        let limit = Limit::new("rate", "requests", TokenBucket::per_minute(1).burst(most));
        Policy::builder(name).limit(limit).shadow(shadow).build().unwrap()
    };
    let (user, trial, team) =
        (policy("user", 9, false), policy("trial", 1, true), policy("team", 2, false));
    let ask = Ask::new(&user, "u1").and(&trial, "u1").and(&team, "t7");
    let mut records = Vec::new();
    for _ in 0..3 {
        let decision = gate.acquire(&ask).await.unwrap();
        records.push(Record::for_decision(&ask, &decision, clock.now()));
    }
    let seen = records.iter().map(|record| {
        let refused: Vec<usize> = record.charges.iter().map(|it| it.refused.len()).collect();
        let limited = record.limited().map(|(policy, subject)| (&**policy, &**subject));
        (record.outcome, &*record.policy, refused, limited.collect::<Vec<_>>())
    });
    let expected = [
        (Outcome::Admitted, "user", vec![0, 0, 0], vec![]),
        (Outcome::ShadowDenied, "trial", vec![0, 1, 0], vec![("trial", "u1")]),
        (Outcome::Denied, "team", vec![0, 0, 1], vec![("team", "t7")]),
    ];
    assert_eq!(seen.collect::<Vec<_>>(), expected);
    let costs = records[0].charges.iter().map(|it| it.costs.get("requests"));
    assert_eq!(costs.collect::<Vec<_>>(), [Some(1); 3]);
    let single = Ask::new(&user, "u1");
    let decision = gate.acquire(&single).await.unwrap();
    assert!(Record::for_decision(&single, &decision, clock.now()).charges.is_empty());
}
