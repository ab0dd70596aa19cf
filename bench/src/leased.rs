//! The leased strategy: what a local decision costs beside the memory store, and how many writes, how much over-issue and
//! how much unused limit a fleet of instances has on one hot key.
//!
//! The fleet runs in virtual time: the instances and the store share a clock that moves by steps, so that the figures are
//! the same on any machine.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::clock::{ManualClock, SystemClock};
use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::observe::{Event, Observer};
use tollgate::policy::Rule;
use tollgate::strategy::{Leased, LeasedOptions};
use tollgate::{
    Ask, Error, Gate, GateExt, Limit, Memory, Policy, RollingWindow, Span, Timestamp, TokenBucket,
};

use crate::measure::{Contender, compare, print_rows};

const OPERATIONS: u64 = 100_000;
pub(crate) const INSTANCES: usize = 8;

/// What the issue asks for: store writes per admitted ask, and use of the limit when more is asked for than it has.
pub(crate) const WRITES_MAX: f64 = 0.02;
pub(crate) const USE_MIN: f64 = 0.95;

/// How the fleet asks: every instance so many times in each step of virtual time.
const STEP: Span = Span::from_millis(1);
const SECONDS: u64 = 30;

pub(crate) fn run() {
    println!("\n# Leased: a local decision, ratio to the memory store's\n");
    local();
    println!("\n# Leased: {INSTANCES} instances, one hot key, {SECONDS} s of virtual time\n");
    let second = Span::from_secs(1);
    let window = Span::from_secs(10);
    let cases: [(&str, Rule, u64, u64); 4] = [
        ("bucket 5,000/s, asked for twice that", TokenBucket::per(5_000, second).into(), 250, 2),
        ("bucket 20,000/s, asked for twice that", TokenBucket::per(20_000, second).into(), 100, 5),
        (
            "window 60,000 per 10 s, half again as much",
            RollingWindow::new(60_000, window).into(),
            250,
            1,
        ),
        (
            "window of 50 slots, the same",
            RollingWindow::new(60_000, window).resolution(50).into(),
            250,
            1,
        ),
    ];
    for (name, rule, ttl, per_step) in cases {
        fleet(name, rule, Span::from_millis(ttl), per_step);
    }
}

pub(crate) fn policy(rule: Rule, ttl: Span) -> Policy {
    let builder = Policy::builder("bench").limit(Limit::new("hot", "requests", rule));
    builder.block_ttl(ttl).build().expect("the numbers are in bounds")
}

/// One thread on one key, with limits that never bind.
fn local() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build();
    let runtime = runtime.expect("a thread");
    let _inside = runtime.enter();
    // A block of sixty million for a minute, so that spending is measured and not leasing.
    let rate = TokenBucket::per(1_000_000_000, Span::from_secs(1_000));
    let policy = policy(rate.into(), Span::from_mins(1));
    let memory = Memory::new();
    let leased = Leased::new(Memory::new(), LeasedOptions::default(), Arc::new(SystemClock));
    let ask = Ask::new(&policy, "subject-0");
    let mut contenders = [
        Contender::new("memory", || {
            for _ in 0..OPERATIONS {
                drop(black_box(memory.try_acquire(&Ask::new(&policy, "subject-0"))));
            }
            OPERATIONS
        }),
        Contender::new("leased", || {
            for _ in 0..OPERATIONS {
                let decided = leased.try_acquire(&Ask::new(&policy, "subject-0"));
                if !matches!(black_box(decided), Ok(Some(_))) {
                    drop(black_box(runtime.block_on(leased.acquire(&ask))));
                }
            }
            OPERATIONS
        }),
    ];
    print_rows("1 key, 1 thread", &compare(&mut contenders), |name| {
        (name == "leased").then_some(2.0)
    });
}

/// A store that counts what reaches it: leases, refused ones included, and returns.
#[derive(Debug)]
pub(crate) struct Counted<G> {
    gate: G,
    writes: Arc<AtomicU64>,
}

impl<G> Counted<G> {
    pub(crate) const fn new(gate: G, writes: Arc<AtomicU64>) -> Self {
        Self { gate, writes }
    }
}

