//! Metrics and traces as OTLP JSON. There, 64-bit integers are strings, and times are nanoseconds.

use serde_json::{Value as Json, json};
use tollgate::internal::edge;
use tollgate::{Span, Timestamp};

use crate::catalogue::Kind;
use crate::record::{Record, RecordKind};
use crate::sinks::buckets::{bounds, scale};
use crate::snapshot::{Series, Snapshot, Value};

/// Sums are since the start.
const CUMULATIVE: u32 = 2;
const KIND_INTERNAL: u32 = 1;
const STATUS_ERROR: u32 = 2;

fn scoped(signal: &str, scope: &str, items_name: &str, items: &[Json]) -> Json {
    let resource = json!({ "attributes": [attribute("service.name", "tollgate")] });
    let scoped = json!({ "scope": { "name": "tollgate" }, items_name: items });
    json!({ signal: [{ "resource": resource, scope: [scoped] }] })
}

fn attribute(name: &str, value: &str) -> Json {
    json!({ "key": name, "value": { "stringValue": value } })
}

fn nanos(at: Timestamp) -> String {
    (u128::from(at.as_micros()) * 1_000).to_string()
}

/// Returns all metrics with a series.
pub(super) fn metrics(total: &Snapshot, started: Timestamp) -> Json {
    // Counters of other crates have their own catalogues, so the metrics are those of the snapshot.
    let all: Vec<Json> = total
        .series
        .chunk_by(|one, next| one.metric.name == next.metric.name)
        .map(|series| {
            let metric = series[0].metric;
            let points: Vec<Json> =
                series.iter().map(|series| point(series, started, total.at)).collect();
            let (shape, data) = match metric.kind {
                Kind::Counter => (
                    "sum",
                    json!({ "aggregationTemporality": CUMULATIVE, "isMonotonic": true, "dataPoints": points }),
                ),
                Kind::Gauge => ("gauge", json!({ "dataPoints": points })),
                Kind::Duration | Kind::JobDuration | Kind::CallDuration | Kind::Attempts => (
                    "histogram",
                    json!({ "aggregationTemporality": CUMULATIVE, "dataPoints": points }),
                ),
            };
            let unit = match metric.kind {
                Kind::Duration | Kind::JobDuration | Kind::CallDuration => "s",
                Kind::Counter | Kind::Gauge | Kind::Attempts => "1",
            };
            json!({ "name": metric.otel(), "description": metric.help, "unit": unit, shape: data })
        })
        .collect();
    scoped("resourceMetrics", "scopeMetrics", "metrics", &all)
}

fn point(series: &Series, started: Timestamp, at: Timestamp) -> Json {
    let labels = series.metric.labels.iter().zip(&series.labels);
    let attributes: Vec<Json> = labels.map(|(name, value)| attribute(name, value)).collect();
    let mut point = json!({
        "attributes": attributes,
        "startTimeUnixNano": nanos(started),
        "timeUnixNano": nanos(at),
    });
    match &series.value {
        Value::Number(number) => point["asInt"] = json!(number.to_string()),
        Value::Buckets { counts, sum } => {
            let kind = series.metric.kind;
            point["count"] = json!(counts.iter().sum::<u64>().to_string());
            point["sum"] = json!(*sum as f64 / scale(kind));
            point["explicitBounds"] = json!(bounds(kind, counts.len()));
            let counts: Vec<String> = counts.iter().map(ToString::to_string).collect();
            point["bucketCounts"] = json!(counts);
        }
    }
    point
}

/// Returns a span per record.
pub(super) fn traces(records: &[Record]) -> Json {
    let spans: Vec<Json> = records.iter().map(span).collect();
    scoped("resourceSpans", "scopeSpans", "spans", &spans)
}

fn span(record: &Record) -> Json {
    let took = record.took.unwrap_or(Span::from_micros(0));
    let started = Timestamp::from_micros(record.at.as_micros().saturating_sub(took.as_micros()));
    let mut attributes = vec![
        attribute("tollgate.outcome", record.kind.name()),
        attribute("tollgate.correlation_id", &record.correlation_id),
    ];
    let texts = [
        ("tollgate.policy", &record.policy),
        ("tollgate.subject", &record.subject),
        ("tollgate.ask_id", &record.ask_id),
    ];
    for (name, text) in texts {
        attributes.extend(text.as_deref().map(|text| attribute(name, text)));
    }
    let mut status = json!({});
    match &record.kind {
        RecordKind::Denied { limit, .. } => attributes.push(attribute("tollgate.limit", limit)),
        RecordKind::Failed { error } => status = json!({ "code": STATUS_ERROR, "message": error }),
        _ => {}
    }
    json!({
        "traceId": hex(4),
        "spanId": hex(2),
        "name": "tollgate.acquire",
        "kind": KIND_INTERNAL,
        "startTimeUnixNano": nanos(started),
        "endTimeUnixNano": nanos(record.at),
        "attributes": attributes,
        "status": status,
    })
}

/// Returns `words` times 32 random bits in hexadecimal.
fn hex(words: usize) -> String {
    (0..words).map(|_| format!("{:08x}", edge::random())).collect()
}
