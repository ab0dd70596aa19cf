//! What is written down of decisions, and for how long: `[audit]`.

use tollgate::Span;
use tollgate::audit::Keep;
use tollgate_server::{AuditSettings, Recording};

use super::Blame;
use super::fallback::span;
use super::file::AuditTable;
use super::place::Text;

/// The fewest and the most entries that can be set.
const ENTRIES_RANGE: [u64; 2] = [1, 100_000_000];

/// The shortest and the longest age that can be set.
const AGE_RANGE: [Span; 2] = [Span::from_secs(1), Span::from_hours(10 * 365 * 24)];

pub(super) fn resolve(text: &Text<'_>, table: &AuditTable) -> Result<AuditSettings, Blame> {
    let AuditTable { record, entries_max, age_max } = table;
    let recording = match record.as_deref() {
        None | Some("limited") => Recording::Limited,
        Some("all") => Recording::Everything,
        Some("none") => Recording::Nothing,
        Some(other) => {
            let what = format!("record {other:?} is none of \"limited\", \"all\" and \"none\"");
            return Err(text.blame(&["audit", "record"], what));
        }
    };
    let mut keep = Keep::default();
    if let Some(entries) = *entries_max {
        let [least, most] = ENTRIES_RANGE;
        let within = (least..=most).contains(&entries).then(|| usize::try_from(entries).ok());
        keep.entries_max = within.flatten().ok_or_else(|| {
            let what = format!("entries_max {entries} must be between {least} and {most}");
            text.blame(&["audit", "entries_max"], what)
        })?;
    }
    if let Some(age) = age_max {
        keep.age_max = span(text, ["audit", "age_max"], age, AGE_RANGE)?;
    }
    Ok(AuditSettings { recording, keep })
}
