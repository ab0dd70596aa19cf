//! Metrics and the log: properties 9 and 12 of R001, and CloudWatch at an emulator.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use serde_json::Value as Json;
use tollgate::clock::SystemClock;
use tollgate::{Clock, Span, Timestamp};
use tollgate_drs::journal::{Journal, LINES_MAX, Severity};
use tollgate_drs::metrics::{Metrics, NAMESPACE};
use tollgate_drs::monitor::{Event, Monitor};
use tollgate_drs::{JobFilter, RetryOptions};
use tollgate_telemetry::sinks::aws::{AwsOptions, Keys};
use tollgate_telemetry::sinks::cloudwatch::CloudWatch;
use tollgate_telemetry::{Telemetry, Value, dimension};
use tollgate_testkit::fakes::drs::{Fault, Settings};
use tollgate_testkit::servers::Ministack;

use crate::escalation::context;
use crate::harness::{ACCOUNT, Harness, REGION};

/// How a call of the script fails before it succeeds or gives up.
const FAULTS: [(Fault, &str, bool); 4] = [
    (Fault::Throttled, "ThrottlingException", true),
    (Fault::Quota("L-D88FAC3A"), "ServiceQuotaExceededException", true),
    (Fault::Broken, "InternalServerException", false),
    (Fault::Refused(503, "ServiceUnavailable"), "ServiceUnavailable", false),
];

/// Of every call here.
const MAX_RETRIES: usize = 3;

/// Calls that fail as `script` says, one list of faults for each call.
fn play(harness: &Harness, script: &[Vec<usize>], monitor: Arc<dyn Monitor>) {
    let retry = RetryOptions { max_retries: 3, ..RetryOptions::default() };
    let client = harness.client(|builder| builder.retry(retry).monitor(monitor));
    for faults in script {
        faults.iter().for_each(|fault| harness.fake.inject(None, 1, FAULTS[*fault].0.clone()));
        drop(harness.run(client.describe_jobs(&JobFilter::default()).all()));
    }
}

