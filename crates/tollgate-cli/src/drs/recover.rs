//! `tollgate drs recover`: a plan, a question, and then every step written down before it is taken.

use std::process::ExitCode;
use std::sync::PoisonError;

use serde_json::json;
use tollgate::{ErrorKind, Span};
use tollgate_aws::campaign::{Campaign, Runner, Waiting};

use super::lease::Lease;
use super::lock::Lock;
use super::overlap::Overlap;
use super::state::State;
use super::{Desk, LOOKED_UP_MAX, ids, invalid, screen};
use crate::DENIED;
use crate::args::Recover;
use crate::consent;
use crate::failure::Failure;
use crate::open::random_bytes;
use crate::output::{self, Reader};
use crate::view;

pub(super) async fn run(desk: &Desk, wanted: &Recover) -> Result<ExitCode, Failure> {
    let poll: Span = wanted.poll.parse().map_err(tollgate::Error::from)?;
    if poll < Span::from_millis(100) {
        return Err(invalid(format!("--poll {} is too short; at least 100ms", wanted.poll)));
    }
    // A dry run changes nothing, so it may look beside a recovery that runs.
    let _lock = if wanted.consent.dry_run { None } else { Some(Lock::take(&wanted.state)?) };
    let mut state =
        if wanted.resume { interrupted(desk, wanted)? } else { planned(desk, wanted).await? };
    let overlap = match wanted.resume {
        true => Overlap::default(),
        false => Overlap::find(desk, &state.campaign).await?,
    };
    if wanted.consent.dry_run {
        return dry_run(desk, &state.campaign, &overlap).await;
    }
    overlap.check()?;
    if desk.reader == Reader::Person {
        let plan = screen::plan(&state.campaign, &place(desk));
        let head = plan.lines().next().unwrap_or_default().trim_end_matches(':');
        let going_on = format!("going on with the {head}");
        output::line(if wanted.resume { &going_on } else { &plan })?;
    }
    overlap.warnings().iter().for_each(|line| output::error(line));
    if !wanted.resume && !consent::given(wanted.consent.yes, "--dry-run", "Start it?")? {
        output::line("nothing was started")?;
        return Ok(ExitCode::from(DENIED));
    }
    let lease = match &desk.shared {
        Some(gate) => Some(Lease::take(gate, desk, &state.campaign).await?),
        None => None,
    };
    // From here on there is something to go on with.
    state.write(&wanted.state).map_err(invalid)?;
    let finished = watched(desk, wanted, &mut state, poll, lease.as_ref()).await;
    if let Some(lease) = lease {
        lease.release().await;
    }
    let why = match finished {
        Ok(true) => return report(desk, &state.campaign),
        Ok(false) => "interrupted".to_owned(),
        Err(error) => Failure::from(error).problem().detail,
    };
    Err(Failure::new(
        ErrorKind::Unavailable,
        format!(
            "{why}; jobs that are under way go on by themselves. To go on:\n  tollgate drs recover --resume --state {} {}",
            wanted.state.display(),
            desk.flags
        ),
    ))
}

async fn dry_run(desk: &Desk, campaign: &Campaign, overlap: &Overlap) -> Result<ExitCode, Failure> {
    let status = desk.throttler.check_capacity().await?;
    let plan =
        json!({ "plan": campaign, "capacity": status.to_json(), "overlap": overlap.to_json() });
    output::answer(desk.reader, &plan, || {
        let mut lines = vec![screen::plan(campaign, &place(desk))];
        lines.extend(overlap.warnings());
        let (jobs, most) = (status.current_jobs, status.max_jobs);
        lines.push(format!("{jobs} of {most} jobs are under way; nothing was started"));
        lines.join("\n")
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Runs it until it is over or somebody stops it; whether it is over.
async fn watched(
    desk: &Desk,
    wanted: &Recover,
    state: &mut State,
    poll: Span,
    lease: Option<&Lease>,
) -> Result<bool, tollgate_aws::Error> {
    let mut runner = Runner::new(&desk.throttler, poll);
    let view = || desk.view.lock().unwrap_or_else(PoisonError::into_inner);
    let mut campaign = state.campaign.clone();
    let mut keep = |campaign: &Campaign, waiting: Option<&Waiting>| {
        if state.campaign != *campaign {
            state.campaign.clone_from(campaign);
            state.write(&wanted.state).map_err(tollgate_aws::Error::Invalid)?;
        }
        lease.map_or(Ok(()), Lease::check)?;
        view().show(
            || screen::draw(campaign, waiting, view::width()),
            || {
                let why = waiting.map_or_else(String::new, |why| format!("; waiting: {why}"));
                format!("{}{why}", screen::summary(&campaign.tally()))
            },
        );
        Ok(())
    };
    let over = tokio::select! {
        run = runner.run(&mut campaign, &mut keep) => run.map(|()| true)?,
        _ = tokio::signal::ctrl_c() => false,
    };
    view().leave();
    Ok(over)
}

fn place(desk: &Desk) -> String {
    match desk.client.account() {
        "current" => desk.client.region().to_owned(),
        account => format!("{} of account {account}", desk.client.region()),
    }
}

async fn planned(desk: &Desk, wanted: &Recover) -> Result<State, Failure> {
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
    for some in ids.chunks(LOOKED_UP_MAX) {
        for server in desk.client.describe_source_servers(some).all().await? {
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
            place(desk),
            first.join(", ")
        )));
    }
    let id = random_bytes::<8>()?.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut campaign = Campaign::plan(format!("tollgate-{id}"), ids, wanted.drill)?;
    campaign.since = Some(desk.client.clock().now().as_micros());
    Ok(State::new(desk.client.region(), desk.client.account(), campaign))
}

fn interrupted(desk: &Desk, wanted: &Recover) -> Result<State, Failure> {
    let file = wanted.state.display();
    let state = State::read(&wanted.state)?
        .ok_or_else(|| invalid(format!("there is nothing to go on with: no file {file}")))?;
    if state.region != desk.client.region() || state.account != desk.client.account() {
        return Err(invalid(format!(
            "{file} is a recovery in {} of account {}, not in {} of account {}",
            state.region,
            state.account,
            desk.client.region(),
            desk.client.account()
        )));
    }
    Ok(state)
}

fn report(desk: &Desk, campaign: &Campaign) -> Result<ExitCode, Failure> {
    let tally = campaign.tally();
    let servers: serde_json::Map<_, _> =
        campaign.servers().map(|(id, outcome)| (id.to_owned(), json!(outcome))).collect();
    output::answer(desk.reader, &json!({ "tally": tally, "servers": servers }), || {
        let failures = screen::failures(campaign);
        let line = if failures.is_empty() { "" } else { "\n" };
        format!("{}{line}{failures}", screen::summary(&tally))
    })?;
    Ok(if 0 < tally.failed { ExitCode::from(DENIED) } else { ExitCode::SUCCESS })
}
