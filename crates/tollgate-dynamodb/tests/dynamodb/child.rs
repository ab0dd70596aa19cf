//! This test binary run again as other processes, and many of them on one subject.

use std::io::{BufRead, BufReader};
use std::process::{self, Command, Stdio};
use std::sync::Arc;

use tollgate::clock::SystemClock;
use tollgate::internal::edge::environment;
use tollgate::policy::{Period, Rule};
use tollgate::{
    Ask, CalendarWindow, Concurrency, GateExt, Limit, Policy, RollingWindow, Span, TokenBucket,
};
use tollgate_dynamodb::{DynamoDb, Options};

use crate::{TestTable, connect, options, remaining};

const JOB: &str = "TOLLGATE_TEST_JOB";
const ENDPOINT: &str = "TOLLGATE_TEST_ENDPOINT";

const PROCESSES: usize = 8;
const TASKS: usize = 8;
const LIMIT: u64 = 40;

/// What a child does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Job {
    /// Acquires from several tasks until all are denied, for every rule.
    Acquire,
    /// Connects without credentials.
    NoCredentials,
    /// Connects without a region.
    NoRegion,
}

/// A running child.
pub(crate) struct Child(process::Child);

impl Child {
    pub(crate) fn start(job: Job, endpoint: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child::run_as_a_child", "--nocapture", "--test-threads=1"]);
        command.env_clear().env(JOB, format!("{job:?}")).env(ENDPOINT, endpoint);
        command.env("AWS_EC2_METADATA_DISABLED", "true").env("HOME", "/nonexistent");
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }

    /// Waits for its end and returns what it said.
    pub(crate) fn finish(mut self) -> Vec<String> {
        let lines = BufReader::new(self.0.stdout.take().unwrap()).lines();
        let said = lines
            .map_while(Result::ok)
            .filter_map(|line| line.split_once("said ").map(|(_, said)| said.to_owned()));
        let said = said.collect();
        self.0.wait().unwrap();
        said
    }
}

/// The child itself: without a job it is a test that has nothing to do.
#[test]
fn run_as_a_child() {
    let (Some(job), Some(endpoint)) = (environment(JOB), environment(ENDPOINT)) else { return };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        match job.as_str() {
            "Acquire" => acquire_all(&endpoint).await,
            "NoCredentials" => {
                let options = Options::new("tollgate").region("eu-central-1").endpoint(endpoint);
                println!("said {}", DynamoDb::open(options).await.unwrap_err());
            }
            "NoRegion" => {
                println!("said {}", DynamoDb::open(Options::new("tollgate")).await.unwrap_err());
            }
            other => panic!("no job {other:?}"),
        }
    });
}

/// One policy for each way of keeping a limit; nothing comes back during the test.
fn policies() -> Vec<Policy> {
    let day = Span::from_hours(24);
    let rules: [(&str, Rule); 5] = [
        ("bucket", TokenBucket::per(1, day).burst(LIMIT).into()),
        ("counters", RollingWindow::new(LIMIT, day).resolution(12).into()),
        ("calendar", CalendarWindow::new(LIMIT, Period::Month).into()),
        ("log", RollingWindow::new(LIMIT, day).into()),
        ("slots", Concurrency::new(LIMIT, day).into()),
    ];
    let all = rules.clone().into_iter().filter(|(name, _)| *name != "slots");
    let all = all.map(|(name, rule)| Limit::new(name, "requests", rule));
    let mut policies = vec![Policy::new("all", all).unwrap()];
    policies.extend(
        rules
            .into_iter()
            .map(|(name, rule)| Policy::new(name, [Limit::new(name, "requests", rule)]).unwrap()),
    );
    policies
}

async fn acquire_all(endpoint: &str) {
    let gate = connect(options(endpoint, Arc::new(SystemClock))).await;
    let gate = Arc::new(gate);
    for policy in policies() {
        let tasks = (0..TASKS).map(|_| {
            let (gate, policy) = (Arc::clone(&gate), policy.clone());
            tokio::spawn(async move {
                let mut admitted = 0_u64;
                while gate.acquire(&Ask::new(&policy, "shared")).await.unwrap().is_admitted() {
                    admitted += 1;
                }
                admitted
            })
        });
        let mut admitted = 0;
        for task in tasks.collect::<Vec<_>>() {
            admitted += task.await.unwrap();
        }
        println!("said {} {admitted}", policy.name());
    }
}

/// Promise 1, R000.3, R000.8: 64 tasks in 8 processes on one subject admit exactly the limit, for every rule and for
/// several rules at once.
#[test]
fn many_processes_admit_exactly_the_limit() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    many_processes(&runtime, &runtime.block_on(TestTable::new()));
}

/// The same on another implementation of the service.
#[test]
fn many_processes_admit_exactly_the_limit_on_ministack() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    many_processes(&runtime, &runtime.block_on(TestTable::second()));
}

fn many_processes(runtime: &tokio::runtime::Runtime, table: &TestTable) {
    let endpoint = table.server.endpoint();
    let children: Vec<Child> =
        (0..PROCESSES).map(|_| Child::start(Job::Acquire, &endpoint)).collect();
    let said: Vec<String> = children.into_iter().flat_map(Child::finish).collect();
    let counts = table.server.proxy().counts();
    for policy in policies() {
        let of = |line: &&String| line.split(' ').next() == Some(policy.name());
        let lines: Vec<&String> = said.iter().filter(of).collect();
        assert_eq!(lines.len(), PROCESSES, "{}: {said:?}", policy.name());
        let admitted =
            lines.iter().map(|line| line.split(' ').nth(1).unwrap().parse::<u64>().unwrap());
        assert_eq!(admitted.sum::<u64>(), LIMIT, "{}", policy.name());
    }
    println!("{counts:?}");
    let gate = runtime.block_on(async { connect(options(&endpoint, Arc::new(SystemClock))).await });
    let left = runtime.block_on(remaining(&gate, &policies()[0], "shared"));
    assert_eq!(left, [0; 4]);
    let other = runtime.block_on(remaining(&gate, &policies()[0], "another"));
    assert_eq!(other, [LIMIT; 4]);
}
