//! Two processes and one free slot: slots in DynamoDB, jobs at the fake over HTTP.

use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use tollgate::clock::{ManualClock, SystemClock};
use tollgate::internal::edge::environment;
use tollgate::{Clock as _, Gate, Span};
use tollgate_drs::throttle::ThrottleOptions;
use tollgate_drs::{DrsClient, Error, JobThrottler, Recovery};
use tollgate_dynamodb::{ATTEMPT_TIMEOUT_MAX, DynamoDb, Options, create_table};
use tollgate_testkit::fakes::drs::{self, FakeDrs, Fault, Server};
use tollgate_testkit::servers;

use crate::harness::REGION;

const DRS: &str = "TOLLGATE_TEST_DRS";
const SLOTS: &str = "TOLLGATE_TEST_SLOTS";
const SERVER: &str = "TOLLGATE_TEST_SERVER";

fn options(endpoint: &str) -> Options {
    Options::new("tollgate")
        .region(REGION)
        .endpoint(endpoint)
        .credentials("test", "test")
        .attempt_timeout(ATTEMPT_TIMEOUT_MAX)
}

fn start(drs: &str, slots: Option<&str>, server: usize) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "job_slots::run_as_an_orchestrator",
        "--nocapture",
        "--test-threads=1",
    ]);
    command.env_clear().env(DRS, drs).env(SERVER, server.to_string());
    if let Some(slots) = slots {
        command.env(SLOTS, slots);
    }
    command.env("AWS_EC2_METADATA_DISABLED", "true").env("HOME", "/nonexistent");
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// The child itself: without a service to talk to it is a test that has nothing to do.
#[test]
#[allow(clippy::print_stdout, reason = "a child process reports to its parent")]
fn run_as_an_orchestrator() {
    let (Some(endpoint), Some(server)) = (environment(DRS), environment(SERVER)) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = DrsClient::builder(REGION)
            .endpoint(endpoint)
            .keys("test", "test")
            .open()
            .await
            .unwrap();
        let settings = ThrottleOptions { timeout: Span::ZERO, ..ThrottleOptions::default() };
        let mut throttler = JobThrottler::new(client, settings).unwrap();
        if let Some(slots) = environment(SLOTS) {
            let gate: Arc<dyn Gate> = Arc::new(DynamoDb::open(options(&slots)).await.unwrap());
            throttler = throttler.slots(gate);
        }
        match throttler
            .start_recovery(&Recovery::new([FakeDrs::server_id(server.parse().unwrap())]))
            .await
        {
            Ok(_) => println!("said started"),
            Err(Error::JobCapacityTimeout(timeout_error)) => {
                println!("said full {} {}", timeout_error.current_jobs, timeout_error.starting);
            }
            Err(other) => println!("said {other}"),
        }
    });
}

/// Lets two processes race for the last of 18 places, such that both have counted before either starts a job. What each
/// said, and how many jobs were started.
async fn race(slots: Option<&str>) -> (Vec<String>, usize) {
    let clock = ManualClock::at(SystemClock.now());
    let fake = Arc::new(FakeDrs::new(Arc::new(clock.clone()), drs::Settings::default()));
    fake.start_foreign_jobs(17);
    // Both counts are taken and then held back until the clock moves.
    fake.inject(Some("DescribeJobs"), 2, Fault::Slow(Span::from_micros(1)));
    let server = Server::start(Arc::clone(&fake), 0).await.unwrap();
    let children = [0, 1].map(|number| start(&server.endpoint(), slots, number));
    let moving = tokio::spawn({
        let fake = Arc::clone(&fake);
        async move {
            while fake.arrivals().count("DescribeJobs") < 2 {
                tokio::task::yield_now().await;
            }
            loop {
                clock.advance(Span::from_micros(1));
                tokio::task::yield_now().await;
            }
        }
    });
    let mut said = Vec::new();
    for mut child in children {
        let text = tokio::task::spawn_blocking(move || {
            let mut text = String::new();
            child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
            child.wait().unwrap();
            text
        });
        let text = text.await.unwrap();
        said.extend(
            text.lines()
                .filter_map(|line| line.split_once("said ").map(|(_, said)| said.to_owned())),
        );
    }
    moving.abort();
    said.sort();
    (said, fake.jobs_started() - 17)
}

#[tokio::test(flavor = "multi_thread")]
async fn r001_11_of_two_processes_that_race_for_the_last_place_one_waits() {
    let dynamodb = servers::DynamoDb::start().unwrap();
    assert!(create_table(options(&dynamodb.endpoint())).await.unwrap());
    let (said, started) = race(Some(&dynamodb.endpoint())).await;
    assert_eq!(started, 1);
    assert_eq!(said, ["full 17 1", "started"]);
}

/// The same race must be lost by processes that only count.
#[tokio::test(flavor = "multi_thread")]
async fn r001_11_processes_without_shared_slots_both_take_the_last_place() {
    let (said, started) = race(None).await;
    assert_eq!((said, started), (vec!["started".to_owned(), "started".to_owned()], 2));
}
