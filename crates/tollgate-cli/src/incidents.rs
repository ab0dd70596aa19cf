//! `tollgate audit incidents`: what providers refused although it was admitted here.

use std::fmt::Write as _;
use std::path::Path;

use tollgate::incident::Incident;
use tollgate::{Clock, ErrorKind, Span, SystemClock, Timestamp};
use tollgate_telemetry::sinks::file;

use crate::args::AuditIncidents;
use crate::config::Config;
use crate::failure::Failure;
use crate::output::{self, Reader};
use crate::show::plain;

/// Prints the incidents that the flags ask for, oldest first.
pub(crate) fn list(
    flags: &AuditIncidents,
    config: Option<&Path>,
    reader: Reader,
) -> Result<(), Failure> {
    let since = flags.since.as_deref().map(since).transpose()?.unwrap_or(Timestamp::EPOCH);
    let path = match &flags.file {
        Some(file) => file.clone(),
        None => Config::load(config)?.telemetry.incident_file,
    };
    let (mut incidents, damaged) = file::read(&path).map_err(|error| {
        let text = format!("the incident file {} cannot be read: {error}", path.display());
        Failure::new(ErrorKind::Unavailable, text)
    })?;
    incidents.retain(|incident| {
        since <= incident.at
            && flags.policy.as_ref().is_none_or(|policy| *policy == incident.policy)
    });
    output::answer(reader, &incidents, || table(&incidents, damaged))
}

/// A time, or how long ago.
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

fn table(incidents: &[Incident], damaged: usize) -> String {
    let mut text = if incidents.is_empty() {
        "no incidents".to_owned()
    } else {
        format!(
            "{:<27}  {:<16}  {:<20}  {:<20}  {:<12}  {:>9}  closed until",
            "at", "id", "policy", "subject", "limit", "in flight"
        )
    };
    for incident in incidents {
        let Incident { at, id, policy, subject, limit, in_flight, until, closed, .. } = incident;
        let until = if *closed { until.to_string() } else { "not closed".to_owned() };
        let subject = plain(subject);
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

/// One incident at length.
pub(crate) fn detail(incident: &Incident) -> String {
    let Incident { id, policy, subject, limit, until, .. } = incident;
    let closed = match &incident.trouble {
        _ if incident.closed => format!("{limit} is closed until {until}"),
        Some(trouble) => format!("{limit} could not be closed: {trouble}"),
        None => format!("{limit} could not be closed"),
    };
    let mut text = format!("incident {id}: {} under {policy}: {closed}", plain(subject));
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
    text
}
