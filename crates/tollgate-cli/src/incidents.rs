//! `tollgate audit incidents`: lists violations and outages by misconfiguration; and checks that the file of incidents can be
//! written.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

use rustix::fs::{Access, access};
use tollgate::clock::SystemClock;
use tollgate::incident::{DifferentLimit, GatewayIncident, Incident, Recorded, StoreIncident};
use tollgate::{Clock, ErrorKind, Span, Timestamp};
use tollgate_telemetry::sinks::file;

use crate::args::AuditIncidents;
use crate::config;
use tollgate_terminal::Failure;
use tollgate_terminal::escape_controls;
use tollgate_terminal::output::{self, OutputFormat};

/// Prints the incidents that the arguments select, oldest first.
pub(crate) fn list(
    flags: &AuditIncidents,
    config: Option<&Path>,
    format: OutputFormat,
) -> Result<(), Failure> {
    let since = flags.since.as_deref().map(since).transpose()?.unwrap_or(Timestamp::EPOCH);
    let path = match &flags.file {
        Some(file) => file.clone(),
        None => config::load(config)?.telemetry.incident_file,
    };
    let unreadable = |error: io::Error| {
        let text = format!("the incident file {} cannot be read: {error}", path.display());
        Failure::new(ErrorKind::Unavailable, text)
    };
    let (mut incidents, damaged) = file::read(&path).map_err(unreadable)?;
    // The first incident creates the file, so a missing file is no error if its folder exists.
    let missing = incidents.is_empty() && damaged == 0 && !path.exists();
    if missing && flags.file.is_some() {
        return Err(unreadable(io::ErrorKind::NotFound.into()));
    }
    if missing {
        fs::metadata(parent_folder(&path)).map_err(unreadable)?;
    }
    incidents.retain(|incident| {
        since <= incident.at()
            && flags.policy.as_ref().is_none_or(|policy| incident.policy() == Some(policy))
    });
    output::print(format, &incidents, || {
        if missing {
            format!("no incidents; {} is made with the first one", path.display())
        } else {
            table(&incidents, damaged)
        }
    })
}

/// Checks that an incident could be appended to `path`.
fn can_be_written(path: &Path) -> io::Result<()> {
    match OpenOptions::new().append(true).open(path) {
        Ok(_) => Ok(()),
        // Not created: without incidents there is no file.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            access(parent_folder(path), Access::WRITE_OK | Access::EXEC_OK).map_err(io::Error::from)
        }
        Err(error) => Err(error),
    }
}

/// Returns `path`, or a temporary file of the same name if it cannot be written, as on AWS Lambda.
#[cfg(any(test, feature = "translate"))]
pub(crate) fn writable(path: &Path) -> std::path::PathBuf {
    match (can_be_written(path), path.file_name()) {
        (Err(_), Some(name)) => std::env::temp_dir().join(name),
        _ => path.to_owned(),
    }
}

/// Logs a warning if incidents could not be written to `path`.
pub(crate) fn warn_if_lost(path: &Path) {
    if let Err(error) = can_be_written(path) {
        tracing::warn!(
            file = %path.display(),
            %error,
            "incidents will be lost, because their file cannot be written; set incident_file in [telemetry]"
        );
    }
}

fn parent_folder(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Parses a time, or a duration before now.
fn since(text: &str) -> Result<Timestamp, Failure> {
    if let Ok(ago) = text.parse::<Span>() {
        let now = SystemClock.now();
        return Ok(Timestamp::from_micros(now.as_micros().saturating_sub(ago.as_micros())));
    }
    text.parse().map_err(|_| {
        let text = format!(
            "--since {text:?} is neither a time, as in 2026-11-01T00:00:00Z, nor a length of time, as in 24h"
        );
        Failure::new(ErrorKind::Invalid, text)
    })
}

fn table(incidents: &[Recorded], damaged: usize) -> String {
    let mut text = if incidents.is_empty() {
        "no incidents".to_owned()
    } else {
        format!(
            "{:<27}  {:<16}  {:<20}  {:<20}  {:<12}  {:>9}  closed until",
            "at", "id", "policy", "subject", "limit", "in flight"
        )
    };
    for incident in incidents {
        let incident = match incident {
            Recorded::Violated(incident) => &**incident,
            Recorded::Store(StoreIncident::Misconfigured { id, at, error }) => {
                let at = at.to_string();
                let _ = write!(
                    text,
                    "\n{at:<27}  {id:<16}  the store did not serve the broker: {}",
                    escape_controls(error)
                );
                continue;
            }
            Recorded::Gateway(GatewayIncident::LimitDiffers { id, at, limit }) => {
                let at = at.to_string();
                let DifferentLimit { upstream, model, policy, unit, ours, theirs } = limit;
                let _ = write!(
                    text,
                    "\n{at:<27}  {id:<16}  {upstream} reports {theirs} {unit} for {model}, and policy {policy} has {ours}"
                );
                continue;
            }
            Recorded::Store(_) | Recorded::Gateway(_) => continue,
        };
        let Incident { at, id, policy, subject, limit, in_flight, until, closed, .. } = incident;
        let until = if *closed { until.to_string() } else { "not closed".to_owned() };
        let subject = escape_controls(subject);
        let at = at.to_string();
        let _ = write!(
            text,
            "\n{at:<27}  {id:<16}  {policy:<20}  {subject:<20}  {limit:<12}  {in_flight:>9}  {until}"
        );
    }
    if damaged != 0 {
        let _ = write!(text, "\n{damaged} damaged lines were left out");
    }
    text
}

/// Formats one incident in full.
pub(crate) fn detail(incident: &Incident) -> String {
    let Incident { id, policy, subject, limit, until, .. } = incident;
    let closed = match &incident.trouble {
        _ if incident.closed => format!("{limit} is closed until {until}"),
        Some(trouble) => format!("{limit} could not be closed: {trouble}"),
        None => format!("{limit} could not be closed"),
    };
    let mut text = format!("incident {id}: {} under {policy}: {closed}", escape_controls(subject));
    for state in &incident.limits {
        let _ = write!(
            text,
            "\n  {}: {} of {} {} used",
            state.name, state.used, state.limit, state.unit
        );
    }
    let _ = write!(text, "\n  in flight: {}", incident.in_flight);
    for one in &incident.acquisitions {
        let word = if one.admitted { "admitted" } else { "denied" };
        let _ = write!(text, "\n  {} {word} {}", one.at, one.costs);
    }
    for other in &incident.others {
        let _ = write!(text, "\n{}", detail(other));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incident_file_that_cannot_be_written_is_replaced_by_a_temporary_one() {
        let folder = std::env::temp_dir();
        let kept = folder.join("kept.jsonl");
        assert_eq!(writable(&kept), kept);
        let lost = folder.join("no such folder").join("lost.jsonl");
        assert_eq!(writable(&lost), folder.join("lost.jsonl"));
    }
}
