//! `[telemetry]`: the sinks of metrics and incidents.

use std::path::PathBuf;

use serde::Deserialize;
use tollgate::Span;
use tollgate_telemetry::Severity;
use tollgate_telemetry::sinks::aws::AwsOptions;

use crate::{Diagnostic, Document};

const FILE_DEFAULT: &str = "tollgate-incidents.jsonl";
const NAMESPACE_DEFAULT: &str = "RateLimiter";
const INTERVAL_DEFAULT: Span = Span::from_secs(10);

/// The shortest and the longest interval of publishing: services charge by the call, and an alarm needs recent values.
const INTERVAL_RANGE: [Span; 2] = [Span::from_secs(1), Span::from_secs(3_600)];

/// The longest namespace that CloudWatch accepts.
const NAMESPACE_MAX: usize = 255;

/// The section as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TelemetryTable {
    prometheus: Option<bool>,
    incident_file: Option<String>,
    log: Option<String>,
    cloudwatch: Option<CloudWatchTable>,
    emf: Option<EmfTable>,
    sns: Option<SnsTable>,
    otlp: Option<OtlpTable>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct CloudWatchTable {
    namespace: Option<String>,
    interval: Option<String>,
    region: Option<String>,
    endpoint: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct EmfTable {
    namespace: Option<String>,
    interval: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SnsTable {
    topic: Option<String>,
    region: Option<String>,
    endpoint: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct OtlpTable {
    endpoint: Option<String>,
    interval: Option<String>,
    traces: Option<bool>,
}

/// The sinks of metrics and incidents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TelemetryConfig {
    /// Whether the broker serves a page for Prometheus.
    pub prometheus: bool,
    /// The file that incidents are appended to.
    pub incident_file: PathBuf,
    /// The least severity of incidents on standard error; `None` for none.
    pub log: Option<Severity>,
    /// Metrics by PutMetricData.
    pub cloudwatch: Option<CloudWatchConfig>,
    /// Metrics as lines on standard output.
    pub emf: Option<EmfConfig>,
    /// Incidents to a topic.
    pub sns: Option<SnsConfig>,
    /// Metrics and traces to a collector.
    pub otlp: Option<OtlpConfig>,
}

/// Metrics by PutMetricData.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudWatchConfig {
    /// The namespace of the metrics.
    pub namespace: String,
    /// How often metrics are published.
    pub interval: Span,
    /// The region and the endpoint.
    pub place: AwsOptions,
}

/// Metrics in the embedded metric format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmfConfig {
    /// The namespace of the metrics.
    pub namespace: String,
    /// How often metrics are written.
    pub interval: Span,
}

/// Incidents to a topic of SNS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnsConfig {
    /// The ARN of the topic.
    pub topic: String,
    /// The region and the endpoint.
    pub place: AwsOptions,
}

/// Metrics and traces to a collector of OpenTelemetry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpConfig {
    /// The base URL of the collector.
    pub endpoint: String,
    /// How often metrics are sent.
    pub interval: Span,
    /// Whether traces are sent too.
    pub traces: bool,
}

impl TelemetryConfig {
    pub(crate) fn resolve(document: &Document, table: &TelemetryTable) -> Result<Self, Diagnostic> {
        let file = table.incident_file.as_deref().unwrap_or(FILE_DEFAULT);
        if file.is_empty() {
            let message = format!("incident_file is empty; name a file, as in {FILE_DEFAULT:?}");
            return Err(document.error(&["telemetry", "incident_file"], message));
        }
        let log = match table.log.as_deref() {
            None | Some("none") => None,
            Some("error") => Some(Severity::Error),
            Some("warn") => Some(Severity::Warn),
            Some("info") => Some(Severity::Info),
            Some(other) => {
                let message = format!(
                    "unknown severity {other:?} of log; use \"none\", \"error\", \"warn\" or \"info\""
                );
                return Err(document.error(&["telemetry", "log"], message));
            }
        };
        let cloudwatch = |table: &CloudWatchTable| {
            Ok(CloudWatchConfig {
                namespace: namespace(document, "cloudwatch", table.namespace.as_deref())?,
                interval: interval(document, "cloudwatch", table.interval.as_deref())?,
                place: place(&table.region, &table.endpoint),
            })
        };
        let emf = |table: &EmfTable| {
            Ok(EmfConfig {
                namespace: namespace(document, "emf", table.namespace.as_deref())?,
                interval: interval(document, "emf", table.interval.as_deref())?,
            })
        };
        Ok(Self {
            prometheus: table.prometheus.unwrap_or(true),
            incident_file: document.folder().join(file),
            log,
            cloudwatch: table.cloudwatch.as_ref().map(cloudwatch).transpose()?,
            emf: table.emf.as_ref().map(emf).transpose()?,
            sns: table.sns.as_ref().map(|table| sns(document, table)).transpose()?,
            otlp: table.otlp.as_ref().map(|table| otlp(document, table)).transpose()?,
        })
    }
}

fn place(region: &Option<String>, endpoint: &Option<String>) -> AwsOptions {
    AwsOptions { region: region.clone(), endpoint: endpoint.clone(), keys: None }
}

fn sns(document: &Document, table: &SnsTable) -> Result<SnsConfig, Diagnostic> {
    let topic = match table.topic.as_deref() {
        Some(topic) if topic.starts_with("arn:") => topic.to_owned(),
        Some(topic) => {
            let message = format!(
                "topic {topic:?} is not an ARN, as in \"arn:aws:sns:eu-central-1:123456789012:tollgate\""
            );
            return Err(document.error(&["telemetry", "sns", "topic"], message));
        }
        None => return Err(document.error(&["telemetry", "sns"], "sns needs a topic, by its ARN")),
    };
    Ok(SnsConfig { topic, place: place(&table.region, &table.endpoint) })
}

fn otlp(document: &Document, table: &OtlpTable) -> Result<OtlpConfig, Diagnostic> {
    let endpoint = table.endpoint.clone().unwrap_or_default();
    if !endpoint.starts_with("http://") && !endpoint.starts_with("https://") {
        let message = "otlp needs an endpoint that starts with http:// or https://, as in \"http://127.0.0.1:4318\"";
        return Err(document.error(&["telemetry", "otlp", "endpoint"], message));
    }
    let interval = interval(document, "otlp", table.interval.as_deref())?;
    Ok(OtlpConfig { endpoint, interval, traces: table.traces.unwrap_or(false) })
}

fn namespace(document: &Document, table: &str, given: Option<&str>) -> Result<String, Diagnostic> {
    let namespace = given.unwrap_or(NAMESPACE_DEFAULT);
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-/#: ".contains(c);
    let message = if namespace.starts_with("AWS/") {
        "begins with AWS/, which is for services of AWS"
    } else if namespace.is_empty() || NAMESPACE_MAX < namespace.len() {
        "must have 1 to 255 characters"
    } else if !namespace.chars().all(is_allowed) {
        "may have letters, digits and . _ - / # : and spaces only"
    } else {
        return Ok(namespace.to_owned());
    };
    let path = ["telemetry", table, "namespace"];
    Err(document.error(&path, format!("namespace {namespace:?} {message}")))
}

fn interval(document: &Document, table: &str, given: Option<&str>) -> Result<Span, Diagnostic> {
    let Some(given) = given else { return Ok(INTERVAL_DEFAULT) };
    document.duration(&["telemetry", table, "interval"], given, INTERVAL_RANGE)
}
