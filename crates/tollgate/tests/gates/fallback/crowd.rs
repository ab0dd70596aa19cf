//! Many callers when the store comes back: one probe at a time, nobody before their debt, and nothing lost with one who
//! leaves. Each is seen to fail where the callers do not share a gate.

use std::sync::Arc;

use tollgate::clock::ManualClock;
use tollgate::policy::OnStoreFailure;
use tollgate::{Ask, GateExt, Span};
use tollgate_conformance::faulty::Trouble;

use super::{admitted, away};
use crate::faulty::{Gated, Store, drive, fallback, hourly, idle, pass, used};

/// Which gate each of several callers asks.
#[derive(Clone, Copy)]
enum Callers {
    /// All of them the same one.
    Together,
    /// Sabotage: each a gate of its own, so that nobody knows what the others owe, or that they are asking.
    Apart,
}

impl Callers {
    /// The gate of the next caller.
    fn gate(self, store: &Store, clock: &ManualClock, gate: &Arc<Gated>) -> Arc<Gated> {
        match self {
            Self::Together => Arc::clone(gate),
            Self::Apart => fallback(store, clock).0,
        }
    }
}

/// How many of twenty are admitted by the store when a subject comes back to it with a debt as large as its limit.
async fn overtake(callers: Callers) -> usize {
    let policy = hourly(10, OnStoreFailure::Open);
    let (store, clock, gate) = away(&policy).await;
    for _ in 0..10 {
        admitted(&gate, &Ask::new(&policy, "p")).await;
    }
    store.always(Trouble::None);
    assert!(gate.probe().await);
    let mut asks = Vec::new();
    for number in 0..20 {
        let (gate, policy) = (callers.gate(&store, &clock, &gate), policy.clone());
        asks.push(tokio::spawn(async move {
            // Gates of their own would draw the same ids.
            let ask = Ask::new(&policy, "p").id(format!("caller-{number}"));
            gate.acquire(&ask).await.unwrap()
        }));
    }
    let mut admitted = 0;
    for ask in asks {
        let decision = drive(&clock, ask).await.unwrap();
        let degraded = decision.clone().into_denial().is_some_and(|denial| denial.degraded);
        assert!(!degraded, "by the store");
        admitted += usize::from(decision.is_admitted());
    }
    assert!(!drive(&clock, gate.acquire(&Ask::new(&policy, "p"))).await.unwrap().is_admitted());
    assert_eq!(used(&store, &policy, "p").await, 10 + admitted as u64);
    admitted
}

/// A subject that comes back to the store comes after its debt, however many ask at once.
#[tokio::test]
async fn nobody_overtakes_the_debt_of_their_subject() {
    assert_eq!(overtake(Callers::Together).await, 0);
    assert_eq!(overtake(Callers::Apart).await, 10, "the check can fail");
}

/// The most calls that are on their way at once while twenty want to know whether the store is back.
async fn probe_together(callers: Callers) -> usize {
    let policy = hourly(10, OnStoreFailure::Closed);
    let (store, clock, gate) = away(&policy).await;
    let before = store.calls();
    assert_eq!(store.most_at_once(), 1);
    for round in 0..10 {
        let mut probes = Vec::new();
        for _ in 0..20 {
            let gate = callers.gate(&store, &clock, &gate);
            drop(drive(&clock, gate.acquire(&Ask::new(&policy, "opens"))).await);
            probes.push(tokio::spawn(async move { gate.probe().await }));
        }
        drive(&clock, async {
            for probe in probes {
                assert!(!probe.await.unwrap(), "round {round}");
            }
        })
        .await;
    }
    assert!(before < store.calls());
    store.most_at_once()
}

/// One probe is on its way at any time, however many want to know.
#[tokio::test]
async fn one_probe_at_a_time() {
    assert_eq!(probe_together(Callers::Together).await, 1);
    assert!(1 < probe_together(Callers::Apart).await, "the check can fail");
}

/// A caller that goes away half way through posting loses nothing and blocks nobody.
#[tokio::test]
async fn a_caller_that_gives_up_while_posting_loses_nothing() {
    let policy = hourly(10, OnStoreFailure::Open);
    let (store, clock, gate) = away(&policy).await;
    admitted(&gate, &Ask::new(&policy, "p")).await;
    store.always(Trouble::HangsAfter);
    store.next_calls([Trouble::None; 2]);
    assert!(gate.probe().await);
    let impatient = {
        let (gate, policy) = (Arc::clone(&gate), policy.clone());
        tokio::spawn(async move { gate.acquire(&Ask::new(&policy, "p")).await })
    };
    idle().await;
    impatient.abort();
    store.always(Trouble::None);
    pass(&clock, Span::from_secs(40)).await;
    assert_eq!((used(&store, &policy, "p").await, gate.is_degraded()), (1, false));
}
