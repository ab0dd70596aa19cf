//! Asks with four charges beside asks with one, on the same store, and waiting in the queue of a shared limit.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tollgate::clock::ManualClock;
use tollgate::{Ask, Clock, Gate, GateExt, Limit, Memory, Policy, Queue, Span, TokenBucket};
use tollgate_embedded::{Durability, Embedded};
use tollgate_testkit::servers;

use crate::load::{Bound, Case, compare, latency, runtime, subject};
use crate::measure::median;

const KEYS: usize = 10_000;
const CALLERS: usize = 50;

const ONE: &str = "one charge";
const FOUR: &str = "four charges";

/// A store, and how many times the throughput of an ask with one charge may be that of one with four.
struct Contender {
    name: &'static str,
    gate: Arc<dyn Gate>,
    times_max: f64,
}

pub(crate) fn run() {
    let runtime = runtime();
    let folder = tempfile::tempdir_in(".").expect("a folder on the disk of the work tree");
    let redis = servers::Redis::start().expect("a server");
    let postgres = servers::Postgres::start().expect("a server");
    let url = postgres.url(&postgres.database().expect("a database"));
    println!("\n# Four charges beside one of the same policy: {CALLERS} callers, {KEYS} keys\n");
    let contenders = [
        Contender { name: "memory", gate: Arc::new(Memory::new()), times_max: 4.5 },
        Contender { name: "embedded, strict", gate: embedded(folder.path()), times_max: 1.5 },
        Contender {
            name: "redis",
            gate: runtime.block_on(open_redis(&redis.url())),
            times_max: 3.5,
        },
        Contender { name: "postgres", gate: runtime.block_on(open_postgres(&url)), times_max: 2.5 },
    ];
    for Contender { name, gate, times_max } in contenders {
        println!("{name}");
        let cases = [acquire(ONE, &gate, 1), acquire(FOUR, &gate, 4)];
        let bounds = [Bound { case: FOUR, peer: ONE, least: 1.0 / times_max }];
        compare(&runtime, CALLERS, &cases, &[ONE], &bounds);
        for case in &cases {
            latency(&runtime, 500, case, Duration::from_secs(1));
        }
    }
    println!("\n# Waiters of 100 tenants in the queue of one limit: time to serve one of them\n");
    let few = serve_waiters(1_000);
    for waiters in [1_000, 10_000] {
        let nanos = serve_waiters(waiters);
        println!("  {waiters:>6} waiters {nanos:>8.0} ns   {:>5.2} of 1,000 waiters", nanos / few);
    }
}

fn embedded(folder: &Path) -> Arc<dyn Gate> {
    let options = tollgate_embedded::Options::new().durability(Durability::Strict);
    Arc::new(Embedded::open(&folder.join("joint"), options).expect("the folder is new"))
}

async fn open_redis(url: &str) -> Arc<dyn Gate> {
    let options = tollgate_redis::Options::single(url).attempt_timeout(Span::from_secs(20));
    Arc::new(tollgate_redis::Redis::open(options).await.expect("it answers"))
}

async fn open_postgres(url: &str) -> Arc<dyn Gate> {
    let options = tollgate_postgres::Options::new(url).expect("a url").connections_max(8);
    Arc::new(tollgate_postgres::Postgres::open(options).await.expect("the server answers"))
}

fn policy(name: &str) -> Policy {
    let rule = TokenBucket::per_second(1 << 30).burst(1 << 30);
    Policy::new(name, [Limit::new("rps", "requests", rule)]).expect("a valid policy")
}

fn acquire<'a>(name: &'a str, gate: &Arc<dyn Gate>, charges: usize) -> Case<'a> {
    let (gate, policy) = (Arc::clone(gate), policy("parties"));
    Case::new(name, move |caller, done| {
        let (gate, policy) = (Arc::clone(&gate), policy.clone());
        async move {
            let subjects: Vec<String> = (0..charges)
                .map(|charge| format!("{charge}-{}", subject(KEYS, caller + charge, done)))
                .collect();
            let first = Ask::new(&policy, subjects[0].as_str());
            let more = subjects[1..].iter();
            let ask = more.fold(first, |ask, subject| ask.and(&policy, subject.as_str()));
            assert!(gate.acquire(&ask).await.expect("decides").is_admitted());
        }
    })
}

/// The median time between two waiters that are served, which includes a decision in memory.
fn serve_waiters(waiters: usize) -> f64 {
    let runtime = single_thread();
    let clock = Arc::new(ManualClock::new());
    let memory = Memory::with(Arc::clone(&clock) as Arc<dyn Clock>, KEYS);
    let queue = Arc::new(Queue::new(memory, Arc::clone(&clock) as Arc<dyn Clock>));
    let user = policy("user");
    let account =
        Policy::new("account", [Limit::new("rps", "requests", TokenBucket::per_second(1))]);
    let account = account.expect("a valid policy");
    runtime.block_on(async {
        assert!(queue.acquire(&Ask::new(&account, "acme")).await.expect("decides").is_admitted());
        let deadline = clock.now() + Span::from_hours(24 * 30);
        let tasks: Vec<_> = (0..waiters)
            .map(|number| {
                let (queue, user, account) = (Arc::clone(&queue), user.clone(), account.clone());
                tokio::spawn(async move {
                    let tenant = format!("tenant-{}", number % 100);
                    let ask = Ask::new(&user, tenant).and(&account, "acme");
                    queue.acquire_within(&ask, deadline).await.expect("decides").is_admitted()
                })
            })
            .collect();
        while queue.waiting() < waiters {
            tokio::task::yield_now().await;
        }
        let mut times = Vec::new();
        for served in 0..500 {
            clock.advance(Span::from_secs(1));
            let begun = Instant::now();
            while waiters - served <= queue.waiting() {
                tokio::task::yield_now().await;
            }
            times.push(begun.elapsed().as_nanos() as f64);
        }
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
        median(times)
    })
}

fn single_thread() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}
