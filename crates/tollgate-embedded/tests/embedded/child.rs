//! This test binary run again as another process, which can be killed.

use std::future::Future;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{self, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use tollgate::internal::edge::environment;
use tollgate::{Ask, Decision, GateExt, Policy, Span, Timestamp};
use tollgate_embedded::{Durability, Embedded, Holder, Options};

use crate::daily;

const JOB: &str = "TOLLGATE_TEST_JOB";
const FOLDER: &str = "TOLLGATE_TEST_FOLDER";

/// How many requests the jobs may be admitted in all.
pub(crate) const LIMIT: u64 = 4_000;

/// How many tasks of one process acquire at once.
pub(crate) const CALLERS: usize = 4;

/// How many tasks of one process acquire jointly at once.
pub(crate) const JOINT_CALLERS: usize = 16;

/// The policies that joint asks charge: one subject per caller, and two that all share.
pub(crate) fn parties() -> (Policy, Policy, Policy) {
    let party = |name| crate::joint::daily(name, u64::from(u32::MAX));
    (party("user"), party("team"), party("account"))
}

/// What the child does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Job {
    /// Acquires until it is denied, from several tasks, strict.
    Strict,
    /// Acquires for ever, from one task, relaxed.
    Relaxed,
    /// Acquires for ever for three subjects at once, each ask with an id, from several tasks, strict.
    JointStrict,
    /// The same, relaxed.
    JointRelaxed,
    /// Acquires once and ends.
    Once,
    /// Holds the folder as a broker until it is killed.
    Serve,
    /// Acquires for ever new subjects until it fails.
    Fill,
}

/// A running child.
pub(crate) struct Child {
    process: process::Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Child {
    pub(crate) fn start(job: Job, folder: &Path) -> Self {
        Self::start_in(Command::new("env"), job, folder)
    }

    /// Starts it by a command that runs its arguments.
    pub(crate) fn start_in(mut command: Command, job: Job, folder: &Path) -> Self {
        command.arg(std::env::current_exe().unwrap());
        command.args(["--exact", "child::run_as_a_child", "--nocapture", "--test-threads=1"]);
        command.env(JOB, format!("{job:?}")).env(FOLDER, folder);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, lines }
    }

    /// The next line it printed, without those of the test harness.
    pub(crate) fn line(&mut self) -> Option<String> {
        self.lines.by_ref().map_while(Result::ok).find_map(|line| {
            // The harness prints the name of the test without an end of line.
            let start = ["admitted ", "denied", "stopped ", "serving"];
            let at = start.iter().filter_map(|word| line.find(word)).min()?;
            Some(line[at..].to_owned())
        })
    }

    /// Kills it at once (signal 9) and returns what it had printed besides.
    pub(crate) fn kill(mut self) -> Vec<String> {
        self.process.kill().unwrap();
        self.finish()
    }

    /// Waits for its end and returns what it printed.
    pub(crate) fn finish(mut self) -> Vec<String> {
        let lines = std::iter::from_fn(|| self.line()).collect();
        self.process.wait().unwrap();
        lines
    }
}

/// The child itself: without a job it is a test that has nothing to do.
#[test]
fn run_as_a_child() {
    let (Some(job), Some(folder)) = (environment(JOB), environment(FOLDER)) else {
        return;
    };
    let folder = PathBuf::from(folder);
    match job.as_str() {
        "Strict" => acquire_all(&folder),
        "Relaxed" => acquire_relaxed(&folder),
        "JointStrict" => acquire_jointly(&folder, Durability::Strict),
        "JointRelaxed" => acquire_jointly(&folder, Durability::Relaxed),
        "Once" => acquire_once(&folder),
        "Serve" => serve(&folder),
        "Fill" => fill(&folder),
        other => panic!("no job {other:?}"),
    }
}

fn open(folder: &Path, options: Options) -> Embedded {
    Embedded::open(folder, options).unwrap()
}

fn acquire_all(folder: &Path) {
    let gate = open(folder, Options::new());
    thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(|| while acquire(&gate, "p", LIMIT) {});
        }
    });
}

fn acquire_relaxed(folder: &Path) {
    let gate = open(folder, Options::new().durability(Durability::Relaxed));
    while acquire(&gate, "p", u64::from(u32::MAX)) {}
}

fn acquire_jointly(folder: &Path, durability: Durability) {
    let gate = open(folder, Options::new().durability(durability));
    let (user, team, account) = parties();
    // Ids of the processes before are known to the store.
    let life = process::id();
    thread::scope(|scope| {
        for caller in 0..JOINT_CALLERS {
            let (gate, user, team, account) = (&gate, &user, &team, &account);
            scope.spawn(move || {
                for number in 0.. {
                    let id = format!("id-{caller}-{life}-{number}");
                    let ask =
                        Ask::new(user, format!("u{caller}")).and(team, "t7").and(account, "a");
                    let ask = ask.id_for(id.as_str(), Span::from_hours(24));
                    assert!(block_on(gate.acquire(&ask)).unwrap().is_admitted());
                    println!("admitted {id}");
                }
            });
        }
    });
}

fn acquire_once(folder: &Path) {
    let gate = open(folder, Options::new());
    acquire(&gate, "p", crate::locking::PROCESSES_ADMITTED);
    block_on(gate.shutdown(Timestamp::MAX)).unwrap();
}

/// Acquires one and reports it: admitted at which time of the store.
fn acquire(gate: &Embedded, subject: &str, limit: u64) -> bool {
    match block_on(gate.acquire(&Ask::new(&daily(limit), subject))).unwrap() {
        Decision::Admitted(permit) => {
            println!("admitted {}", permit.grant().at.as_micros());
            true
        }
        Decision::Denied(_) => {
            println!("denied");
            false
        }
    }
}

fn serve(folder: &Path) {
    let url = "http://127.0.0.1:8080".to_owned();
    let _gate = open(folder, Options::new().holder(Holder::Server { url }));
    println!("serving");
    loop {
        thread::park();
    }
}

fn fill(folder: &Path) {
    let gate = open(folder, Options::new());
    for subject in 0.. {
        let subject = format!("{subject:0>200}");
        match block_on(gate.acquire(&Ask::new(&daily(1), subject.as_str()))) {
            Ok(_) => println!("admitted {subject}"),
            Err(error) => {
                println!("stopped {:?} {error}", error.kind());
                return;
            }
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Drives a future on this thread, without a runtime.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        thread::park();
    }
}
