//! `[telemetry]`: who is told what happens.

use std::path::{Path, PathBuf};

use tollgate::Span;
use tollgate_telemetry::Severity;
use tollgate_telemetry::sinks::aws::Place;

use super::file::TelemetryTable;
use super::place::Text;
use super::{Blame, file};

const FILE_DEFAULT: &str = "tollgate-incidents.jsonl";
const NAMESPACE_DEFAULT: &str = "RateLimiter";
const INTERVAL_DEFAULT: Span = Span::from_secs(10);

/// Metrics are published at least this far apart; the services charge by the call.
const INTERVAL_MIN: Span = Span::from_secs(1);

/// A metric that comes more seldom is no use to an alarm.
const INTERVAL_MAX: Span = Span::from_secs(3_600);

/// The longest name of a namespace that CloudWatch takes.
const NAMESPACE_MAX: usize = 255;

/// Who is told what happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TelemetryConfig {
    /// Whether the broker has a page for Prometheus.
    pub(crate) prometheus: bool,
    /// Where incidents are kept.
    pub(crate) incident_file: PathBuf,
    /// What is logged, if anything.
    pub(crate) log: Option<Severity>,
    pub(crate) cloudwatch: Option<CloudWatchConfig>,
    pub(crate) emf: Option<EmfConfig>,
    pub(crate) sns: Option<SnsConfig>,
    pub(crate) otlp: Option<OtlpConfig>,
}

/// Metrics by PutMetricData.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CloudWatchConfig {
    pub(crate) namespace: String,
    pub(crate) interval: Span,
    pub(crate) place: Place,
}

/// Metrics in lines on standard output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EmfConfig {
    pub(crate) namespace: String,
    pub(crate) interval: Span,
}

/// Incidents to a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnsConfig {
    pub(crate) topic: String,
    pub(crate) place: Place,
}

/// Metrics and traces to a collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OtlpConfig {
    pub(crate) endpoint: String,
    pub(crate) interval: Span,
    pub(crate) traces: bool,
}

impl TelemetryConfig {
    pub(super) fn resolve(
        text: &Text<'_>,
        table: &TelemetryTable,
        folder: &Path,
    ) -> Result<Self, Blame> {
        let file = table.incident_file.as_deref().unwrap_or(FILE_DEFAULT);
        if file.is_empty() {
            let what = format!("incident_file is empty; name a file, as in {FILE_DEFAULT:?}");
            return Err(text.blame(&["telemetry", "incident_file"], what));
        }
        let log = match table.log.as_deref() {
            None | Some("none") => None,
            Some("error") => Some(Severity::Error),
            Some("warn") => Some(Severity::Warn),
            Some("info") => Some(Severity::Info),
            Some(other) => {
                let what =
                    format!("log {other:?} is none of \"none\", \"error\", \"warn\" and \"info\"");
                return Err(text.blame(&["telemetry", "log"], what));
            }
        };
        Ok(Self {
            prometheus: table.prometheus.unwrap_or(true),
            incident_file: folder.join(file),
            log,
            cloudwatch: table
                .cloudwatch
                .as_ref()
                .map(|table| cloudwatch(text, table))
                .transpose()?,
            emf: table.emf.as_ref().map(|table| emf(text, table)).transpose()?,
            sns: table.sns.as_ref().map(|table| sns(text, table)).transpose()?,
            otlp: table.otlp.as_ref().map(|table| otlp(text, table)).transpose()?,
        })
    }
}

fn cloudwatch(text: &Text<'_>, table: &file::CloudWatchTable) -> Result<CloudWatchConfig, Blame> {
    Ok(CloudWatchConfig {
        namespace: namespace(text, "cloudwatch", table.namespace.as_deref())?,
        interval: interval(text, "cloudwatch", table.interval.as_deref())?,
        place: Place { region: table.region.clone(), endpoint: table.endpoint.clone(), keys: None },
    })
}

fn emf(text: &Text<'_>, table: &file::EmfTable) -> Result<EmfConfig, Blame> {
    Ok(EmfConfig {
        namespace: namespace(text, "emf", table.namespace.as_deref())?,
        interval: interval(text, "emf", table.interval.as_deref())?,
    })
}

fn sns(text: &Text<'_>, table: &file::SnsTable) -> Result<SnsConfig, Blame> {
    let topic = match table.topic.as_deref() {
        Some(topic) if topic.starts_with("arn:") => topic.to_owned(),
        Some(topic) => {
            let what = format!(
                "topic {topic:?} is not an ARN, as in \"arn:aws:sns:eu-central-1:123456789012:tollgate\""
            );
            return Err(text.blame(&["telemetry", "sns", "topic"], what));
        }
        None => return Err(text.blame(&["telemetry", "sns"], "sns needs a topic, by its ARN")),
    };
    let place =
        Place { region: table.region.clone(), endpoint: table.endpoint.clone(), keys: None };
    Ok(SnsConfig { topic, place })
}

fn otlp(text: &Text<'_>, table: &file::OtlpTable) -> Result<OtlpConfig, Blame> {
    let endpoint = table.endpoint.clone().unwrap_or_default();
    if !endpoint.starts_with("http://") && !endpoint.starts_with("https://") {
        let what = "otlp needs an endpoint that starts with http:// or https://, as in \"http://127.0.0.1:4318\"";
        return Err(text.blame(&["telemetry", "otlp", "endpoint"], what));
    }
    let interval = interval(text, "otlp", table.interval.as_deref())?;
    Ok(OtlpConfig { endpoint, interval, traces: table.traces.unwrap_or(false) })
}

fn namespace(text: &Text<'_>, table: &str, given: Option<&str>) -> Result<String, Blame> {
    let namespace = given.unwrap_or(NAMESPACE_DEFAULT);
    let right = |c: char| c.is_ascii_alphanumeric() || "._-/#: ".contains(c);
    let what = if namespace.starts_with("AWS/") {
        "begins with AWS/, which is for services of AWS"
    } else if namespace.is_empty() || NAMESPACE_MAX < namespace.len() {
        "must have 1 to 255 characters"
    } else if !namespace.chars().all(right) {
        "may have letters, digits and . _ - / # : and spaces only"
    } else {
        return Ok(namespace.to_owned());
    };
    Err(text.blame(&["telemetry", table, "namespace"], format!("namespace {namespace:?} {what}")))
}

fn interval(text: &Text<'_>, table: &str, given: Option<&str>) -> Result<Span, Blame> {
    let Some(given) = given else { return Ok(INTERVAL_DEFAULT) };
    let wrong = |what: String| text.blame(&["telemetry", table, "interval"], what);
    let interval: Span = given.parse().map_err(|error| wrong(format!("interval: {error}")))?;
    if interval < INTERVAL_MIN || INTERVAL_MAX < interval {
        let what = format!("interval {given:?} must be {INTERVAL_MIN} to {INTERVAL_MAX}");
        return Err(wrong(what));
    }
    Ok(interval)
}
