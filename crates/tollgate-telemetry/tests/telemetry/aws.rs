//! CloudWatch and SNS: what an emulator of the services received.

use std::sync::Arc;

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_sns::config::Credentials;
use axum::Router;
use axum::extract::State;
use serde_json::Value as Json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tollgate::clock::{ManualClock, SystemClock};
use tollgate::incident::{Incident, Recorder, Violation, report_violation};
use tollgate::observe::{Event, Observer as _};
use tollgate::{Ask, Clock, Error, ErrorKind, Span, Timestamp};
use tollgate_telemetry::sinks::aws::{AwsOptions, Keys};
use tollgate_telemetry::sinks::cloudwatch::CloudWatch;
use tollgate_telemetry::sinks::sns::{SUBJECT_MAX, Sns};
use tollgate_telemetry::{Telemetry, Value};
use tollgate_testkit::servers::Ministack;

use crate::{a_busy_minute, admitted, gate, gemini};

const REGION: &str = "eu-central-1";

fn options(endpoint: &str) -> AwsOptions {
    let keys = Keys { id: "test".to_owned(), secret: "test".to_owned() };
    AwsOptions {
        region: Some(REGION.to_owned()),
        endpoint: Some(endpoint.to_owned()),
        keys: Some(keys),
    }
}

async fn config(endpoint: &str) -> SdkConfig {
    let credentials = Credentials::new("test", "test", None, None, "test");
    aws_config::defaults(BehaviorVersion::latest())
        .http_client(tollgate_telemetry::sinks::aws::https())
        .region(Region::new(REGION))
        .endpoint_url(endpoint)
        .credentials_provider(credentials)
        .load()
        .await
}

/// Sum, samples, smallest and largest of `metric` with `dimensions`, and its unit. The emulator answers this question in
/// the query protocol only, and adds up all series of the metric where no dimensions are named.
async fn statistics(
    endpoint: &str,
    metric: &str,
    dimensions: &[(&str, &str)],
) -> ([f64; 4], String) {
    let now = SystemClock.now();
    let (hour, minute) = (Span::from_hours(1).as_micros(), Span::from_mins(1));
    let (start, end) = (Timestamp::from_micros(now.as_micros() - hour), now + minute);
    // One period holds everything.
    let mut form = format!(
        "Action=GetMetricStatistics&Version=2010-08-01&Namespace=RateLimiter&MetricName={metric}\
         &StartTime={start}&EndTime={end}&Period=1000000000"
    );
    for (place, (name, value)) in dimensions.iter().enumerate() {
        let member = format!("Dimensions.member.{}", place + 1);
        form += &format!("&{member}.Name={name}&{member}.Value={value}");
    }
    let address = endpoint.trim_start_matches("http://");
    let request = format!(
        "POST / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/x-www-form-urlencoded\r\n\
         Authorization: AWS4-HMAC-SHA256 Credential=test/20260101/{REGION}/monitoring/aws4_request, SignedHeaders=host, Signature=x\r\n\
         Content-Length: {}\r\n\r\n{form}",
        form.len()
    );
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let text = |tag: &str| {
        let after = answer.split(&format!("<{tag}>")).nth(1);
        let Some(value) = after.and_then(|rest| rest.split('<').next()) else {
            panic!("{metric} {dimensions:?} has no {tag}: {form} {answer}");
        };
        value.to_owned()
    };
    let numbers = ["Sum", "SampleCount", "Minimum", "Maximum"];
    (numbers.map(|tag| text(tag).parse().expect("a number")), text("Unit"))
}

