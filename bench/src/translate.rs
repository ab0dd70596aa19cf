//! Whole translations by the program that people run: real processes, chunks of 3,500 tokens, the policy of
//! examples/translate.toml with its margins, and a provider that enforces the same quota and takes ten seconds per call.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use tollgate::Span;
use tollgate::clock::SystemClock;
use tollgate_testkit::fakes::gemini::{FakeGemini, Quota, Served, Settings, Tally};
use tollgate_testkit::servers::Redis;

/// What `gemini-paid` in examples/translate.toml allows.
const QUOTA: Quota = Quota { rpm: 150, tpm: 1_000_000, ..Quota::NONE };

const POLICIES: &str = include_str!("../../examples/translate.toml");

const LATENCY_SECONDS: u64 = 10;

/// The quota of a minute comes back after the minute and the margin.
const WINDOW_SECONDS: f64 = 62.0;

pub(crate) fn run() {
    println!(
        "\n# Translation: {LATENCY_SECONDS} s per call, 150 requests a minute with a margin of 2 s\n"
    );
    let built = Command::new("cargo")
        .args(["build", "--quiet", "--release", "-p", "tollgate-cli"])
        .status();
    assert!(built.is_ok_and(|status| status.success()), "tollgate builds");
    println!(
        "| documents | processes | calls at once | calls | refused | seconds | of the bound | of one call after the other |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (words, processes, workers) in
        [(65_000, 1, 10), (65_000, 1, 30), (400_000, 1, 40), (65_000, 10, 10)]
    {
        measure(words, processes, workers);
    }
}

/// Translates a document of so many `words` in each of so many `processes` with so many `workers`.
fn measure(words: usize, processes: u64, workers: u64) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let latency = Span::from_secs(LATENCY_SECONDS);
    let settings = Settings { quota: QUOTA, latency, ..Settings::default() };
    let fake = FakeGemini::new(Arc::new(SystemClock), settings);
    let served = runtime.block_on(fake.serve(0)).expect("a port is free");
    let redis = Redis::start().expect("a server");
    let folder = tempfile::tempdir().expect("a folder");
    let store = format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url());
    write(folder.path(), "tollgate.toml", &format!("{store}{POLICIES}"));
    write(folder.path(), "gemini.key", "project.key\n");
    for number in 0..processes {
        write(folder.path(), &format!("{number}.txt"), &document(number, words));
    }
    let began = Instant::now();
    let start = |number| start(folder.path(), &served, number, workers);
    for mut child in (0..processes).map(start).collect::<Vec<_>>() {
        assert!(child.wait().is_ok_and(|status| status.success()), "a translation ends well");
    }
    let seconds = began.elapsed().as_secs_f64();
    print_row(words, (processes, workers), seconds, &fake.tally());
}

fn print_row(words: usize, (processes, workers): (u64, u64), seconds: f64, tally: &Tally) {
    let refused: u64 = tally.violations.values().sum();
    let waves = tally.calls.div_ceil(processes * workers) * LATENCY_SECONDS;
    let quota = (tally.calls.saturating_sub(1) / QUOTA.rpm) as f64 * WINDOW_SECONDS;
    let bound = (waves as f64).max(quota + LATENCY_SECONDS as f64);
    let sequential = (tally.calls * LATENCY_SECONDS) as f64;
    println!(
        "| {words} words each | {processes} | {} | {} | {refused} | {seconds:.1} | {:.2} ({bound:.0} s) | {:.1}x faster |",
        processes * workers,
        tally.calls,
        seconds / bound,
        sequential / seconds,
    );
}

fn start(folder: &Path, served: &Served, number: u64, workers: u64) -> Child {
    let program = std::env::current_exe().expect("this program has a path");
    Command::new(program.with_file_name("tollgate"))
        .current_dir(folder)
        .args(["translate", &format!("{number}.txt"), "--to", "fr", "--yes"])
        .args(["--policy", "gemini-paid", "--key-file", "gemini.key"])
        .args(["--workers", &workers.to_string(), "--provider-url", &served.url()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts")
}

fn write(folder: &Path, file: &str, text: &str) {
    std::fs::write(folder.join(file), text).expect("a temporary folder is writable");
}

/// No two paragraphs are alike, so that none is taken from another's translation.
fn document(number: u64, words: usize) -> String {
    let paragraph = |place: usize| {
        let said = "the river ran between old houses, and nobody knew where it came from, although people talked. ";
        format!("In volume {number} paragraph {place} says that {}\n\n", said.repeat(5))
    };
    (0..words / 92).map(paragraph).collect()
}
