//! Measures the store against the disk and against memory, in turns within one run: `cargo run --release -p
//! tollgate-embedded --example speed_embedded`.
#![allow(clippy::disallowed_methods, reason = "it measures real time")]
#![allow(clippy::print_stdout, reason = "it prints what it measured")]

use std::error::Error;
use std::fs::File;
use std::io::{Seek, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollgate::{Ask, Atomic, Gate, Limit, Memory, Policy, TokenBucket};
use tollgate_embedded::{Durability, Embedded, Options};

const ROUNDS: usize = 5;
const CALLERS: usize = 64;
const TURN: Duration = Duration::from_millis(600);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
    let one = vec![Limit::new("rps", "requests", TokenBucket::per_second(1_000_000_000))];
    let bucket = |unit: &str| Limit::new(unit, unit, TokenBucket::per_second(1_000_000_000));
    let three = vec![bucket("requests"), bucket("tokens"), bucket("bytes")];
    for (name, limits) in [("1 limit", one), ("3 limits", three)] {
        let policy = Policy::new("speed", limits)?;
        for keys_per_caller in [1, 1_600] {
            println!("{name}, {CALLERS} callers, {} keys", CALLERS * keys_per_caller);
            runtime.block_on(compare(&policy, keys_per_caller))?;
        }
    }
    Ok(())
}

async fn compare(policy: &Policy, keys_per_caller: usize) -> Result<()> {
    let folder = tempfile::tempdir_in(std::env::current_dir()?.join("target"))?;
    let open = |name: &str, durability| -> Result<Arc<Atomic<Embedded>>> {
        let options = Options::new().durability(durability);
        let store = Embedded::open_with(&folder.path().join(name), options, 200_000)?;
        Ok(Arc::new(Atomic::new(store)))
    };
    let strict = open("strict", Durability::Strict)?;
    let relaxed = open("relaxed", Durability::Relaxed)?;
    let memory = Arc::new(Atomic::new(Memory::new()));
    for round in 1..=ROUNDS {
        let syncs = sync_rate(folder.path())?;
        let before = strict.store().stats();
        let by_strict = rate(&strict, policy, keys_per_caller, CALLERS).await;
        let after = strict.store().stats();
        let by_relaxed = rate(&relaxed, policy, keys_per_caller, 2).await;
        let by_memory = rate(&memory, policy, keys_per_caller, 2).await;
        let rows = after.rows - before.rows;
        let commits = (after.commits - before.commits).max(1);
        println!(
            "  {round}: disk {syncs}/s; strict {by_strict}/s = {} x disk, {} rows a commit; relaxed {by_relaxed}/s, \
             memory {by_memory}/s = {}.{} x relaxed",
            by_strict / syncs.max(1),
            rows / commits,
            by_memory / by_relaxed.max(1),
            by_memory * 10 / by_relaxed.max(1) % 10,
        );
    }
    Ok(())
}

/// Overwrites of 4 KiB with a sync each, per second.
fn sync_rate(folder: &Path) -> Result<u64> {
    let mut file = File::create(folder.join("sync"))?;
    let page = [7; 4_096];
    file.write_all(&page)?;
    file.sync_all()?;
    let started = Instant::now();
    let mut syncs = 0;
    while started.elapsed() < TURN {
        file.rewind()?;
        file.write_all(&page)?;
        file.sync_data()?;
        syncs += 1;
    }
    Ok(per_second(syncs, started.elapsed()))
}

async fn rate<G: Gate>(
    gate: &Arc<G>,
    policy: &Policy,
    keys_per_caller: usize,
    callers: usize,
) -> u64 {
    let over = Arc::new(AtomicBool::new(false));
    let decisions = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let (gate, policy) = (Arc::clone(gate), policy.clone());
            let (over, decisions) = (Arc::clone(&over), Arc::clone(&decisions));
            let subjects: Vec<String> =
                (0..keys_per_caller).map(|key| format!("subject-{caller}-{key}")).collect();
            tokio::spawn(async move {
                let mut done = 0;
                for subject in subjects.iter().cycle() {
                    let admitted = gate.acquire(&Ask::new(&policy, subject.as_str())).await;
                    assert!(admitted.is_ok_and(|decision| decision.is_admitted()));
                    done += 1;
                    // A gate that never waits would not let the others in.
                    if done % 64 == 0 {
                        tokio::task::yield_now().await;
                    }
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                }
                decisions.fetch_add(done, Ordering::Relaxed);
            })
        })
        .collect();
    tokio::time::sleep(TURN).await;
    over.store(true, Ordering::Relaxed);
    for task in tasks {
        let _ = task.await;
    }
    per_second(decisions.load(Ordering::Relaxed), started.elapsed())
}

fn per_second(count: u64, elapsed: Duration) -> u64 {
    let micros = elapsed.as_micros().max(1);
    u64::try_from(u128::from(count) * 1_000_000 / micros).unwrap_or(u64::MAX)
}
