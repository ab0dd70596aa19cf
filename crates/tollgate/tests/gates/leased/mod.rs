//! The leased strategy: the shared suite here, and beside it what it adds.

mod blocks;
mod calls;
mod joint;
mod over;
mod permits;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::clock::ManualClock;
use tollgate::core::{Amounts, Verdict, Wait};
use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::observe::{Event, Observer};
use tollgate::policy::{Period, Rule};
use tollgate::strategy::{Leased, LeasedOptions};
use tollgate::{
    Ask, CalendarWindow, Clock, Concurrency, Costs, Decision, Error, ErrorKind, Gate, GateExt,
    Limit, Memory, Permit, Policy, RollingWindow, Span, TokenBucket,
};
use tollgate_conformance::{Capabilities, Fixture};

use crate::memory;

const TTL: Span = Span::from_millis(100);

/// A gate that counts what reaches the store, and fails where told to.
#[derive(Debug)]
struct Counted {
    gate: Arc<Memory>,
    acquires: AtomicU64,
    settles: AtomicU64,
    charges: AtomicU64,
    /// How many answers to acquires get lost, from now on.
    lose: AtomicU64,
}

impl Counted {
    fn new(gate: Arc<Memory>) -> Arc<Self> {
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
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        match operation {
            Operation::Acquire(_) => {
                count(&self.acquires);
                return Box::pin(async move {
                    let outcome = self.gate.run(operation).await;
                    let less = |left: u64| left.checked_sub(1);
                    if self.lose.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
                        return Err(Error::new(ErrorKind::Unavailable, "the answer got lost"));
                    }
                    outcome
                });
            }
            Operation::Settle(..) | Operation::Release(_) => count(&self.settles),
            Operation::Charge(_) => count(&self.charges),
            _ => {}
        }
        self.gate.run(operation)
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
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

tollgate_conformance::suite! {
    fn leased() -> Fixture {
        let (gate, clock) = memory();
        let leased = Leased::new(gate, LeasedOptions::default(), Arc::new(clock.clone()));
        Fixture::new(Arc::new(leased), clock)
            .with_capabilities(Capabilities { joint: true, ..Capabilities::default() })
    }
}
