//! Structured logs: one JSON object a line.
//!
//! Everything that happens to one permit has the same `correlation_id`. A refusal is a warning and says who, how much is
//! used, since when, and from when it would go through.

use std::io::Write;

use serde_json::{Map, Value as Json, json};
use tollgate::{BoxFuture, Error, Event};

use super::writer::Writer;
use crate::record::{Record, Severity, What};
use crate::sink::RecordSink;

/// Lines of JSON.
#[derive(Debug)]
pub struct Log {
    least: Severity,
    writer: Writer,
}

impl Log {
    /// Lines to `writer` about what matters at least as much as `least`.
    pub fn new(least: Severity, writer: impl Write + Send + 'static) -> Self {
        Self { least, writer: Writer::new(writer) }
    }
}

impl RecordSink for Log {
    fn name(&self) -> &'static str {
        "log"
    }

    fn wants(&self, event: &Event<'_>) -> bool {
        Severity::of(event).is_some_and(|severity| self.least <= severity)
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
    put("level", json!(record.severity().word()));
    put("event", json!(record.what.word()));
    put("correlation_id", json!(record.correlation_id));
    put("ask_id", json!(record.ask_id));
    put("policy", json!(record.policy));
    put("subject", json!(record.subject));
    put("took_us", json!(record.took.map(tollgate::Span::as_micros)));
    match &record.what {
        What::Admitted { costs, degraded, shadow_denied } => {
            put("costs", json!(costs));
            put("degraded", json!(degraded));
            put("shadow_denied", json!(shadow_denied));
        }
        What::Denied { limit, reset_at, standing, recent, degraded } => {
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
        What::Closed { limit, until } => {
            put("limit", json!(limit));
            put("until", json!(until.to_string()));
        }
        What::Failed { error } | What::DegradedBegan { error } | What::Misconfigured { error } => {
            put("error", json!(error));
        }
        What::DegradedEnded { lasted } => put("lasted", json!(lasted.for_people())),
        What::Mended { ahead } => put("ahead", json!(ahead.for_people())),
        What::Violated(incident) => put("incident", json!(incident)),
        What::Done { .. } => {}
    }
    Json::Object(members)
}
