//! OpenTelemetry: a collector on loopback that parses the requests.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::Uri;
use serde_json::Value as Json;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tollgate::clock::ManualClock;
use tollgate::{Clock, Span, Timestamp};
use tollgate_telemetry::Telemetry;
use tollgate_telemetry::sinks::otlp::{OtlpMetrics, OtlpTraces};
use tollgate_testkit::servers::Port;

use crate::{a_busy_minute, gate};

/// 2026-11-15T05:45:00Z.
const START: Timestamp = Timestamp::from_secs(1_794_721_500);

type Arrived = (String, Json);

async fn collect(State(to): State<mpsc::UnboundedSender<Arrived>>, uri: Uri, body: String) {
    let body = serde_json::from_str(&body).expect("the body is JSON");
    to.send((uri.path().to_owned(), body)).expect("the test listens");
}

async fn collector() -> (String, mpsc::UnboundedReceiver<Arrived>) {
    let (to, arrived) = mpsc::unbounded_channel();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().fallback(collect).with_state(to);
    tokio::spawn(async move { axum::serve(listener, router).await });
    (endpoint, arrived)
}

#[tokio::test]
async fn r000_13_a_collector_gets_metrics_and_a_span_for_each_decision() {
    let (endpoint, mut arrived) = collector().await;
    let clock = ManualClock::at(START);
    let (telemetry, tasks) = Telemetry::builder(Arc::new(clock.clone()))
        .meters(OtlpMetrics::new(&endpoint, START), Span::from_secs(60))
        .records(OtlpTraces::new(&format!("{endpoint}/")))
        .start();
    a_busy_minute(&gate(&clock, Arc::clone(&telemetry) as _), &*telemetry).await;
    assert!(tasks.shutdown(clock.now() + Span::from_secs(1)).await);
    let (mut metrics, mut spans) = (Vec::new(), Vec::new());
    while let Ok((path, body)) = arrived.try_recv() {
        match path.as_str() {
            "/v1/metrics" => metrics.push(body),
            "/v1/traces" => spans.push(body),
            other => panic!("unexpected path {other}"),
        }
    }
    let resource = &metrics[0]["resourceMetrics"][0];
    assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "tollgate");
    let all = resource["scopeMetrics"][0]["metrics"].as_array().unwrap();
    let metric =
        |name: &str| all.iter().find(|metric| metric["name"] == name).expect("it is there");
    let point = &metric("tollgate.tokens_acquired")["sum"]["dataPoints"][1];
    assert_eq!(point["asInt"], "5000");
    assert_eq!(point["attributes"][1]["value"]["stringValue"], "tpm");
    assert_eq!(point["timeUnixNano"], "1794721500000000000");
    let store = metric("tollgate.store_duration_seconds");
    assert_eq!(store["unit"], "s");
    let point = &store["histogram"]["dataPoints"][0];
    assert_eq!((point["count"].as_str(), point["sum"].as_f64()), (Some("3"), Some(0.0046)));
    let (counts, bounds) = (point["bucketCounts"].as_array(), point["explicitBounds"].as_array());
    assert_eq!(counts.unwrap().len(), bounds.unwrap().len() + 1);
    assert_eq!(metric("tollgate.fallback_active")["gauge"]["dataPoints"][0]["asInt"], "0");

    let spans = spans[0]["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap();
    assert_eq!(spans.len(), 6);
    assert_eq!(spans[0]["traceId"].as_str().unwrap().len(), 32);
    assert_eq!(spans[0]["spanId"].as_str().unwrap().len(), 16);
    assert_eq!(spans[5]["attributes"][0]["value"]["stringValue"], "denied");
    assert_ne!(spans[0]["traceId"], spans[1]["traceId"]);
}

/// A collector that is not there is counted, and nothing else happens.
#[tokio::test]
async fn a_collector_that_is_not_there_is_counted() {
    let clock = ManualClock::at(START);
    let free = Port::free().unwrap();
    let sink = OtlpMetrics::new(&format!("http://127.0.0.1:{}", free.number()), START);
    let builder = Telemetry::builder(Arc::new(clock.clone()));
    let (telemetry, tasks) = builder.meters(sink, Span::from_secs(60)).start();
    assert!(tasks.shutdown(clock.now() + Span::from_secs(1)).await);
    let snapshot = telemetry.meters().snapshot(START);
    let failures = snapshot.get("tollgate_telemetry_failures", &["otlp_metrics"]);
    assert_eq!(failures, Some(&tollgate_telemetry::Value::Number(1)));
}
