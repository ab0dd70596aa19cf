//! How fast it is, beside what one would write first, in one run on one real server.
//!
//! ```text
//! cargo run --release -p tollgate-postgres --example speed_postgres
//! ```
//! Each line is the median of several rounds, and the rounds of all lines take turns, so that whatever else the machine
//! does meets all of them. The peer and the gate have the same number of connections and of callers.
#![allow(clippy::print_stdout, reason = "it prints a table")]
#![allow(clippy::unwrap_used, reason = "a measurement that fails is none")]
#![allow(clippy::disallowed_methods, reason = "it measures time")]

mod peer;
mod rows;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollgate::{Ask, Gate, Limit, Policy, RollingWindow, Span, TokenBucket};
use tollgate_postgres::{Options, Postgres};
use tollgate_testing::servers;

const CONNECTIONS: usize = 8;
const ROUND: Duration = Duration::from_millis(400);
const ROUNDS: usize = 5;
const KEYS: usize = 10_000;

/// One turn of a caller: the caller, and how often it has had its turn.
type Work = Arc<dyn Fn(usize, usize) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    statements().await;
    for (name, arguments) in [("fsync off", ""), ("fsync on", "-c fsync=on")] {
        // Nothing but the work is measured.
        let arguments = format!("-c shared_preload_libraries= {arguments}");
        let server = servers::Postgres::start_with(arguments.trim_end()).unwrap();
        let url = server.url(&server.database().unwrap());
        let gate = Options::new(&url).unwrap().connections_max(CONNECTIONS);
        let gate = Arc::new(Postgres::open(gate).await.unwrap());
        let peer = Arc::new(peer::Peer::open(&url).await);
        fill(&gate).await;
        for callers in [8 * CONNECTIONS, CONNECTIONS] {
            for keys in [1, KEYS] {
                own_tables(name, callers, keys, &gate, &peer).await;
            }
        }
    }
    rows::measure().await;
}

fn policy(limit: u64) -> Policy {
    let limits = [
        Limit::new("rps", "requests", TokenBucket::per_second(limit * 10).burst(limit * 10)),
        Limit::new(
            "rph",
            "requests",
            RollingWindow::new(limit, Span::from_hours(1)).resolution(12),
        ),
        Limit::new("tpm", "tokens", TokenBucket::per_minute(limit * 1_000)),
    ];
    Policy::new(format!("speed-{limit}"), limits).unwrap()
}

/// A limit that nobody reaches, and one that everybody has.
const MANY: u64 = 10_000_000;
const FEW: u64 = 1;

fn subject(caller: usize, turn: usize, keys: usize) -> String {
    format!("s-{}", (caller * 7_919 + turn * 31) % keys)
}

/// No id comes twice.
static IDS: AtomicU64 = AtomicU64::new(0);

/// Asks with three limits, and with an id each if `ids`.
fn asks(gate: &Arc<Postgres>, limit: u64, keys: usize, ids: bool) -> Work {
    let (gate, policy) = (Arc::clone(gate), policy(limit));
    Arc::new(move |caller, turn| {
        let (gate, policy) = (Arc::clone(&gate), policy.clone());
        Box::pin(async move {
            let ask = Ask::new(&policy, subject(caller, turn, keys)).cost("tokens", 10);
            let id = IDS.fetch_add(1, Ordering::Relaxed).to_string();
            let ask = if ids { ask.id(id) } else { ask };
            gate.acquire(&ask).await.unwrap();
        })
    })
}

/// Asks once for every key, so that whoever asks for few is refused from then on.
async fn fill(gate: &Arc<Postgres>) {
    let policy = policy(FEW);
    let tasks = (0..8 * CONNECTIONS).map(|first| {
        let (gate, policy) = (Arc::clone(gate), policy.clone());
        tokio::spawn(async move {
            for key in (first..KEYS).step_by(8 * CONNECTIONS) {
                gate.acquire(&Ask::new(&policy, format!("s-{key}"))).await.unwrap();
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

/// Turns per second of `callers` that do `work` for a round.
async fn measure(callers: usize, work: &Work) -> f64 {
    let begun = Instant::now();
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let work = Arc::clone(work);
            tokio::spawn(async move {
                let mut turns = 0;
                while begun.elapsed() < ROUND {
                    work(caller, turns).await;
                    turns += 1;
                }
                turns
            })
        })
        .collect();
    let mut turns = 0;
    for task in tasks {
        turns += task.await.unwrap();
    }
    f64::from(u32::try_from(turns).unwrap()) / begun.elapsed().as_secs_f64()
}

async fn own_tables(
    name: &str,
    callers: usize,
    keys: usize,
    gate: &Arc<Postgres>,
    peer: &Arc<peer::Peer>,
) {
    println!("{name}, {callers} callers, {CONNECTIONS} connections, {keys} keys, three limits");
    // One row remembers no more than a thousand ids, so on one key they would soon be refused.
    let ids = 1 < keys;
    let lines: [(&str, Work); 5] = [
        ("SELECT FOR UPDATE + UPDATE", peer::Peer::asks(peer, keys, true)),
        ("SELECT FOR UPDATE, refused", peer::Peer::asks(peer, keys, false)),
        ("admitted", asks(gate, MANY, keys, false)),
        (
            if ids { "admitted, with ids" } else { "admitted, again" },
            asks(gate, MANY - 1, keys, ids),
        ),
        ("refused", asks(gate, FEW, keys, false)),
    ];
    let mut figures = [const { Vec::new() }; 5];
    for _ in 0..ROUNDS {
        for ((_, work), figures) in lines.iter().zip(&mut figures) {
            figures.push(measure(callers, work).await);
        }
    }
    let medians = figures.map(|mut all| {
        all.sort_by(f64::total_cmp);
        all[ROUNDS / 2]
    });
    for ((line, _), median) in lines.iter().zip(medians) {
        println!("  {line:<32} {median:>8.0}/s  {:.2}x", median / medians[0]);
    }
}

/// How many statements the server sees for each decision, counted by the server.
async fn statements() {
    let server = servers::Postgres::start().unwrap();
    let database = server.database().unwrap();
    let options = Options::new(&server.url(&database)).unwrap().connections_max(CONNECTIONS);
    let gate = Arc::new(Postgres::open(options).await.unwrap());
    server.psql(&database, "CREATE EXTENSION pg_stat_statements").unwrap();
    println!("statements that the server counts for each decision");
    let lines = [
        ("admitted, which makes the row", asks(&gate, MANY, KEYS, false)),
        ("admitted, with ids", asks(&gate, MANY, KEYS, true)),
        ("refused", asks(&gate, FEW, 1, false)),
    ];
    for (line, work) in lines {
        const ASKS: usize = 1_000;
        work(0, 0).await;
        server.psql(&database, "SELECT pg_stat_statements_reset()").unwrap();
        for turn in 1..=ASKS {
            work(0, turn).await;
        }
        let calls = "SELECT sum(calls) FROM pg_stat_statements WHERE query NOT LIKE '%_reset()'";
        let calls: f64 = server.psql(&database, calls).unwrap().parse().unwrap();
        println!("  {line:<32} {:.3}", calls / ASKS as f64);
    }
}
