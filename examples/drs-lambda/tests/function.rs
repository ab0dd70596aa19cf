//! The function's handler against the fake service on loopback, and its template.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a helper of a test fails by panicking"
)]

use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use drs_lambda::{Function, Request, Response};
use serde_json::{Value, json};
use tollgate::Span;
use tollgate::clock::SystemClock;
use tollgate_aws::Buckets;
use tollgate_drs::journal::Severity;
use tollgate_drs::metrics::{METRICS, NAMESPACE};
use tollgate_drs::throttle::ThrottleOptions;
use tollgate_drs::{DrsClient, RetryOptions};
use tollgate_testkit::fakes::drs::{FakeDrs, Fault, Server, Settings as Account};

/// A writer whose lines can be read concurrently.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    /// Each line, as JSON, since the last call.
    fn taken(&self) -> Vec<Value> {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap());
        bytes
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).expect("each line is JSON"))
            .collect()
    }
}

struct Harness {
    server: Server,
    function: Function,
    log: Shared,
    metrics: Shared,
}

impl Harness {
    async fn new(account: Account) -> Self {
        let fake = Arc::new(FakeDrs::new(Arc::new(SystemClock), account));
        let server = Server::start(fake, 0).await.unwrap();
        let tick = Span::from_millis(1);
        let retry = RetryOptions { max_retries: 2, base_delay: tick, ..RetryOptions::default() };
        let drs =
            DrsClient::builder("eu-central-1").account("123456789012").buckets(Buckets::new());
        let drs = drs.keys("test", "test").endpoint(server.endpoint()).retry(retry);
        let settings = ThrottleOptions { timeout: Span::ZERO, ..ThrottleOptions::default() };
        let (log, metrics) = (Shared::default(), Shared::default());
        let function =
            Function::open(drs, settings, None, (Severity::Info, log.clone()), metrics.clone());
        Self { server, function: function.await.unwrap(), log, metrics }
    }

    fn fake(&self) -> &FakeDrs {
        self.server.fake()
    }

    async fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let (answer, body) = self.answer(method, path, &body.to_string()).await;
        (answer.status_code, body)
    }

    async fn answer(&self, method: &str, path: &str, body: &str) -> (Response, Value) {
        let request: Request = serde_json::from_value(event(method, path, body)).unwrap();
        let answer = self.function.handle(&request).await;
        let body = serde_json::from_str(&answer.body).unwrap();
        (answer, body)
    }
}

/// What an HTTP API passes on.
fn event(method: &str, path: &str, body: &str) -> Value {
    json!({
        "version": "2.0", "routeKey": format!("{method} {path}"), "rawPath": path, "rawQueryString": "",
        "headers": { "content-type": "application/json" }, "isBase64Encoded": false, "body": body,
        "requestContext": { "requestId": "r-1", "stage": "$default", "http": { "method": method, "path": path } },
    })
}

/// No wait between attempts, so that nothing here takes time.
fn account() -> Account {
    Account { retry_after: Span::ZERO, ..Account::default() }
}

#[tokio::test]
async fn r001_11_a_recovery_is_started_once_and_a_full_account_is_429() {
    let harness = Harness::new(account()).await;
    let wanted =
        json!({ "servers": [FakeDrs::server_id(0)], "drill": true, "requestId": "night-7" });
    let (status, started) = harness.ask("POST", "/recoveries", &wanted).await;
    assert_eq!(status, 202, "{started}");
    assert_eq!(harness.ask("POST", "/recoveries", &wanted).await, (200, started));
    assert_eq!(harness.fake().jobs_started(), 1);
    harness.fake().start_foreign_jobs(17);
    let wanted = json!({ "servers": [FakeDrs::server_id(1)] });
    let (answer, answer_body) = harness.answer("POST", "/recoveries", &wanted.to_string()).await;
    assert_eq!((answer.status_code, &*answer.headers["retry-after"]), (429, "30"));
    let expected = [json!("JOB_CAPACITY_TIMEOUT"), json!(18), json!(20)];
    assert_eq!(["error", "currentJobs", "maxJobs"].map(|name| answer_body[name].clone()), expected);
    assert!(answer_body["waitTime"].is_u64(), "{answer_body}");
    assert!(
        answer_body["message"].as_str().unwrap().ends_with("Current jobs: 18/20"),
        "{answer_body}"
    );
    let (status, capacity) = harness.ask("GET", "/capacity", &Value::Null).await;
    assert_eq!((status, &capacity["availableSlots"]), (200, &json!(2)));
    assert_eq!(harness.fake().jobs_started(), 18);
}

