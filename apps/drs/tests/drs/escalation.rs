//! Escalations when retries are exhausted: SNS at an emulator, and that a failing notification fails no call.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use serde_json::Value as Json;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tollgate::gate::BoxFuture;
use tollgate::retry::Stopped;
use tollgate::{Clock as _, Error, Span, Timestamp};
use tollgate_aws::https;
use tollgate_drs::escalation::{Escalation, NOTIFY_MAX};
use tollgate_drs::{Context, Escalate, Failure, JobFilter, RetryExhausted, SnsEscalation};
use tollgate_testkit::fakes::drs::{Fault, Settings};
use tollgate_testkit::servers::Ministack;

use crate::harness::{ACCOUNT, Harness, config};

async fn deliver(State(to): State<mpsc::UnboundedSender<Json>>, body: String) {
    drop(to.send(serde_json::from_str(&body).unwrap()));
}

/// A topic, and what is delivered to a subscriber of it.
async fn topic(client: &aws_sdk_sns::Client) -> (String, mpsc::UnboundedReceiver<Json>) {
    let (to, mut delivered) = mpsc::unbounded_channel();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}/", listener.local_addr().unwrap());
    let router = Router::new().fallback(deliver).with_state(to);
    tokio::spawn(async move { axum::serve(listener, router).await });
    let topic = client.create_topic().name("alerts").send().await.unwrap().topic_arn.unwrap();
    client.subscribe().topic_arn(&topic).protocol("http").endpoint(address).send().await.unwrap();
    let confirmation = delivered.recv().await.unwrap();
    let token = confirmation["Token"].as_str().unwrap();
    client.confirm_subscription().topic_arn(&topic).token(token).send().await.unwrap();
    (topic, delivered)
}

/// Returns the escalation of a call that failed in all its attempts.
fn escalation(harness: &Harness) -> Escalation {
    let escalations = Arc::new(RecordedEscalations::default());
    exhaust(harness, Arc::clone(&escalations) as _);
    escalations.0.lock().unwrap()[0].clone()
}

fn exhaust(harness: &Harness, escalate: Arc<dyn Escalate>) {
    let client = harness.client(|builder| builder.escalate(escalate));
    harness.fake.inject(None, 6, Fault::Throttled);
    let error = harness.run(client.describe_jobs(&JobFilter::default()).all()).unwrap_err();
    assert!(matches!(error, tollgate_drs::Error::RetryExhausted(_)), "{error:?}");
}

#[derive(Debug, Default)]
struct RecordedEscalations(Mutex<Vec<Escalation>>);

impl Escalate for RecordedEscalations {
    fn escalate<'a>(&'a self, about: &'a Escalation) -> BoxFuture<'a, Result<(), Error>> {
        self.0.lock().unwrap().push(about.clone());
        Box::pin(async { Ok(()) })
    }
}

#[tokio::test]
async fn r001_13_an_sns_escalation_says_what_to_do() {
    let emulator = Ministack::start().unwrap();
    let settings = aws_sdk_sns::config::Builder::from(&config())
        .endpoint_url(emulator.endpoint())
        .http_client(https());
    let client = aws_sdk_sns::Client::from_conf(settings.build());
    let (topic, mut delivered) = topic(&client).await;
    let about = tokio::task::spawn_blocking(|| escalation(&Harness::new(Settings::default())))
        .await
        .unwrap();
    SnsEscalation::new(client, topic).escalate(&about).await.unwrap();
    let message = delivered.recv().await.unwrap();
    assert_eq!(message["Subject"], "DRS Rate Limit Escalation - eu-central-1 - DescribeJobs");
    let text = message["Message"].as_str().unwrap();
    for part in [
        "Attempts: 6",
        "ThrottlingException",
        ACCOUNT,
        "Correlation id: ",
        "Recommended Actions:",
        "service quotas",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

pub(crate) fn context(region: &str) -> Context {
    Context {
        operation: "DescribeJobs",
        region: region.into(),
        account: ACCOUNT.into(),
        correlation_id: "1".into(),
    }
}

/// A subject that SNS takes, whatever the region is called.
#[test]
fn r001_13_the_subject_is_short_plain_text() {
    let context = context(&"r\u{e9}gion\n".repeat(20));
    let last = Failure {
        code: "ThrottlingException".to_owned(),
        message: "Rate exceeded".to_owned(),
        status: Some(429),
        retry_after: None,
        quota_code: None,
    };
    let exhausted = RetryExhausted { context, last, attempts: 6, stopped: Stopped::Exhausted };
    let Escalation { subject, .. } = Escalation::from_exhausted(&exhausted, Timestamp::EPOCH);
    assert_eq!(subject.len(), 100);
    assert!(subject.chars().all(|c| c == ' ' || c.is_ascii_graphic()), "{subject}");
}

/// Fails, or never answers.
#[derive(Debug)]
struct Deaf {
    hangs: bool,
}

impl Escalate for Deaf {
    fn escalate<'a>(&'a self, _: &'a Escalation) -> BoxFuture<'a, Result<(), Error>> {
        if self.hangs {
            return Box::pin(std::future::pending());
        }
        Box::pin(async { Err(Error::new(tollgate::ErrorKind::Unavailable, "connection refused")) })
    }
}

/// The caller gets its own error, not that of the messenger, and waits for a bounded time.
#[test]
fn r001_13_failure_to_notify_never_fails_the_call() {
    for hangs in [false, true] {
        let harness = Harness::new(Settings::default());
        exhaust(&harness, Arc::new(Deaf { hangs }));
        let last = harness.fake.arrivals().all().last().unwrap().at;
        let waited = harness.clock.now().since(last);
        assert_eq!(waited, if hangs { NOTIFY_MAX } else { Span::ZERO });
    }
}
