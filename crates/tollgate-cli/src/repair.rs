//! `tollgate repair`: entries from the future, which a wrong clock wrote.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use tollgate::repair::FutureEntry;
use tollgate::{Clock, Span, SystemClock};

use crate::config::Config;
use crate::failure::Failure;
use crate::open;
use crate::output::{self, Reader};
use crate::show::plain;

/// What was found, and what became of it.
#[derive(Debug, Serialize)]
struct Report {
    /// Whether entries were to be mended.
    applied: bool,
    entries: Vec<Value>,
}

/// Lists the entries of the configured store that are more than `ahead_max` ahead of its time, and mends them if `yes`.
pub(crate) async fn run(
    config: &Config,
    ahead_max: Span,
    yes: bool,
    reader: Reader,
) -> Result<(), Failure> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let store = Box::pin(open::for_repair(&config.store, &config.fallback, clock)).await?;
    let mut entries = Vec::new();
    while let Some(store) = &store {
        let listed = store.list_future(ahead_max).await?;
        let mut changed = false;
        for entry in &listed {
            let mended = yes && store.mend(entry, ahead_max).await?;
            changed |= mended;
            entries.push(shown(entry, mended));
        }
        // One call lists only so many.
        if !changed {
            break;
        }
    }
    let report = Report { applied: yes, entries };
    output::answer(reader, &report, || text(&report, ahead_max))
}

fn shown(entry: &FutureEntry, mended: bool) -> Value {
    let FutureEntry { policy, subject, at, ahead } = entry;
    json!({
        "policy": policy, "subject": subject, "at": at.to_string(), "ahead": ahead.for_people(),
        "ahead_ms": ahead.as_millis_ceil(), "mended": mended,
    })
}

fn text(report: &Report, ahead_max: Span) -> String {
    let mut rows = report.entries.clone();
    for row in &mut rows {
        row["subject"] = row["subject"].as_str().map(plain).into();
    }
    let none = format!("no entry is more than {ahead_max} ahead of the store's time");
    let table = output::table(&["policy", "subject", "at", "ahead", "mended"], &rows, &none);
    let count = rows.len();
    match (rows.is_empty(), report.applied) {
        (true, _) => table,
        (false, true) => format!("{table}\n\n{count} rewritten as used up now"),
        (false, false) => {
            format!(
                "{table}\n\n{count} from the future; nothing was changed, add --yes to rewrite them as used up now"
            )
        }
    }
}