#[tokio::test]
async fn mistakes_are_named_and_start_nothing() {
    let harness = Harness::new(account()).await;
    let server = FakeDrs::server_id(0);
    let cases = [
        ("GET", "/", json!(null), 404, "use GET /capacity or POST /recoveries"),
        ("POST", "/recoveries", json!("x"), 400, "the body is not a recovery"),
        ("POST", "/recoveries", json!({ "servers": [], "drill": 1 }), 400, "expected a boolean"),
        ("POST", "/recoveries", json!({ "server": [server] }), 400, "unknown field `server`"),
        ("POST", "/recoveries", json!({ "servers": [] }), 400, "servers"),
        (
            "POST",
            "/recoveries",
            json!({ "servers": ["s-fffffffffffffffff"] }),
            404,
            "s-fffffffffffffffff",
        ),
    ];
    for (method, path, body, expected, text) in cases {
        let (status, answer_body) = harness.ask(method, path, &body).await;
        assert_eq!(status, expected, "{answer_body}");
        assert!(answer_body["message"].as_str().unwrap().contains(text), "{answer_body}");
    }
    assert_eq!(harness.fake().jobs_started(), 0);
}

/// R001.10, R001.12: throttling is counted and logged before the answer, and the names are those of the alarms.
#[tokio::test]
async fn r001_10_r001_12_what_happened_is_written_before_the_answer() {
    let harness = Harness::new(account()).await;
    harness.fake().inject(None, 3, Fault::Throttled);
    let (status, answer_body) = harness.ask("GET", "/capacity", &Value::Null).await;
    assert_eq!(
        (status, &answer_body["error"]),
        (503, &json!("ThrottlingException")),
        "{answer_body}"
    );
    let events: Vec<Value> = harness.log.taken().iter().map(|line| line["event"].clone()).collect();
    let refused = "rate_limit_error";
    assert_eq!(events, [refused, refused, refused, "retry_exhausted"]);
    let metrics = harness.metrics.taken();
    // Alarms match dimensions exactly, so what they look at comes without any.
    let sum = |name: &str| -> f64 {
        let alone = metrics.iter().filter(|line| {
            line["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == json!([[]])
                && line["_aws"]["CloudWatchMetrics"][0]["Namespace"] == NAMESPACE
        });
        alone.filter_map(|line| line[name].as_f64()).sum()
    };
    assert_eq!(
        (sum("RateLimitErrors"), sum("RetryExhausted"), sum("RetryAttempts")),
        (3.0, 1.0, 2.0)
    );
    harness.ask("GET", "/capacity", &Value::Null).await;
    let text = Value::from(harness.metrics.taken()).to_string();
    assert!(
        text.contains("APICallCount") && !text.contains("RateLimitErrors"),
        "each is logged once: {text}"
    );
}

/// The alarms of the template look at metrics that exist, in the namespace that they are in.
#[test]
fn r001_10_the_template_has_alarms_on_metrics_that_exist() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/drs-lambda.yaml");
    let template = std::fs::read_to_string(path).unwrap();
    let values = |name: &str| -> Vec<String> {
        let lines = template.lines().filter_map(|line| line.trim().strip_prefix(name));
        lines.map(|value| value.trim().to_owned()).collect()
    };
    let names: Vec<&str> =
        METRICS.iter().filter_map(|one| one.cloudwatch).map(|(name, _)| name).collect();
    let watched = values("MetricName:");
    assert_eq!(watched, ["RateLimitErrors", "RetryExhausted"]);
    assert!(watched.iter().all(|name| names.contains(&name.as_str())));
    assert_eq!(values("Namespace:"), [NAMESPACE, NAMESPACE]);
    for variable in tollgate_drs::throttle::VARIABLES.iter().chain(&tollgate_drs::client::VARIABLES)
    {
        assert_eq!(values(&format!("{variable}:")).len(), 1, "{variable}");
    }
    // The policies allow the calls of the function with these settings, and those of `tollgate drs`.
    for action in
        ["sns:Publish", "sts:AssumeRole", "cloudwatch:PutMetricData", "drs:GetLaunchConfiguration"]
    {
        assert!(template.contains(action), "{action}");
    }
}
