//! Metrics and traces to an OpenTelemetry collector, as OTLP over HTTP in JSON.
//!
//! Written by hand: the format is a few fixed shapes, and OpenTelemetry's SDK would count a second time on the path of each
//! decision, and bring its own HTTP client.

mod shapes;

use hyper::Request;
use serde_json::Value as Json;
use tollgate::gate::BoxFuture;
use tollgate::observe::Event;
use tollgate::{Error, ErrorKind, Timestamp};
use tollgate_transport::http::{HttpClient, root_cause};
use tollgate_transport::tls::ClientTls;

use crate::record::Record;
use crate::sink::{MeterSink, RecordSink};
use crate::snapshot::Snapshot;

/// The largest response of a collector, in bytes; its contents are ignored.
const RESPONSE_BYTES_MAX: usize = 1 << 20;

/// An endpoint of a collector.
#[derive(Debug)]
struct Collector {
    http: HttpClient,
    url: String,
}

impl Collector {
    fn new(endpoint: &str, path: &str) -> Self {
        let tls = endpoint.starts_with("https:").then(ClientTls::native);
        let http = HttpClient::new(tls.as_ref(), None, RESPONSE_BYTES_MAX);
        Self { http, url: format!("{}{path}", endpoint.trim_end_matches('/')) }
    }

    async fn post(&self, body: &Json) -> Result<(), Error> {
        let failed = |text: String| {
            Error::new(ErrorKind::Unavailable, format!("otlp: {}: {text}", self.url))
        };
        let request = Request::post(&self.url)
            .header("content-type", "application/json")
            .body(body.to_string().into());
        let request = request.map_err(|error| failed(error.to_string()))?;
        let response = self.http.send(request).await;
        let response = response.map_err(|error| failed(root_cause(&error).to_string()))?;
        match response.status().as_u16() {
            200..=299 => Ok(()),
            status => Err(failed(format!("the collector responded with status {status}"))),
        }
    }
}

/// Sends metrics. They are cumulative, so a collector that missed a report catches up with the next.
#[derive(Debug)]
pub struct OtlpMetrics {
    collector: Collector,
    started: Timestamp,
}

impl OtlpMetrics {
    /// Sends the metrics since `started` to the collector at `endpoint`, as in `http://127.0.0.1:4318`.
    #[must_use]
    pub fn new(endpoint: &str, started: Timestamp) -> Self {
        Self { collector: Collector::new(endpoint, "/v1/metrics"), started }
    }
}

impl MeterSink for OtlpMetrics {
    fn name(&self) -> &'static str {
        "otlp_metrics"
    }

    fn publish<'a>(
        &'a self,
        _: &'a Snapshot,
        total: &'a Snapshot,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { self.collector.post(&shapes::metrics(total, self.started)).await })
    }
}

/// Sends a span for each decision.
#[derive(Debug)]
pub struct OtlpTraces {
    collector: Collector,
}

impl OtlpTraces {
    /// Sends spans to the collector at `endpoint`, as in `http://127.0.0.1:4318`.
    #[must_use]
    pub fn new(endpoint: &str) -> Self {
        Self { collector: Collector::new(endpoint, "/v1/traces") }
    }
}

impl RecordSink for OtlpTraces {
    fn name(&self) -> &'static str {
        "otlp_traces"
    }

    fn wants(&self, event: &Event<'_>) -> bool {
        matches!(event, Event::Admitted { .. } | Event::Denied { .. } | Event::Failed { .. })
    }

    fn write<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { self.collector.post(&shapes::traces(records)).await })
    }
}