impl<G: Gate> Gate for Counted<G> {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        let counts = matches!(
            operation,
            Operation::Acquire(_)
                | Operation::Settle(..)
                | Operation::Release(_)
                | Operation::Charge(_)
        );
        self.writes.fetch_add(u64::from(counts), Ordering::Relaxed);
        self.gate.run(operation)
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}

/// Leased and unspent tokens.
#[derive(Debug, Default)]
struct Blocks {
    taken: AtomicU64,
    unspent: AtomicU64,
}

impl Observer for Blocks {
    fn observe(&self, event: &Event<'_>) {
        if let Event::BlockReturned { taken, unspent, .. } = event {
            self.taken.fetch_add(taken.at(0), Ordering::Relaxed);
            self.unspent.fetch_add(unspent.at(0), Ordering::Relaxed);
        }
    }
}

fn fleet(name: &str, rule: Rule, ttl: Span, per_step: u64) {
    let (allowed, burst, window) = match &rule {
        Rule::TokenBucket(rule) => {
            (rule.refill * SECONDS + rule.capacity, rule.capacity, Span::ZERO)
        }
        Rule::RollingWindow(rule) => (0, rule.limit, rule.window),
        _ => (0, 0, Span::ZERO),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let (times, writes, blocks) = runtime.block_on(drive(policy(rule, ttl), per_step));
    let admitted: u64 = times.iter().sum();
    let (over, usable) = if window.is_zero() {
        (admitted.saturating_sub(allowed), allowed)
    } else {
        // The sum over every window that ends with a step; the first windows fill up from nothing.
        let steps = (window.as_micros() / STEP.as_micros()) as usize;
        let mut sum = 0;
        let mut over = 0;
        for (step, count) in times.iter().enumerate() {
            sum += count;
            if steps <= step {
                sum -= times[step - steps];
            }
            over = over.max(sum.saturating_sub(burst));
        }
        (over, burst * SECONDS * 1_000_000 / window.as_micros())
    };
    let per_ask = writes as f64 / admitted as f64;
    let used = admitted as f64 / usable as f64;
    let unused = blocks.unspent.load(Ordering::Relaxed) as f64
        / blocks.taken.load(Ordering::Relaxed).max(1) as f64;
    let verdict =
        if per_ask <= WRITES_MAX && over == 0 && USE_MIN <= used { "ok" } else { "MISSED" };
    println!(
        "{name:<44} ttl {ttl:<6} {:>6} admitted/s  {per_ask:.4} writes per ask (<= {WRITES_MAX})  over-issue {over}  \
         use {:.1} % (>= {:.0})  unspent in blocks {:.1} %  {verdict}",
        admitted / SECONDS,
        used * 100.0,
        USE_MIN * 100.0,
        unused * 100.0
    );
}

/// How many were admitted in each step, the store's writes, and what became of the blocks.
async fn drive(policy: Policy, per_step: u64) -> (Vec<u64>, u64, Arc<Blocks>) {
    let clock = ManualClock::new();
    let gate = Memory::with(Arc::new(clock.clone()), 100);
    let writes = Arc::new(AtomicU64::new(0));
    let store = Arc::new(Counted::new(gate, Arc::clone(&writes)));
    let blocks = Arc::new(Blocks::default());
    let instance = |_| {
        let (store, clock) = (Arc::clone(&store), Arc::new(clock.clone()));
        Leased::new(store, LeasedOptions::default(), clock).observer(blocks.clone())
    };
    let fleet: Vec<_> = (0..INSTANCES).map(instance).collect();
    let steps = SECONDS * 1_000_000 / STEP.as_micros();
    let mut times = Vec::with_capacity(steps as usize);
    for step in 0..steps {
        let mut admitted = 0;
        for turn in 0..INSTANCES {
            // The order alternates.
            let gate = &fleet[(turn + step as usize) % INSTANCES];
            for _ in 0..per_step {
                let decision = gate.acquire(&Ask::new(&policy, "hot")).await;
                admitted += u64::from(decision.is_ok_and(|decision| decision.is_admitted()));
            }
        }
        times.push(admitted);
        clock.advance(STEP);
        tokio::task::yield_now().await;
    }
    for gate in &fleet {
        gate.shutdown(Timestamp::MAX).await.expect("ends in time");
    }
    (times, writes.load(Ordering::Relaxed), blocks)
}
