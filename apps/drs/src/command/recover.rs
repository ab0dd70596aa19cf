//! `tollgate drs recover`: plans a campaign, asks for confirmation, and runs it with every step persisted first.

use std::process::ExitCode;
use std::sync::PoisonError;

use crate::campaign::{Campaign, Runner, Waiting};
use serde_json::json;
use tollgate::{ErrorKind, Span};

use super::args::Recover;
use super::lease::Lease;
use super::lock::Lock;
use super::overlap::Overlap;
use super::state::State;
use super::{IDS_MAX, Session, display, ids, invalid};
use tollgate_config::open::random_bytes;
use tollgate_terminal::EXIT_DENIED;
use tollgate_terminal::Failure;
use tollgate_terminal::confirm;
use tollgate_terminal::output::{self, OutputFormat};
use tollgate_terminal::terminal_width;

pub(super) async fn run(session: &Session, wanted: &Recover) -> Result<ExitCode, Failure> {
    let poll: Span = wanted.poll.parse().map_err(tollgate::Error::from)?;
    if poll < Span::from_millis(100) {
        return Err(invalid(format!("--poll {} is too short; at least 100ms", wanted.poll)));
    }
    // A dry run changes nothing, so it needs no lock.
    let _lock = if wanted.confirmation.dry_run { None } else { Some(Lock::take(&wanted.state)?) };
    let mut state = if wanted.resume {
        interrupted(session, wanted)?
    } else {
        planned(session, wanted).await?
    };
    let overlap = match wanted.resume {
        true => Overlap::default(),
        false => Overlap::find(session, &state.campaign).await?,
    };
    if wanted.confirmation.dry_run {
        return dry_run(session, &state.campaign, &overlap).await;
    }
    overlap.check()?;
    if session.format == OutputFormat::Text {
        let plan = display::plan(&state.campaign, &place(session));
        let head = plan.lines().next().unwrap_or_default().trim_end_matches(':');
        let going_on = format!("going on with the {head}");
        output::print_line(if wanted.resume { &going_on } else { &plan })?;
    }
    overlap.warnings().iter().for_each(|line| output::print_error(line));
    if !wanted.resume && !confirm::confirm(wanted.confirmation.yes, "--dry-run", "Start it?")? {
        output::print_line("nothing was started")?;
        return Ok(ExitCode::from(EXIT_DENIED));
    }
    let lease = match &session.shared {
        Some(gate) => Some(Lease::take(gate, session, &state.campaign).await?),
        None => None,
    };
    // From here on the recovery can be resumed.
    state.write(&wanted.state).map_err(invalid)?;
    let finished = watched(session, wanted, &mut state, poll, lease.as_ref()).await;
    if let Some(lease) = lease {
        lease.release().await;
    }
    let why = match finished {
        Ok(true) => return report(session, &state.campaign),
        Ok(false) => "interrupted".to_owned(),
        Err(error) => Failure::from(error).problem().detail,
    };
    Err(Failure::new(
        ErrorKind::Unavailable,
        format!(
            "{why}; jobs that are under way go on by themselves. To go on:\n  tollgate drs recover --resume --state {} {}",
            wanted.state.display(),
            session.flags
        ),
    ))
}

