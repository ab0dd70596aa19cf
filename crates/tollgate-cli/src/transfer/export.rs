//! `tollgate export`: writes the entries of a store into a document.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::json;
use tollgate::clock::SystemClock;
use tollgate::entries::Visited;
use tollgate::{Clock, Error, ErrorKind};
use tollgate_server::overrides::Overrides;

use super::document::{Origin, Writer};
use super::progress;
use crate::EXIT_FAILED;
use crate::args::Export;
use tollgate_config::Config;
use tollgate_config::open::{self, OpenedEntries, Purpose};
use tollgate_terminal::Failure;
use tollgate_terminal::escape_controls;
use tollgate_terminal::files::rename_target;
use tollgate_terminal::output::{self, OutputFormat};

/// Exports the configured store to a file or to standard output.
pub(crate) async fn export(
    config: &Config,
    flags: &Export,
    format: OutputFormat,
) -> Result<ExitCode, Failure> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let opened = open::entries(&config.store, &config.fallback, clock, Purpose::Export);
    let Some(store) = Box::pin(opened).await? else {
        let text = format!(
            "{}: there is no such folder, so there is nothing to export",
            config.store.describe()
        );
        return Err(Failure::new(ErrorKind::Invalid, text));
    };
    let Some(file) = &flags.to else {
        let (_, report) = write(config, &store, flags, BufWriter::new(io::stdout())).await?;
        if format == OutputFormat::Text {
            output::print_error(&report.text(config, "standard output"));
        }
        return Ok(report.status(format));
    };
    let target = rename_target(file);
    let part = target.as_deref().map_or_else(|| file.clone(), temporary_path);
    let written = match create(&part).map_err(|error| unwritable(&part, &error)) {
        Ok(out) => write(config, &store, flags, BufWriter::new(out)).await,
        Err(error) => Err(error),
    };
    let finished = written.and_then(|(out, report)| {
        finish(out, target.as_deref().map(|file| (&*part, file)))
            .map_err(|error| unwritable(file, &error))?;
        Ok(report)
    });
    let report = finished.inspect_err(|_| {
        // The rest is no export.
        if target.is_some() {
            let _ = fs::remove_file(&part);
        }
    })?;
    let value = json!({
        "file": file, "store": config.store.kind(), "taken_at": report.origin.taken_at.to_string(),
        "entries": report.entries, "left_out": report.left_out, "overrides": report.overrides,
        "permit_key": report.origin.permit_key.is_some(),
    });
    output::print(format, &value, || report.text(config, &file.display().to_string()))?;
    Ok(report.status(format))
}

struct Report {
    origin: Origin,
    entries: u64,
    /// How many entries do not decode.
    left_out: u64,
    overrides: usize,
}

impl Report {
    /// Returns the exit status, which is a failure if entries were left out.
    fn status(&self, format: OutputFormat) -> ExitCode {
        if self.left_out == 0 {
            return ExitCode::SUCCESS;
        }
        if format == OutputFormat::Text {
            let count = self.left_out;
            output::print_error(&format!(
                "tollgate: {count} entries do not decode and are not in the export; where it is imported, their limits start \
                 unused"
            ));
        }
        ExitCode::from(EXIT_FAILED)
    }

    fn text(&self, config: &Config, to: &str) -> String {
        let Self { origin, entries, overrides, .. } = self;
        let key = if origin.permit_key.is_some() {
            "\nIt holds the key of permits: a reader can forge them"
        } else {
            ""
        };
        format!(
            "{}: {entries} entries and {overrides} overrides of {} written to {to}{key}",
            config.store.describe(),
            origin.taken_at
        )
    }
}

async fn write<W: Write + Send>(
    config: &Config,
    OpenedEntries { entries, overrides }: &OpenedEntries,
    flags: &Export,
    out: W,
) -> Result<(W, Report), Error> {
    let taken_at = entries.now().await?;
    let permit_key = if flags.with_permit_key { entries.permit_key().await? } else { None };
    let origin = Origin { taken_at, store: config.store.kind().to_owned(), permit_key };
    let broken = |error: io::Error| {
        Error::new(ErrorKind::Unavailable, format!("the export cannot be written: {error}"))
    };
    let mut document = Writer::begin(out, &origin).map_err(broken)?;
    let mut moved = Overrides::read(&**overrides).await?;
    if let Some(policy) = &flags.policy {
        moved.keep_policy(policy);
    }
    if !moved.is_empty() {
        document.overrides(&moved.document()?).map_err(broken)?;
    }
    let mut left_out = 0;
    let mut each = |Visited { policy, subject, entry, now }: Visited| {
        if flags.policy.as_ref().is_some_and(|wanted| *wanted != policy) {
            return Ok(ControlFlow::Continue(()));
        }
        match entry {
            Ok(entry) if entry.is_absent(now) => {}
            Ok(entry) => {
                document.entry(&policy, &subject, &entry).map_err(broken)?;
                progress(document.entries, "exported");
            }
            Err(error) => {
                left_out += 1;
                let (policy, subject) = (escape_controls(&policy), escape_controls(&subject));
                output::print_error(&format!("warning: {policy} {subject} is left out: {error}"));
            }
        }
        Ok(ControlFlow::Continue(()))
    };
    entries.visit(None, &mut each).await?;
    if let (Some(policy), 0, true) = (&flags.policy, document.entries + left_out, moved.is_empty())
    {
        // A policy that is neither stored nor configured is a typing error.
        config.policies.get(policy)?;
    }
    let (entries, overrides) = (document.entries, moved.len());
    let out = document.end().map_err(broken)?;
    Ok((out, Report { origin, entries, left_out, overrides }))
}

/// Returns the path that the export is written to until it is complete.
fn temporary_path(file: &Path) -> PathBuf {
    let mut part = file.as_os_str().to_owned();
    part.push(".part");
    PathBuf::from(part)
}

/// Creates the file for this user only: it names subjects, and it may contain a key.
fn create(part: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(part)
}

/// Renames the temporary file, unless the export was written to its destination directly.
fn finish(out: BufWriter<File>, renamed: Option<(&Path, &Path)>) -> io::Result<()> {
    let out = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    match renamed {
        Some((part, file)) => out.sync_all().and_then(|()| fs::rename(part, file)),
        None => Ok(()),
    }
}

fn unwritable(file: &Path, error: &io::Error) -> Error {
    let text = format!("{} cannot be written: {error}", file.display());
    Error::new(ErrorKind::Unavailable, text)
}
