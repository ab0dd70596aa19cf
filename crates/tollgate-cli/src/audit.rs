//! `tollgate audit denials`: what a broker wrote down, as a table.

use tollgate::{Span, Timestamp};
use tollgate_server::wire::{AuditQuery, AuditRecord, AuditResponse, counted};

use crate::failure::Failure;
use crate::output::{self, Reader};
use crate::remote::Remote;
use crate::show::plain;

/// Prints the records of `broker` that `query` wants.
pub(crate) fn denials(broker: &Remote, query: &AuditQuery, reader: Reader) -> Result<(), Failure> {
    let number = |number: Option<u64>| number.map(|number| number.to_string());
    let AuditQuery { policy, subject, since, outcome, before, limit } = query.clone();
    let limit = limit.and_then(|limit| u64::try_from(limit).ok());
    let given = [
        ("policy", policy),
        ("subject", subject),
        ("since", since),
        ("outcome", outcome),
        ("before", number(before)),
        ("limit", number(limit)),
    ];
    let given: Vec<(&str, String)> =
        given.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    let found: AuditResponse = broker.get("/v1/audit", &given)?;
    output::answer(reader, &found, || table(&found))
}

fn table(found: &AuditResponse) -> String {
    if found.records.is_empty() {
        return "nothing was written down".to_owned();
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

/// `records` as lines of columns, with a head.
pub(crate) fn rows(records: &[AuditRecord]) -> Vec<String> {
    let head = ["when", "subject", "policy", "limit", "asked", "retry after", "outcome"];
    let cells: Vec<[String; 7]> =
        std::iter::once(head.map(str::to_owned)).chain(records.iter().map(row)).collect();
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; 7] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let line = |row: &[String; 7]| {
        let padded = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    cells.iter().map(line).collect()
}

fn row(record: &AuditRecord) -> [String; 7] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let seconds = |at: Timestamp| Timestamp::from_secs(at.as_micros() / 1_000_000).to_string();
    let retry = match record.retry_after_ms {
        Some(wait) => Some(Span::from_millis(wait).for_people()),
        None => record.never.then(|| "never".to_owned()),
    };
    let asked = record.asked.filter(|asked| 0 < *asked).zip(record.unit.as_ref());
    let degraded = if record.degraded { " (degraded)" } else { "" };
    [
        or_dash(record.at.map(seconds)),
        plain(&record.subject),
        record.policy.clone(),
        or_dash(record.limit.clone()),
        or_dash(asked.map(|(asked, unit)| counted(asked, unit))),
        or_dash(retry),
        format!("{}{degraded}", record.outcome),
    ]
}
