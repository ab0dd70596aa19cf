//! `tollgate audit denials`: the audit log of a broker as a table.

use std::fmt::Write as _;

use serde_json::{Value, json};
use tollgate::{Span, Timestamp};
use tollgate_protocol::json::{AuditCharge, AuditRecord, AuditResponse, counted};

use crate::args::AuditDenials;
use crate::remote::Remote;
use tollgate_terminal::Failure;
use tollgate_terminal::output::{self, OutputFormat};

/// Prints the records of `broker` that the arguments select.
pub(crate) async fn denials(
    broker: &Remote,
    args: AuditDenials,
    format: OutputFormat,
) -> Result<(), Failure> {
    let query = [
        ("policy", args.policy),
        ("subject", args.subject),
        ("since", args.since),
        ("outcome", Some(args.outcome).filter(|outcome| outcome != "all")),
        ("before", args.before.map(|number| number.to_string())),
        ("limit", Some(args.limit.to_string())),
    ];
    let query: Vec<(&str, String)> =
        query.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    let found: AuditResponse = broker.get("/v1/audit", &query).await?;
    output::print(format, &found, || table(&found))
}

fn table(found: &AuditResponse) -> String {
    if found.records.is_empty() {
        return "the audit log has no such records".to_owned();
    }
    let mut lines = rows(&found.records);
    if found.partial {
        lines.push("the audit log cannot be read; these are only the broker's newest".to_owned());
    }
    if let Some(next) = found.next {
        lines.push(format!("there are more: --before {next}"));
    }
    lines.join("\n")
}

/// The columns of a table of records. The last is there if a record has several charges.
const COLUMNS: [&str; 8] =
    ["when", "subject", "policy", "limit", "asked", "retry after", "outcome", "charges"];

/// Formats `records` as aligned lines, with a header.
pub(crate) fn rows(records: &[AuditRecord]) -> Vec<String> {
    let has_charges = records.iter().any(|record| !record.charges.is_empty());
    let columns = &COLUMNS[..COLUMNS.len() - usize::from(!has_charges)];
    let rows: Vec<Value> = records.iter().map(row).collect();
    if rows.is_empty() {
        return vec![columns.join("  ")];
    }
    output::table(columns, &rows, "").lines().map(str::to_owned).collect()
}

/// Formats a charge, as in `team:t7 requests=1 tokens=400 (refused by tpm)`.
fn charge(charge: &AuditCharge) -> String {
    let mut text = format!("{}:{}", charge.policy, charge.subject);
    for (unit, amount) in charge.costs.iter() {
        let _ = write!(text, " {unit}={amount}");
    }
    if !charge.refused.is_empty() {
        let _ = write!(text, " (refused by {})", charge.refused.join(", "));
    }
    text
}

fn row(record: &AuditRecord) -> Value {
    let seconds = |at: Timestamp| Timestamp::from_secs(at.as_micros() / 1_000_000).to_string();
    let retry = match record.retry_after_ms {
        Some(wait) => Some(Span::from_millis(wait).humanize()),
        None => record.never.then(|| "never".to_owned()),
    };
    let asked = record.asked.filter(|asked| 0 < *asked).zip(record.unit.as_ref());
    let degraded = if record.degraded { " (degraded)" } else { "" };
    json!({
        "when": record.at.map(seconds),
        "subject": record.subject,
        "policy": record.policy,
        "limit": record.limit,
        "asked": asked.map(|(asked, unit)| counted(asked, unit)),
        "retry after": retry,
        "outcome": format!("{}{degraded}", record.outcome),
        "charges": (!record.charges.is_empty())
            .then(|| record.charges.iter().map(charge).collect::<Vec<_>>().join("; ")),
    })
}
