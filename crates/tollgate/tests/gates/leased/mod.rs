//! The leased strategy: the shared suite here, and beside it what it adds.

mod blocks;
mod calls;
mod over;
mod permits;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{
    Amounts, Ask, Atomic, BoxFuture, CalendarWindow, Clock, Concurrency, Costs, Decision, Error,
    ErrorKind, Event, Gate, Leased, LeasedOptions, Limit, ManualClock, Memory, Observer, Period,
    Permit, Policy, RollingWindow, Rule, Span, TokenBucket, Verdict, Wait,
};
use tollgate_testing::conformance::{Fixture, run_all};

use crate::memory;

const TTL: Span = Span::from_millis(100);

/// A gate that counts what reaches the store, and fails where told to.
#[derive(Debug)]
struct Counted {
    gate: Arc<Atomic<Memory>>,
    acquires: AtomicU64,
    settles: AtomicU64,
    charges: AtomicU64,
    /// How many answers to acquires get lost, from now on.
    lose: AtomicU64,
}

impl Counted {
    fn new(gate: Arc<Atomic<Memory>>) -> Arc<Self> {
        let [acquires, settles, charges, lose] = std::array::from_fn(|_| AtomicU64::new(0));
        Arc::new(Self { gate, acquires, settles, charges, lose })
    }

    fn writes(&self) -> u64 {
        [&self.acquires, &self.settles, &self.charges]
            .map(|n| n.load(Ordering::Relaxed))
            .iter()
            .sum()
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Gate for Counted {
    fn acquire<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Decision, Error>> {
        count(&self.acquires);
        Box::pin(async move {
            let answer = self.gate.acquire(ask).await;
            let less = |left: u64| left.checked_sub(1);
            if self.lose.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
                return Err(Error::new(ErrorKind::Unavailable, "the answer got lost"));
            }
            answer
        })
    }

    fn settle<'a>(
        &'a self,
        permit: &'a Permit,
        actual: &'a Costs,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        count(&self.settles);
        self.gate.settle(permit, actual)
    }

    fn release<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<bool, Error>> {
        count(&self.settles);
        self.gate.release(permit)
    }

    fn charge<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Permit, Error>> {
        count(&self.charges);
        self.gate.charge(ask)
    }

    tollgate::pass_on!(gate: renew, close_until, standing, reset);
}

/// A store with counted writes, and instances around it.
struct Fleet {
    store: Arc<Counted>,
    clock: ManualClock,
}

impl Fleet {
    fn new() -> Self {
        let (gate, clock) = memory();
        Self { store: Counted::new(gate), clock }
    }

    fn instance(&self) -> Leased<Arc<Counted>> {
        self.with(LeasedOptions::default())
    }

    fn with(&self, options: LeasedOptions) -> Leased<Arc<Counted>> {
        Leased::new(Arc::clone(&self.store), options, Arc::new(self.clock.clone()))
    }

    /// Lets background tasks do what they can without time passing.
    async fn settle_down(&self) {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }

    async fn pass(&self, span: Span) {
        self.clock.advance(span);
        self.settle_down().await;
    }

    async fn used(&self, policy: &Policy) -> Vec<u64> {
        let standings = self.store.standing(policy, "alice").await.expect("it stands");
        standings.iter().map(|standing| standing.used).collect()
    }
}

fn leased(rule: impl Into<Rule>) -> Policy {
    leased_for(TTL, [Limit::new("only", "requests", rule)])
}

fn leased_for(ttl: Span, limits: impl IntoIterator<Item = Limit>) -> Policy {
    Policy::builder("test")
        .limits(limits)
        .block_ttl(ttl)
        .build()
        .expect("the numbers are in bounds")
}

async fn ask(gate: &impl Gate, policy: &Policy) -> Decision {
    gate.acquire(&Ask::new(policy, "alice")).await.expect("it decides")
}

/// Asks until the first denial, and returns the permits and the denial.
async fn drain(gate: &impl Gate, policy: &Policy) -> (Vec<Permit>, tollgate::Denial) {
    let mut permits = Vec::new();
    loop {
        match ask(gate, policy).await {
            Decision::Admitted(permit) => permits.push(permit),
            Decision::Denied(denial) => return (permits, denial),
        }
    }
}

#[test]
fn a_leased_gate_passes_the_suite() {
    let (gate, clock) = memory();
    let leased = Leased::new(gate, LeasedOptions::default(), Arc::new(clock.clone()));
    run_all(&Fixture::new(Arc::new(leased), clock)).unwrap();
}
