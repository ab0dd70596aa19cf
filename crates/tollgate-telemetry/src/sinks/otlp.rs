//! Metrics and traces to an OpenTelemetry collector, as OTLP over HTTP in JSON.
//!
//! The format is a few fixed shapes and the counts are there already, so the sink writes them itself: OpenTelemetry's SDK would
//! count a second time on the path of each decision, and bring an HTTP client of its own.

mod shapes;

use aws_smithy_http_client::Connector;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_runtime_api::client::http::HttpConnector as _;
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_types::body::SdkBody;
use serde_json::Value as Json;
use tollgate::{BoxFuture, Error, ErrorKind, Event, Timestamp};

use crate::record::Record;
use crate::sink::{MeterSink, RecordSink};
use crate::snapshot::Snapshot;

/// A way to a collector.
#[derive(Debug)]
struct Collector {
    connector: Connector,
    url: String,
}

impl Collector {
    fn new(endpoint: &str, path: &str) -> Self {
        let tls = Provider::Rustls(CryptoMode::Ring);
        let connector = Connector::builder().tls_provider(tls).build();
        Self { connector, url: format!("{}{path}", endpoint.trim_end_matches('/')) }
    }

    async fn post(&self, body: &Json) -> Result<(), Error> {
        let failed = |text: String| {
            Error::new(ErrorKind::Unavailable, format!("otlp: {}: {text}", self.url))
        };
        let mut request = HttpRequest::new(SdkBody::from(body.to_string()));
        request.set_method("POST").map_err(|error| failed(error.to_string()))?;
        request.set_uri(self.url.as_str()).map_err(|error| failed(error.to_string()))?;
        request.headers_mut().insert("content-type", "application/json");
        let response = self.connector.call(request).await;
        let response = response.map_err(|error| failed(format!("{error:?}")))?;
        match response.status().as_u16() {
            200..=299 => Ok(()),
            status => Err(failed(format!("the collector answered with status {status}"))),
        }
    }
}

/// Sends the counts. They are sums since the start, so a collector that missed some reads them from the next.
#[derive(Debug)]
pub struct OtlpMetrics {
    collector: Collector,
    started: Timestamp,
}

impl OtlpMetrics {
    /// Sends to the collector at `endpoint`, as in `http://127.0.0.1:4318`, what was counted since `started`.
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
    /// Sends to the collector at `endpoint`, as in `http://127.0.0.1:4318`.
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