async fn dry_run(
    session: &Session,
    campaign: &Campaign,
    overlap: &Overlap,
) -> Result<ExitCode, Failure> {
    let status = session.throttler.check_capacity().await?;
    let plan =
        json!({ "plan": campaign, "capacity": status.to_json(), "overlap": overlap.to_json() });
    output::print(session.format, &plan, || {
        let mut lines = vec![display::plan(campaign, &place(session))];
        lines.extend(overlap.warnings());
        let (jobs, most) = (status.current_jobs, status.max_jobs);
        lines.push(format!("{jobs} of {most} jobs are under way; nothing was started"));
        lines.join("\n")
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the campaign. Returns `false` if it was interrupted.
async fn watched(
    session: &Session,
    wanted: &Recover,
    state: &mut State,
    poll: Span,
    lease: Option<&Lease>,
) -> Result<bool, crate::Error> {
    let mut runner = Runner::new(&session.throttler, poll);
    let view = || session.progress.lock().unwrap_or_else(PoisonError::into_inner);
    let mut campaign = state.campaign.clone();
    let mut keep = |campaign: &Campaign, waiting: Option<&Waiting>| {
        if state.campaign != *campaign {
            state.campaign.clone_from(campaign);
            state.write(&wanted.state).map_err(crate::Error::Invalid)?;
        }
        lease.map_or(Ok(()), Lease::check)?;
        view().update(
            || display::draw(campaign, waiting, terminal_width()),
            || {
                let why = waiting.map_or_else(String::new, |why| format!("; waiting: {why}"));
                format!("{}{why}", display::summary(&campaign.tally()))
            },
        );
        Ok(())
    };
    let over = tokio::select! {
        run = runner.run(&mut campaign, &mut keep) => run.map(|()| true)?,
        _ = tokio::signal::ctrl_c() => false,
    };
    view().keep();
    Ok(over)
}

fn place(session: &Session) -> String {
    match session.client.account() {
        "current" => session.client.region().to_owned(),
        account => format!("{} of account {account}", session.client.region()),
    }
}

async fn planned(session: &Session, wanted: &Recover) -> Result<State, Failure> {
    if let Some(state) = State::read(&wanted.state)?
        && !state.campaign.is_over()
    {
        return Err(invalid(format!(
            "{} has a recovery that is not over; go on with --resume, or name another file with --state",
            wanted.state.display()
        )));
    }
    let ids: Vec<String> =
        ids::read(&wanted.ids, wanted.servers.as_deref(), "s-")?.into_iter().collect();
    let mut unknown: std::collections::BTreeSet<&str> = ids.iter().map(String::as_str).collect();
    for some in ids.chunks(IDS_MAX) {
        for server in session.client.describe_source_servers(some).all().await? {
            server.source_server_id().map(|id| unknown.remove(id));
        }
    }
    if !unknown.is_empty() {
        let first: Vec<&str> = unknown.iter().copied().take(5).collect();
        let more = if 5 < unknown.len() { ", …" } else { "" };
        return Err(invalid(format!(
            "{} of {} servers are unknown in {}: {}{more}; nothing was started, tollgate drs servers lists them",
            unknown.len(),
            ids.len(),
            place(session),
            first.join(", ")
        )));
    }
    let id = random_bytes::<8>()?.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut campaign = Campaign::plan(format!("tollgate-{id}"), ids, wanted.drill)?;
    campaign.since = Some(session.client.clock().now().as_micros());
    Ok(State::new(session.client.region(), session.client.account(), campaign))
}

fn interrupted(session: &Session, wanted: &Recover) -> Result<State, Failure> {
    let file = wanted.state.display();
    let state = State::read(&wanted.state)?
        .ok_or_else(|| invalid(format!("there is nothing to go on with: no file {file}")))?;
    if state.region != session.client.region() || state.account != session.client.account() {
        return Err(invalid(format!(
            "{file} is a recovery in {} of account {}, not in {} of account {}",
            state.region,
            state.account,
            session.client.region(),
            session.client.account()
        )));
    }
    Ok(state)
}

fn report(session: &Session, campaign: &Campaign) -> Result<ExitCode, Failure> {
    let tally = campaign.tally();
    let servers: serde_json::Map<_, _> =
        campaign.servers().map(|(id, outcome)| (id.to_owned(), json!(outcome))).collect();
    output::print(session.format, &json!({ "tally": tally, "servers": servers }), || {
        let failures = display::failures(campaign);
        let line = if failures.is_empty() { "" } else { "\n" };
        format!("{}{line}{failures}", display::summary(&tally))
    })?;
    Ok(if 0 < tally.failed { ExitCode::from(EXIT_DENIED) } else { ExitCode::SUCCESS })
}
