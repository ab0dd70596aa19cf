//! Metrics as log lines in CloudWatch's embedded metric format, for functions on Lambda.
//!
//! A function is frozen after it returns, so a background call may never be made; a line on standard output is written.

use std::io::Write;

use serde_json::{Map, Value as Json, json};
use tollgate::Error;
use tollgate::gate::BoxFuture;

use super::datum::{self, Datum};
use super::writer::Writer;
use crate::sink::MeterSink;
use crate::snapshot::Snapshot;

/// Writes one line for each set of dimensions.
#[derive(Debug)]
pub struct Emf {
    namespace: String,
    writer: Writer,
}

impl Emf {
    /// Writes metrics of `namespace` to `writer`, usually standard output.
    pub fn new(namespace: impl Into<String>, writer: impl Write + Send + 'static) -> Self {
        Self { namespace: namespace.into(), writer: Writer::new(writer) }
    }
}

/// The most metrics of one line.
const METRICS_MAX: usize = 100;

impl MeterSink for Emf {
    fn name(&self) -> &'static str {
        "emf"
    }

    fn publish<'a>(
        &'a self,
        delta: &'a Snapshot,
        _: &'a Snapshot,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let mut lines = String::new();
            for group in group(datum::from_snapshot(delta)) {
                lines += &line(&self.namespace, delta.at.as_micros() / 1_000, &group).to_string();
                lines.push('\n');
            }
            if lines.is_empty() { Ok(()) } else { self.writer.write(lines.into_bytes()).await }
        })
    }
}

/// Groups data by dimensions, each metric once per group, because a line has one value per name.
fn group(data: Vec<Datum>) -> Vec<Vec<Datum>> {
    let mut groups: Vec<Vec<Datum>> = Vec::new();
    for datum in data {
        let fits = |group: &&mut Vec<Datum>| {
            group.len() < METRICS_MAX
                && group[0].dimensions == datum.dimensions
                && group.iter().all(|other| other.name != datum.name)
        };
        match groups.iter_mut().find(fits) {
            Some(group) => group.push(datum),
            None => groups.push(vec![datum]),
        }
    }
    groups
}

fn line(namespace: &str, at_ms: u64, group: &[Datum]) -> Json {
    let mut members = Map::new();
    let dimensions: Vec<&str> = group[0].dimensions.iter().map(|(name, _)| name.as_str()).collect();
    let metrics: Vec<Json> = group
        .iter()
        .map(|datum| json!({ "Name": datum.name, "Unit": datum.metric.cloudwatch_unit() }))
        .collect();
    members.insert(
        "_aws".to_owned(),
        json!({
            "Timestamp": at_ms,
            "CloudWatchMetrics": [
                { "Namespace": namespace, "Dimensions": [dimensions], "Metrics": metrics }
            ],
        }),
    );
    for (name, value) in &group[0].dimensions {
        members.insert(name.clone(), json!(&**value));
    }
    for datum in group {
        members.insert(datum.name.to_owned(), values_of(datum));
    }
    Json::Object(members)
}

/// Returns one number, or values with their counts.
fn values_of(datum: &Datum) -> Json {
    match datum.values.as_slice() {
        [(value, 1.0)] => json!(value),
        values => {
            let (values, counts): (Vec<f64>, Vec<f64>) = values.iter().copied().unzip();
            json!({ "Values": values, "Counts": counts })
        }
    }
}
