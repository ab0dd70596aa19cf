//! `tollgate repair`: lists and repairs entries from the future, which a wrong clock wrote.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use tollgate::clock::SystemClock;
use tollgate::repair::{FutureEntry, list_future, repair_entry};
use tollgate::{Clock, Error, ErrorKind, Span, Timestamp};

use crate::args::Repair;
use tollgate_config::Config;
use tollgate_config::open::{self, Purpose};
use tollgate_terminal::Failure;
use tollgate_terminal::escape_controls;
use tollgate_terminal::output::{self, OutputFormat};

/// The entries that were found, and whether they were repaired.
#[derive(Debug, Serialize)]
struct Report {
    /// Whether entries were repaired.
    applied: bool,
    /// The store.
    store: String,
    /// Whether the store exists.
    exists: bool,
    /// This machine's time.
    clock: String,
    /// The time that the store last saw, if the clock is far behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    disputed_time: Option<String>,
    entries: Vec<Value>,
}

/// Lists the entries of the configured store that are too far ahead, and repairs them with `--yes`. `named` is the file of
/// `--config`.
pub(crate) async fn run(
    config: &Config,
    named: Option<&Path>,
    args: &Repair,
    format: OutputFormat,
) -> Result<(), Failure> {
    let Repair { yes, clock_is_right, .. } = *args;
    let ahead_max: Span = args.ahead.parse().map_err(|error| {
        let message = format!("--ahead {}: {error}, as in --ahead 5m", args.ahead);
        Failure::new(ErrorKind::Invalid, message)
    })?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let now = clock.now();
    let opened = open::entries(&config.store, &config.fallback, clock, Purpose::Repair);
    let store = Box::pin(opened).await?.map(|opened| opened.entries);
    let disputed = store.as_ref().and_then(|store| store.disputed_time());
    if let Some(disputed) = disputed.filter(|_| yes && !clock_is_right) {
        return Err(in_dispute(now, disputed, named).into());
    }
    let mut entries = Vec::new();
    while let Some(store) = &store {
        let listed = list_future(&**store, ahead_max).await?;
        let mut changed = false;
        for entry in &listed {
            let mended = yes && repair_entry(&**store, entry, ahead_max).await?;
            changed |= mended;
            entries.push(shown(entry, mended));
        }
        // One call returns a bounded number.
        if !changed {
            break;
        }
    }
    let report = Report {
        applied: yes,
        store: config.store.describe(),
        exists: store.is_some(),
        clock: now.to_string(),
        disputed_time: disputed.map(|time| time.to_string()),
        entries,
    };
    output::print(format, &report, || text(&report, ahead_max, named))
}

/// Returns the command that repairs the same store.
fn repair_command(named: Option<&Path>, flags: &str) -> String {
    let config = named.map(|file| format!(" --config {}", file.display())).unwrap_or_default();
    format!("tollgate repair{config} {flags}")
}

fn in_dispute(now: Timestamp, disputed: Timestamp, named: Option<&Path>) -> Error {
    let text = format!(
        "this machine's clock shows {now}, but by the time that the store last saw it is {disputed} or later; nothing was \
         changed. Check the clock first (`date -u`, NTP). If it is behind, set it: the entries are healthy. If it is \
         right, run `{}`",
        repair_command(named, "--yes --clock-is-right")
    );
    Error::new(ErrorKind::Unavailable, text)
}

fn shown(entry: &FutureEntry, mended: bool) -> Value {
    let FutureEntry { policy, subject, at, ahead } = entry;
    json!({
        "policy": policy, "subject": subject, "at": at.to_string(), "ahead": ahead.humanize(),
        "ahead_ms": ahead.as_millis_ceil(), "mended": mended,
    })
}

fn text(report: &Report, ahead_max: Span, named: Option<&Path>) -> String {
    let mut rows = report.entries.clone();
    for row in &mut rows {
        row["subject"] = row["subject"].as_str().map(escape_controls).into();
    }
    let Report { store, clock, .. } = report;
    if !report.exists {
        return format!("{store}: there is no such folder yet, so there is nothing to repair");
    }
    let none = format!("{store}: no entry is more than {ahead_max} ahead of the store's time");
    let table = output::table(&["policy", "subject", "at", "ahead", "mended"], &rows, &none);
    let count = rows.len();
    let (flags, saw) = match &report.disputed_time {
        Some(time) => ("--yes --clock-is-right", format!(", and the store last saw {time}")),
        None => ("--yes", String::new()),
    };
    match (rows.is_empty(), report.applied) {
        (true, _) => table,
        (false, true) => format!("{store}\n{table}\n\n{count} rewritten as used up now"),
        (false, false) => format!(
            "{store}\n{table}\n\n{count} from the future; nothing was changed. This machine's clock shows {clock}{saw}.\n\
             Check the clock first: if it is behind, set it. Only if it is right, rewrite the entries as used up now:\n  \
             {}",
            repair_command(named, flags)
        ),
    }
}
