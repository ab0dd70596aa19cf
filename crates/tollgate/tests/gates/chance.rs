//! The same chance makes the same run: every id that reaches the store, and every stamp that a caller sees.

use std::sync::{Arc, Mutex};

use tollgate::clock::ManualClock;
use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::strategy::{Leased, LeasedOptions, Optimistic, OptimisticOptions, RandomSource};
use tollgate::{Ask, Clock, Error, Gate, GateExt, Memory, Policy, Span, Timestamp, TokenBucket};

use crate::faulty::chance;
use crate::policy;

/// A store that notes the ids it is sent.
#[derive(Debug)]
struct Noted {
    memory: Memory,
    ids: Arc<Mutex<Vec<String>>>,
}

impl Gate for Noted {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        if let Operation::Acquire(ask) | Operation::Charge(ask) = &operation {
            self.ids.lock().unwrap().extend(ask.id_text().map(ToOwned::to_owned));
        }
        self.memory.run(operation)
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}

/// What a run shows: the ids that the store was sent, and the stamps of the permits.
type Shown = (Vec<String>, Vec<u64>);

fn store() -> (Noted, Arc<Mutex<Vec<String>>>, ManualClock) {
    let clock = ManualClock::new();
    let (memory, ids) = (Memory::with(Arc::new(clock.clone()), 100), Arc::default());
    (Noted { memory, ids: Arc::clone(&ids) }, ids, clock)
}

async fn stamps(gate: &impl Gate, policy: &Policy) -> Vec<u64> {
    let mut stamps = Vec::new();
    for subject in ["a", "b", "c", "a", "b", "c"] {
        let decision = gate.acquire(&Ask::new(policy, subject)).await.unwrap();
        stamps.push(decision.into_permit().unwrap().grant().stamp);
    }
    stamps
}

async fn leased(chance: RandomSource) -> Shown {
    let (store, ids, clock) = store();
    let policy = Policy::builder("test")
        .limit(tollgate::Limit::new("only", "requests", TokenBucket::per_second(1_000)))
        .block_ttl(Span::from_millis(50))
        .build()
        .unwrap();
    let gate = Leased::new(store, LeasedOptions::default(), Arc::new(clock)).random(chance);
    let stamps = stamps(&gate, &policy).await;
    gate.shutdown(Timestamp::MAX).await.unwrap();
    (ids.lock().unwrap().clone(), stamps)
}

async fn optimistic(chance: RandomSource) -> Shown {
    let (store, ids, clock) = store();
    let policy = policy(TokenBucket::per_second(1_000));
    let deadline = clock.now() + Span::from_secs(1);
    let options = OptimisticOptions::new(100);
    let gate = Optimistic::new(store, options, Arc::new(clock)).random(chance);
    let stamps = stamps(&gate, &policy).await;
    gate.shutdown(deadline).await.unwrap();
    (ids.lock().unwrap().clone(), stamps)
}

/// As [`chance`], but one number on.
fn other_chance() -> RandomSource {
    let chance = chance();
    let _ = chance.draw();
    chance
}

#[tokio::test]
async fn a_leased_gate_draws_from_its_chance_alone() {
    let first = leased(chance()).await;
    assert!(!first.0.is_empty(), "a lease has an id");
    assert_eq!(first, leased(chance()).await);
    let other = leased(other_chance()).await;
    assert!(first.0[0] != other.0[0] && first.1.last() != other.1.last());
}

#[tokio::test]
async fn an_optimistic_gate_draws_from_its_chance_alone() {
    let first = optimistic(chance()).await;
    assert!(!first.0.is_empty(), "a post has an id");
    assert_eq!(first, optimistic(chance()).await);
    let other = optimistic(other_chance()).await;
    assert!(first.0[0] != other.0[0] && first.1.last() != other.1.last());
}
