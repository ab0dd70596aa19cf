//! Many tasks in many processes on one subject.

use std::process::{Command, Stdio};
use std::sync::Arc;

use tollgate::internal::edge::environment;
use tollgate::{Ask, Concurrency, Gate, GateExt, Limit, Policy, RollingWindow, Span, TokenBucket};
use tollgate_redis::Options;

use crate::sabotage::ReadThenWrite;
use crate::{connect, server, used};

const URL: &str = "TOLLGATE_TEST_URL";
const KIND: &str = "TOLLGATE_TEST_GATE";

const PROCESSES: usize = 8;
const TASKS: usize = 8;
const ASKS: usize = 8;
const LIMIT: u64 = 100;

/// Three limits of one hundred by three rules, decided together.
fn policy() -> Policy {
    let day = Span::from_hours(24);
    let limits = [
        Limit::new("rolling", "requests", RollingWindow::new(LIMIT, day)),
        Limit::new("bucket", "requests", TokenBucket::per(1, day).burst(LIMIT + 50)),
        Limit::new("slots", "requests", Concurrency::new(LIMIT + 100, day)),
    ];
    Policy::new("crowd", limits).unwrap()
}

/// Runs the processes, with gates of these kinds in turn, and returns how many asks each admitted.
fn crowd(url: &str, kinds: &[&str]) -> Vec<u64> {
    let children: Vec<_> = (0..PROCESSES)
        .zip(kinds.iter().cycle())
        .map(|(_, kind)| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "contention::run_as_a_child", "--nocapture"]);
            command.env(URL, url).env(KIND, kind);
            command.stdout(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let admitted = |child: std::process::Child| {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        let (_, number) = text.split_once("admitted=").expect("a report");
        number.split_whitespace().next().unwrap().parse().unwrap()
    };
    children.into_iter().map(admitted).collect()
}

/// The child itself: without a server it is a test that has nothing to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_as_a_child() {
    let (Some(url), Some(kind)) = (environment(URL), environment(KIND)) else { return };
    let gate: Arc<dyn Gate> = match kind.as_str() {
        "script" => Arc::new(connect(Options::single(url)).await),
        "format-3" => Arc::new(connect(Options::single(url).format(3).unwrap()).await),
        "read-then-write" => Arc::new(ReadThenWrite::connect(&url).await),
        other => panic!("no gate {other:?}"),
    };
    let policy = policy();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (gate, ask) = (Arc::clone(&gate), Ask::new(&policy, "one").into_owned());
            tokio::spawn(async move {
                let mut admitted = 0;
                for _ in 0..ASKS {
                    admitted += u64::from(gate.acquire(&ask).await.unwrap().is_admitted());
                }
                admitted
            })
        })
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.unwrap();
    }
    println!("admitted={admitted}");
}

/// Promise 1 (R000.3, R000.8): 64 tasks in 8 processes, 512 asks, exactly the limit goes through.
#[tokio::test]
async fn sixty_four_tasks_in_eight_processes_admit_exactly_the_limit() {
    let redis = server();
    let admitted = crowd(&redis.url(), &["script"]);
    assert_eq!(admitted.iter().sum::<u64>(), LIMIT, "{admitted:?}");
    let gate = connect(Options::single(redis.url())).await;
    assert_eq!(used(&gate, &policy(), "one").await, LIMIT);
}

/// The same while half of the processes, or all of them, write the format before.
#[tokio::test]
async fn processes_that_write_two_formats_admit_exactly_the_limit() {
    for kinds in [&["script", "format-3"][..], &["format-3"]] {
        let redis = server();
        let admitted = crowd(&redis.url(), kinds);
        assert_eq!(admitted.iter().sum::<u64>(), LIMIT, "{admitted:?}");
        let gate = connect(Options::single(redis.url())).await;
        assert_eq!(used(&gate, &policy(), "one").await, LIMIT);
    }
}

/// The first of these tests is worth something: a store that reads, decides and writes lets more through.
#[test]
fn a_store_that_reads_and_then_writes_fails_the_same_test() {
    let redis = server();
    let admitted = crowd(&redis.url(), &["read-then-write"]);
    assert!(LIMIT < admitted.iter().sum::<u64>(), "{admitted:?}");
}