#[tokio::test]
async fn r000_13_cloudwatch_gets_values_counts_dimensions_units_and_a_roll_up() {
    let server = Ministack::start().unwrap();
    let endpoint = server.endpoint();
    let interval = Span::from_secs(10);
    let sink = CloudWatch::open("RateLimiter", &options(&endpoint), interval).await.unwrap();
    // The service takes metrics of the last two weeks only, so this clock begins now.
    let clock = ManualClock::at(SystemClock.now());
    let builder = Telemetry::builder(Arc::new(clock.clone()));
    let (telemetry, tasks) = builder.meters(sink, interval).start();
    a_busy_minute(&gate(&clock, Arc::clone(&telemetry) as _), &*telemetry).await;
    assert!(tasks.shutdown(clock.now() + Span::from_secs(60)).await);
    let rpm = [("Policy", "gemini"), ("Limit", "rpm")];
    let tpm = [("Policy", "gemini"), ("Limit", "tpm")];
    let gemini = [("Policy", "gemini")];
    // Sum, samples, smallest, largest. Without dimensions it is all series: those by limit and the roll-up, which is as
    // large as all of them together.
    type Row<'a> = (&'a str, &'a [(&'a str, &'a str)], [f64; 4]);
    let rows: [Row<'_>; 11] = [
        ("RateLimiterTokensAcquired", &rpm, [5.0, 1.0, 5.0, 5.0]),
        ("RateLimiterTokensAcquired", &tpm, [5_000.0, 1.0, 5_000.0, 5_000.0]),
        ("RateLimiterTokensAcquired", &[], [2.0 * 5_005.0, 3.0, 5.0, 5_005.0]),
        ("RateLimiterTokensAvailable", &tpm, [245_000.0, 1.0, 245_000.0, 245_000.0]),
        ("RateLimiterTokensAvailable", &[], [2.0 * 245_000.0, 4.0, 0.0, 245_000.0]),
        ("RateLimiterAcquisitionFailures", &rpm, [1.0, 1.0, 1.0, 1.0]),
        ("RateLimiterAcquisitionFailures", &[], [2.0, 2.0, 1.0, 1.0]),
        ("RateLimiterFallbackActivated", &[], [1.0, 1.0, 1.0, 1.0]),
        // 700 and 900 µs count as 1 ms, 3 ms as 5 ms.
        ("RateLimiterStoreLatency", &gemini, [7.0, 3.0, 1.0, 5.0]),
        ("RateLimiterStoreAttempts", &gemini, [6.0, 3.0, 1.0, 3.0]),
        ("RateLimiterConditionalFailures", &gemini, [1.0, 1.0, 1.0, 1.0]),
    ];
    for (metric, dimensions, expected) in rows {
        let unit = if metric.ends_with("Latency") { "Milliseconds" } else { "Count" };
        let found = statistics(&endpoint, metric, dimensions).await;
        assert_eq!(found, (expected, unit.to_owned()), "{metric} {dimensions:?}");
    }
}

/// What an outage kept back is sent when the service is there again: nothing is lost and nothing counts twice.
#[tokio::test]
async fn what_cloudwatch_missed_is_sent_later_once() {
    let mut server = Ministack::start().unwrap();
    let endpoint = server.endpoint();
    let interval = Span::from_secs(10);
    let sink = CloudWatch::open("RateLimiter", &options(&endpoint), interval).await.unwrap();
    let clock = ManualClock::at(SystemClock.now());
    let builder = Telemetry::builder(Arc::new(clock.clone()));
    let (telemetry, tasks) = builder.meters(sink, interval).start();
    let (gate, policy) = (gate(&clock, Arc::clone(&telemetry) as _), gemini());
    server.process().kill().unwrap();
    admitted(&gate, &Ask::new(&policy, "alice")).await;
    while clock.next_alarm().is_none() {
        tokio::task::yield_now().await;
    }
    clock.advance(interval);
    let failures = || match telemetry
        .meters()
        .snapshot(tollgate::Timestamp::EPOCH)
        .get("tollgate_telemetry_failures", &["cloudwatch"])
    {
        Some(Value::Number(number)) => *number,
        other => panic!("{other:?}"),
    };
    while failures() == 0 {
        tokio::task::yield_now().await;
    }
    server.process().restart().unwrap();
    admitted(&gate, &Ask::new(&policy, "alice")).await;
    assert!(tasks.shutdown(clock.now() + Span::from_secs(60)).await);
    let rpm = [("Policy", "gemini"), ("Limit", "rpm")];
    let (found, _) = statistics(&endpoint, "RateLimiterTokensAcquired", &rpm).await;
    assert_eq!(found, [2.0, 2.0, 1.0, 1.0]);
}