fn scripts() -> impl Strategy<Value = Vec<Vec<usize>>> {
    prop::collection::vec(prop::collection::vec(0..FAULTS.len(), 0..=MAX_RETRIES + 1), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Property 9: each rate limit error, retry, exhaustion and call is counted once under its name and dimensions.
    #[test]
    fn r001_10_every_event_is_counted_under_its_name_and_dimensions(script in scripts()) {
        let harness = Harness::new(Settings::default());
        let metrics = Arc::new(Metrics::new());
        play(&harness, &script, Arc::clone(&metrics) as _);
        let mut expected: BTreeMap<(String, Vec<String>), u64> = BTreeMap::new();
        let mut expect = |name: &str, labels: &[&str]| {
            *expected.entry((name.to_owned(), labels.iter().map(|label| (*label).to_owned()).collect())).or_default() += 1;
        };
        for faults in &script {
            let is_over = MAX_RETRIES < faults.len();
            for attempt in 0..=faults.len().min(MAX_RETRIES) {
                let fault = faults.get(attempt).map(|fault| &FAULTS[*fault]);
                if let Some((_, code, true)) = fault {
                    expect("RateLimitErrors", &[code, REGION, "DescribeJobs"]);
                }
                if 0 < attempt {
                    let success = if fault.is_none() { "True" } else { "False" };
                    expect("RetryAttempts", &[REGION, "DescribeJobs", &attempt.to_string(), success]);
                }
            }
            let last = faults.last().filter(|_| is_over).map(|fault| FAULTS[*fault].1);
            match last {
                Some(code) => {
                    expect("RetryExhausted", &[REGION, "DescribeJobs"]);
                    expect("APICallCount", &[REGION, "DescribeJobs", "False", code]);
                }
                None => expect("APICallCount", &[REGION, "DescribeJobs", "True", ""]),
            }
        }
        let snapshot = metrics.counters().snapshot(Timestamp::EPOCH);
        let counted = snapshot.series.iter().map(|series| {
            let (name, dimensions) = series.metric.cloudwatch.unwrap();
            assert_eq!(dimensions.len(), series.labels.len());
            let Value::Number(count) = series.value else { panic!("{series:?}") };
            ((name.to_owned(), series.labels.iter().map(ToString::to_string).collect()), count)
        });
        let counted: BTreeMap<(String, Vec<String>), u64> = counted.collect();
        prop_assert_eq!(counted, expected);
    }

    /// Property 12: each rate limit error and each exhaustion is a line of JSON with the operation, region, account, error,
    /// severity, and an id that is the same for one call and for no other.
    #[test]
    fn r001_12_every_failure_is_a_line_of_json_with_everything(script in scripts()) {
        let harness = Harness::new(Settings::default());
        let kept = Kept::default();
        let journal = Arc::new(Journal::new(Severity::Warning, Arc::new(harness.clock.clone()), kept.clone()).unwrap());
        play(&harness, &script, Arc::clone(&journal) as _);
        journal.close();
        let lines = kept.lines();
        let mut expected = Vec::new();
        for (call, faults) in script.iter().enumerate() {
            for (attempt, fault) in faults.iter().enumerate() {
                let (_, code, is_rate_limit) = &FAULTS[*fault];
                let event = if *is_rate_limit { "rate_limit_error" } else { "attempt_failed" };
                expected.push((call, "WARNING", event, *code, Some(attempt as u64), None));
            }
            if MAX_RETRIES < faults.len() {
                let code = FAULTS[faults[MAX_RETRIES]].1;
                expected.push((call, "CRITICAL", "retry_exhausted", code, None, Some(MAX_RETRIES as u64 + 1)));
            }
        }
        let mut calls: Vec<String> = Vec::new();
        let silent_before = |call: usize| script[..call].iter().filter(|faults| faults.is_empty()).count();
        prop_assert_eq!(lines.len(), expected.len());
        for (line, (call, severity, event, code, attempt, attempts)) in lines.iter().zip(expected) {
            prop_assert_eq!((&line["severity"], &line["event"]), (&Json::from(severity), &Json::from(event)));
            prop_assert_eq!((&line["operation"], &line["region"]), (&Json::from("DescribeJobs"), &Json::from(REGION)));
            prop_assert_eq!((&line["account"], &line["error"]["code"]), (&Json::from(ACCOUNT), &Json::from(code)));
            prop_assert_eq!((line["attempt"].as_u64(), line["attempts"].as_u64()), (attempt, attempts));
            prop_assert!(line["error"]["message"].is_string() && line["timestamp"].as_str().unwrap().parse::<Timestamp>().is_ok());
            let id = line["correlation_id"].as_str().unwrap().to_owned();
            if calls.last() != Some(&id) {
                prop_assert!(!calls.contains(&id), "two calls have one id");
                calls.push(id);
            }
            prop_assert_eq!(calls.len(), call + 1 - silent_before(call));
        }
    }
}

/// A writer that keeps what is written.
#[derive(Clone, Debug, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Kept {
    fn lines(&self) -> Vec<Json> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A blocked writer delays no call: entries that do not fit are dropped and counted.
#[test]
fn r001_12_a_log_that_nobody_reads_holds_up_no_call() {
    struct Stuck(std::sync::mpsc::Receiver<()>);
    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            // It ends when the other side is gone.
            let _ = self.0.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let (free, stuck) = std::sync::mpsc::channel();
    let journal = Journal::new(Severity::Info, Arc::new(SystemClock), Stuck(stuck)).unwrap();
    let context = context(REGION);
    // One line is being written, and so many wait.
    for _ in 0..LINES_MAX + 11 {
        journal.observe(&Event::Called { context: &context, error: None });
    }
    assert!((10..=11).contains(&journal.dropped()), "{}", journal.dropped());
    drop(free);
    journal.close();
}

/// R001.10 end to end: counted here, published in the background, drained at the end, there with dimensions.
#[tokio::test]
async fn r001_10_cloudwatch_gets_the_four_metrics_with_their_dimensions() {
    let emulator = Ministack::start().unwrap();
    let endpoint = emulator.endpoint();
    let metrics = Arc::new(Metrics::new());
    let script = [vec![0, 1], vec![2, 2, 2, 2], vec![]];
    let counted = Arc::clone(&metrics);
    tokio::task::spawn_blocking(move || play(&Harness::new(Settings::default()), &script, counted))
        .await
        .unwrap();
    let keys = Keys { id: "test".to_owned(), secret: "test".to_owned() };
    let place =
        AwsOptions { region: Some(REGION.to_owned()), endpoint: Some(endpoint), keys: Some(keys) };
    let minute = Span::from_mins(1);
    let sink = CloudWatch::open(NAMESPACE, &place, minute).await.unwrap();
    let telemetry =
        Telemetry::builder(Arc::new(SystemClock)).counters(metrics.counters(), sink, minute);
    let (_, tasks) = telemetry.start();
    assert!(tasks.shutdown(SystemClock.now() + minute).await);
    let (region, operation) = (("Region", REGION), ("Operation", "DescribeJobs"));
    let sum = |name, dimensions: &[(&str, &str)]| {
        emulator.metric_sum(NAMESPACE, name, dimensions).unwrap()
    };
    let throttling = ("ErrorType", "ThrottlingException");
    assert_eq!(sum("RateLimitErrors", &[throttling, region, operation]), Some(1.0));
    assert_eq!(
        sum("RetryAttempts", &[region, operation, ("Attempt", "1"), ("Success", "False")]),
        Some(2.0)
    );
    assert_eq!(sum("RetryExhausted", &[region, operation]), Some(1.0));
    assert_eq!(sum("APICallCount", &[region, operation, ("Success", "True")]), Some(2.0));
    let code = ("ErrorCode", "InternalServerException");
    assert_eq!(sum("APICallCount", &[region, operation, ("Success", "False"), code]), Some(1.0));
    assert_eq!(dimension("error_type"), "ErrorType");
}
