//! `tollgate drs recover`: a plan, a question, and then every step written down before it is taken.

use std::process::ExitCode;

use serde_json::json;
use tollgate::{ErrorKind, Span};
use tollgate_aws::campaign::{Campaign, Runner, Waiting};

use super::state::State;
use super::{Desk, LOOKED_UP_MAX, ids, invalid, screen};
use crate::DENIED;
use crate::args::Recover;
use crate::consent;
use crate::failure::Failure;
use crate::open::random_bytes;
use crate::output::{self, Reader};
use crate::view::{self, View};

pub(super) async fn run(desk: &Desk, wanted: &Recover) -> Result<ExitCode, Failure> {
    let poll: Span = wanted.poll.parse().map_err(tollgate::Error::from)?;
    if poll < Span::from_millis(100) {
        return Err(invalid(format!("--poll {} is too short; at least 100ms", wanted.poll)));
    }
    let mut state =
        if wanted.resume { interrupted(desk, wanted)? } else { planned(desk, wanted).await? };
    let place = place(desk);
    if wanted.consent.dry_run {
        let status = desk.throttler.check_capacity().await?;
        let plan = json!({ "plan": state.campaign, "capacity": status.to_json() });
        output::answer(desk.reader, &plan, || {
            let jobs = format!("{} of {} jobs are under way", status.current_jobs, status.max_jobs);
            format!("{}\n{jobs}; nothing was started", screen::plan(&state.campaign, &place))
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    if desk.reader == Reader::Person {
        let plan = screen::plan(&state.campaign, &place);
        let head = plan.lines().next().unwrap_or_default().trim_end_matches(':');
        let going_on = format!("going on with the {head}");
        output::line(if wanted.resume { &going_on } else { &plan })?;
    }
    if !wanted.resume && !consent::given(wanted.consent.yes, "--dry-run", "Start it?")? {
        output::line("nothing was started")?;
        return Ok(ExitCode::from(DENIED));
    }
    let finished = watched(desk, wanted, &mut state, poll).await?;
    if !finished {
        return Err(Failure::new(
            ErrorKind::Unavailable,
            format!(
                "interrupted; jobs that are under way go on by themselves. To go on:\n  tollgate drs recover --resume --state {} {}",
                wanted.state.display(),
                desk.flags
            ),
        ));
    }
    report(desk, &state.campaign)
}

/// Runs it until it is over or somebody stops it; whether it is over.
async fn watched(
    desk: &Desk,
    wanted: &Recover,
    state: &mut State,
    poll: Span,
) -> Result<bool, Failure> {
    let mut runner = Runner::new(&desk.throttler, poll);
    let mut view = View::new(desk.reader);
    let mut campaign = state.campaign.clone();
    let mut keep = |campaign: &Campaign, waiting: Option<&Waiting>| {
        if state.campaign != *campaign || !wanted.state.exists() {
            state.campaign.clone_from(campaign);
            state.write(&wanted.state).map_err(tollgate_aws::Error::Invalid)?;
        }
        view.show(
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
    view.leave();
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
    let campaign = Campaign::plan(format!("tollgate-{id}"), ids, wanted.drill)?;
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
