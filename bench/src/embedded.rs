//! The embedded store: decisions per fsync when strict, and how near to memory when relaxed.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate::{Ask, Gate, GateExt, Memory, Policy};
use tollgate_embedded::{Durability, Embedded, Options};

use crate::measure::{Contender, compare, median, print_rows};
use crate::memory::one;

const CALLERS: usize = 64;

/// How long one measurement runs.
const TURN: Duration = Duration::from_millis(250);

const TURNS: usize = 15;

/// What strict mode is held to: this many times the disk's own rate of fsyncs, or [`STRICT_MIN`] per second.
const FSYNCS_MIN: f64 = 20.0;

const STRICT_MIN: f64 = 50_000.0;

pub(crate) fn run() {
    let folder = tempfile::tempdir_in(".").expect("a folder on the disk of the work tree");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime of two threads");
    strict(&runtime, folder.path());
    relaxed(&runtime, folder.path());
}

fn open(path: &Path, durability: Durability) -> Arc<dyn Gate> {
    let options = Options::new().durability(durability);
    Arc::new(Embedded::open(path, options).expect("the folder is new"))
}

fn strict(runtime: &tokio::runtime::Runtime, folder: &Path) {
    println!("\n# Embedded store, strict: {CALLERS} callers, answers after the fsync\n");
    let policy = one();
    let gate = open(&folder.join("strict"), Durability::Strict);
    let mut disk = File::create(folder.join("probe")).expect("a file on the same disk");
    let mut rates: [Vec<f64>; 3] = Default::default();
    for _ in 0..TURNS {
        rates[0].push(fsyncs_per_second(&mut disk));
        rates[1].push(decisions_per_second(runtime, &gate, &policy, 10_000));
        rates[2].push(decisions_per_second(runtime, &gate, &policy, 1));
    }
    let [fsyncs, many, hot] = rates.map(median);
    println!("fsyncs of the disk       {fsyncs:>10.0} /s   (4 KiB written over, fdatasync)");
    let bound = (FSYNCS_MIN * fsyncs).min(STRICT_MIN);
    for (name, rate) in [("10,000 keys", many), ("one key", hot)] {
        let verdict = if bound <= rate { "ok" } else { "MISSED" };
        println!(
            "{name:<24} {rate:>10.0} /s   {:>6.1} decisions per fsync   >= {bound:.0} /s  {verdict}",
            rate / fsyncs
        );
    }
}

fn relaxed(runtime: &tokio::runtime::Runtime, folder: &Path) {
    println!(
        "\n# Embedded store, relaxed, beside the in-process store: time per decision of one caller\n"
    );
    let policy = one();
    let subjects: Vec<String> = (0..10_000).map(|number| format!("subject-{number}")).collect();
    let embedded = open(&folder.join("relaxed"), Durability::Relaxed);
    let memory: Arc<dyn Gate> = Arc::new(Memory::new());
    let decide = |gate: &Arc<dyn Gate>| {
        runtime.block_on(async {
            for subject in &subjects {
                let ask = Ask::new(&policy, subject.as_str());
                assert!(gate.acquire(&ask).await.expect("decides").is_admitted());
            }
        });
        subjects.len() as u64
    };
    let mut contenders = [
        Contender::new("memory, asynchronous", || decide(&memory)),
        Contender::new("embedded, relaxed", || decide(&embedded)),
    ];
    print_rows("10,000 keys", &compare(&mut contenders), |name| {
        (name == "embedded, relaxed").then_some(10.0)
    });
}

fn fsyncs_per_second(file: &mut File) -> f64 {
    let started = Instant::now();
    let mut done = 0_u32;
    while started.elapsed() < TURN {
        // Written over, as a write-ahead log is: the quickest fsync that the disk has.
        file.seek(SeekFrom::Start(0)).expect("the probe file seeks");
        file.write_all(&[0; 4_096]).expect("the disk has room");
        file.sync_data().expect("the disk syncs");
        done += 1;
    }
    f64::from(done) / started.elapsed().as_secs_f64()
}

fn decisions_per_second(
    runtime: &tokio::runtime::Runtime,
    gate: &Arc<dyn Gate>,
    policy: &Policy,
    keys: usize,
) -> f64 {
    let started = Instant::now();
    let decided: u64 = runtime.block_on(async {
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let (gate, policy) = (Arc::clone(gate), policy.clone());
                tokio::spawn(async move {
                    let mut decided = 0_u64;
                    while started.elapsed() < TURN {
                        let key = (caller + CALLERS * decided as usize) % keys;
                        let ask = Ask::new(&policy, format!("subject-{key}")).into_owned();
                        assert!(gate.acquire(&ask).await.expect("decides").is_admitted());
                        decided += 1;
                    }
                    decided
                })
            })
            .collect();
        let mut decided = 0;
        for caller in callers {
            decided += caller.await.expect("no caller fails");
        }
        decided
    });
    decided as f64 / started.elapsed().as_secs_f64()
}
