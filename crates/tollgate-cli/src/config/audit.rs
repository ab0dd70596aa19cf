//! `[audit]`: which decisions the audit log records, and for how long.

use serde::Deserialize;
use tollgate::Span;
use tollgate::audit::Retention;
use tollgate_config::{Diagnostic, Document};
use tollgate_server::{AuditOptions, Recording};

/// The section as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct AuditTable {
    record: Option<String>,
    entries_max: Option<u64>,
    age_max: Option<String>,
}

/// The fewest and the most entries that can be set.
const ENTRIES_RANGE: [u64; 2] = [1, 100_000_000];

/// The shortest and the longest age that can be set.
const AGE_RANGE: [Span; 2] = [Span::from_secs(1), Span::from_hours(10 * 365 * 24)];

pub(super) fn resolve(document: &Document) -> Result<AuditOptions, Diagnostic> {
    let table: Option<AuditTable> = document.section("audit")?;
    let AuditTable { record, entries_max, age_max } = table.unwrap_or_default();
    let recording = match record.as_deref() {
        None | Some("limited") => Recording::Limited,
        Some("all") => Recording::Everything,
        Some("none") => Recording::Nothing,
        Some(other) => {
            let message =
                format!("unknown value {other:?} of record; use \"limited\", \"all\" or \"none\"");
            return Err(document.error(&["audit", "record"], message));
        }
    };
    let mut keep = Retention::default();
    if let Some(entries) = entries_max {
        let [least, most] = ENTRIES_RANGE;
        let within = (least..=most).contains(&entries).then(|| usize::try_from(entries).ok());
        keep.entries_max = within.flatten().ok_or_else(|| {
            let message = format!("entries_max {entries} must be between {least} and {most}");
            document.error(&["audit", "entries_max"], message)
        })?;
    }
    if let Some(age) = age_max {
        keep.age_max = document.duration(&["audit", "age_max"], &age, AGE_RANGE)?;
    }
    Ok(AuditOptions { recording, keep })
}