async fn deliver(State(to): State<mpsc::UnboundedSender<Json>>, body: String) {
    drop(to.send(serde_json::from_str(&body).expect("SNS delivers JSON")));
}

/// A topic, and what is delivered to a subscriber of it.
async fn topic(client: &aws_sdk_sns::Client) -> (String, mpsc::UnboundedReceiver<Json>) {
    let (to, mut delivered) = mpsc::unbounded_channel();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}/", listener.local_addr().unwrap());
    let router = Router::new().fallback(deliver).with_state(to);
    tokio::spawn(async move { axum::serve(listener, router).await });
    let topic = client.create_topic().name("tollgate").send().await.unwrap();
    let topic = topic.topic_arn().unwrap().to_owned();
    let subscribe = client.subscribe().topic_arn(&topic).protocol("http").endpoint(address);
    subscribe.send().await.unwrap();
    let confirmation = delivered.recv().await.unwrap();
    let token = confirmation["Token"].as_str().expect("a confirmation has a token");
    client.confirm_subscription().topic_arn(&topic).token(token).send().await.unwrap();
    (topic, delivered)
}

#[tokio::test]
async fn r000_14_sns_messages_have_everything_for_a_post_mortem() {
    let server = Ministack::start().unwrap();
    let endpoint = server.endpoint();
    let client = aws_sdk_sns::Client::new(&config(&endpoint).await);
    let (topic, mut delivered) = topic(&client).await;
    let (clock, recorder) = (ManualClock::new(), Arc::new(Recorder::new()));
    let (telemetry, tasks) = Telemetry::builder(Arc::new(clock.clone()))
        .recorder(Arc::clone(&recorder))
        .records(Sns::open(topic, &options(&endpoint)).await.unwrap())
        .start();
    let (gate, policy) = (gate(&clock, Arc::clone(&telemetry) as _), gemini());
    let ask = Ask::new(&policy, "project-7").cost("tokens", 3_750);
    admitted(&gate, &ask).await;
    let violation = Violation { ask: &ask, limit: Some("rpm"), retry_after: Span::from_secs(30) };
    let incident = report_violation(&gate, &recorder, &*telemetry, &clock, &violation).await;
    let error = Error::new(ErrorKind::Unavailable, "redis: connection refused");
    telemetry.observe(&Event::DegradedBegan { error: &error });
    let ahead = Span::from_hours(1);
    telemetry.observe(&Event::Repaired { policy: &policy, subject: "project-7", ahead });
    assert!(tasks.shutdown(clock.now() + Span::from_secs(60)).await);

    let mut messages = Vec::new();
    for _ in 0..3 {
        messages.push(delivered.recv().await.unwrap());
    }
    // Deliveries may overtake each other.
    messages.sort_by_key(|message| message["Subject"].as_str().map(str::to_owned));
    let [incident_message, repaired, degraded] = messages.as_slice() else { unreachable!() };
    let subject = incident_message["Subject"].as_str().unwrap();
    assert_eq!(subject, "tollgate incident: gemini refused by the provider (rpm)");
    assert!(subject.len() <= SUBJECT_MAX);
    let body = incident_message["Message"].as_str().unwrap();
    let sent: Incident = serde_json::from_str(body).unwrap();
    assert_eq!(sent, incident.unwrap());
    assert_eq!((sent.in_flight, sent.acquisitions.len(), sent.limits.len()), (1, 1, 2));
    assert_eq!(repaired["Subject"], "tollgate: an entry from the future was rewritten as used up");
    let body: serde_json::Value =
        serde_json::from_str(repaired["Message"].as_str().unwrap()).unwrap();
    assert_eq!((&body["subject"], &body["ahead"]), (&"project-7".into(), &"1h".into()));
    assert_eq!(degraded["Subject"], "tollgate: decisions are made without the store");
    assert!(degraded["Message"].as_str().unwrap().contains("connection refused"));
}
