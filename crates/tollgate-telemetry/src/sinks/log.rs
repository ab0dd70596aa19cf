//! Structured logs as JSON lines.
//!
//! All events of one permit share a `correlation_id`. A denial is a warning with the subject, its use and the wait.

use std::io::Write;

use serde_json::{Map, Value as Json, json};
use tollgate::Error;
use tollgate::gate::BoxFuture;
use tollgate::observe::Event;

use super::writer::Writer;
use crate::record::{Record, RecordKind, Severity};
use crate::sink::RecordSink;

/// Writes JSON lines.
#[derive(Debug)]
pub struct Log {
    min_severity: Severity,
    writer: Writer,
}

impl Log {
    /// Writes events of at least `min_severity` to `writer`.
    pub fn new(min_severity: Severity, writer: impl Write + Send + 'static) -> Self {
        Self { min_severity, writer: Writer::new(writer) }
    }
}

impl RecordSink for Log {
    fn name(&self) -> &'static str {
        "log"
    }

    fn wants(&self, event: &Event<'_>) -> bool {
        Severity::for_event(event).is_some_and(|severity| self.min_severity <= severity)
    }

    fn write<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let lines: String =
                records.iter().map(|record| format!("{}\n", line(record))).collect();
            self.writer.write(lines.into_bytes()).await
        })
    }
}

fn line(record: &Record) -> Json {
    let mut members = Map::new();
    let mut put = |name: &str, value: Json| {
        if !value.is_null() {
            members.insert(name.to_owned(), value);
        }
    };
    put("at", json!(record.at.to_string()));
    put("level", json!(record.severity.level()));
    put("event", json!(record.kind.name()));
    put("correlation_id", json!(record.correlation_id));
    put("ask_id", json!(record.ask_id));
    put("policy", json!(record.policy));
    put("subject", json!(record.subject));
    put("took_us", json!(record.took.map(tollgate::Span::as_micros)));
    match &record.kind {
        RecordKind::Admitted { costs, degraded, shadow_denied } => {
            put("costs", json!(costs));
            put("degraded", json!(degraded));
            put("shadow_denied", json!(shadow_denied));
        }
        RecordKind::Denied { limit, reset_at, standing, recent, degraded } => {
            put("limit", json!(limit));
            if let Some(standing) = standing {
                put("used", json!(standing.used));
                put("limit_size", json!(standing.limit));
            }
            put("reset_at", json!(reset_at.map(|at| at.to_string())));
            put("oldest", json!(recent.first().map(ToString::to_string)));
            let recent: Vec<String> = recent.iter().map(ToString::to_string).collect();
            put("recent", json!(recent));
            put("degraded", json!(degraded));
        }
        RecordKind::Closed { limit, until } => {
            put("limit", json!(limit));
            put("until", json!(until.to_string()));
        }
        RecordKind::Failed { error }
        | RecordKind::DegradedBegan { error }
        | RecordKind::Misconfigured { error } => {
            put("error", json!(error));
        }
        RecordKind::LimitDiffers(limit) => put("incident", json!(limit)),
        RecordKind::DegradedEnded { lasted } => put("lasted", json!(lasted.humanize())),
        RecordKind::Mended { ahead } => put("ahead", json!(ahead.humanize())),
        RecordKind::Violated(incident) => put("incident", json!(incident)),
        RecordKind::Done { .. } => {}
    }
    Json::Object(members)
}
