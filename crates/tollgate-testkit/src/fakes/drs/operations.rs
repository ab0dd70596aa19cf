//! The operations, with the refusals of the real service.

use serde_json::{Value, json};
use tollgate::Timestamp;

use super::Settings;
use super::jobs::{Job, Kind, State};
use super::wire::{self, Response};

/// Quota codes of the service.
const JOBS: &str = "L-D88FAC3A";
const SERVERS_IN_JOBS: &str = "L-05AFA8C6";
const SERVERS_PER_JOB: &str = "L-B827C881";

/// The most ids that one request may name.
const IDS_MAX: usize = 200;

pub(super) fn answer(
    state: &mut State,
    settings: &Settings,
    now: Timestamp,
    operation: &str,
    request: &Value,
) -> Result<Response, Response> {
    match operation {
        "DescribeSourceServers" => {
            let wanted = ids(request, "sourceServerIDs");
            let servers = state
                .servers
                .iter()
                .filter(|id| wanted.is_empty() || wanted.contains(&id.as_str()));
            page(settings, request, servers.map(|id| source_server(id)))
        }
        "DescribeJobs" => {
            let jobs = jobs_of(state, request)?;
            page(settings, request, jobs.into_iter().map(Job::to_json))
        }
        "DescribeJobLogItems" => {
            let id = request["jobID"].as_str().unwrap_or_default();
            let job = state.jobs.iter().find(|job| job.id == id);
            let job = job.ok_or_else(|| wire::missing("Job", id))?;
            page(settings, request, job.log(settings.pending_for).into_iter())
        }
        "DescribeRecoveryInstances" => {
            let (wanted, of) =
                (ids(request, "recoveryInstanceIDs"), ids(request, "sourceServerIDs"));
            let meant = |list: &[&str], id: &str| list.is_empty() || list.contains(&id);
            let instances = state
                .instances
                .iter()
                .filter(|(id, server)| meant(&wanted, id) && meant(&of, server));
            page(settings, request, instances.map(|(id, server)| instance(id, server)))
        }
        "GetLaunchConfiguration" => {
            let id = request["sourceServerID"].as_str().unwrap_or_default();
            if id.is_empty() {
                return Err(wire::invalid("sourceServerID is required"));
            }
            if !state.servers.contains(id) {
                return Err(wire::missing("SourceServer", id));
            }
            Ok(Response::new(200, launch_configuration(id)))
        }
        "StartRecovery" => start(state, settings, now, request),
        "TerminateRecoveryInstances" => terminate(state, settings, now, request),
        other => Err(wire::invalid(&format!("there is no operation {other}"))),
    }
}

fn ids<'a>(request: &'a Value, name: &str) -> Vec<&'a str> {
    texts(&request["filters"][name])
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Returns the page that `nextToken` and `maxResults` select.
fn page(
    settings: &Settings,
    request: &Value,
    items: impl Iterator<Item = Value>,
) -> Result<Response, Response> {
    let from = match request["nextToken"].as_str() {
        None => 0,
        Some(token) => token
            .strip_prefix("from-")
            .and_then(|number| number.parse::<usize>().ok())
            .ok_or_else(|| wire::invalid(&format!("nextToken {token} is not one of ours")))?,
    };
    let asked = request["maxResults"].as_u64().and_then(|asked| usize::try_from(asked).ok());
    let most = asked.unwrap_or(settings.page_max).clamp(1, settings.page_max.max(1));
    let mut items: Vec<Value> = items.skip(from).take(most + 1).collect();
    let has_more = most < items.len();
    items.truncate(most);
    let mut body = json!({ "items": items });
    if has_more {
        body["nextToken"] = json!(format!("from-{}", from + most));
    }
    Ok(Response::new(200, body))
}

/// Returns the jobs that pass the filters, newest first.
fn jobs_of<'a>(state: &'a State, request: &Value) -> Result<Vec<&'a Job>, Response> {
    let date = |name: &str| match request["filters"][name].as_str() {
        None => Ok(None),
        Some(text) => match text.parse::<Timestamp>() {
            Ok(at) => Ok(Some(at)),
            Err(_) => Err(wire::invalid(&format!("{name} {text} is not a date"))),
        },
    };
    let (from, to, wanted) = (date("fromDate")?, date("toDate")?, ids(request, "jobIDs"));
    let meant = |job: &&Job| {
        from.is_none_or(|from| from <= job.created_at)
            && to.is_none_or(|to| job.created_at <= to)
            && (wanted.is_empty() || wanted.contains(&job.id.as_str()))
    };
    Ok(state.jobs.iter().rev().filter(meant).collect())
}

fn start(
    state: &mut State,
    settings: &Settings,
    now: Timestamp,
    request: &Value,
) -> Result<Response, Response> {
    let servers = request["sourceServers"].as_array().into_iter().flatten();
    let servers: Vec<&str> =
        servers.filter_map(|server| server["sourceServerID"].as_str()).collect();
    check_ids("sourceServers", &servers)?;
    if let Some(unknown) = servers.iter().find(|id| !state.servers.contains(**id)) {
        return Err(wire::missing("SourceServer", unknown));
    }
    if settings.servers_per_job_max < servers.len() {
        let text = format!("a job has at most {} servers", settings.servers_per_job_max);
        return Err(wire::quota(SERVERS_PER_JOB, &text));
    }
    check_quotas(state, settings, servers.len())?;
    if let Some(busy) = servers.iter().find(|id| state.is_busy(id)) {
        return Err(wire::busy(busy));
    }
    let servers = servers.into_iter().map(|id| (id.to_owned(), None)).collect();
    let tags = request["tags"].as_object().cloned().unwrap_or_default();
    let is_drill = request["isDrill"].as_bool().unwrap_or(false);
    let job = state.start(Kind::Launch, servers, is_drill, tags, now);
    Ok(Response::new(202, json!({ "job": job.to_json() })))
}

fn terminate(
    state: &mut State,
    settings: &Settings,
    now: Timestamp,
    request: &Value,
) -> Result<Response, Response> {
    let instances = texts(&request["recoveryInstanceIDs"]);
    check_ids("recoveryInstanceIDs", &instances)?;
    let mut servers = Vec::new();
    for id in instances {
        let server =
            state.instances.get(id).ok_or_else(|| wire::missing("RecoveryInstance", id))?;
        if state.is_busy(id) {
            return Err(wire::busy(id));
        }
        servers.push((server.clone(), Some(id.to_owned())));
    }
    check_quotas(state, settings, servers.len())?;
    let job = state.start(Kind::Terminate, servers, false, serde_json::Map::new(), now);
    Ok(Response::new(200, json!({ "job": job.to_json() })))
}

fn check_ids(what: &str, ids: &[&str]) -> Result<(), Response> {
    if ids.is_empty() || IDS_MAX < ids.len() {
        return Err(wire::invalid(&format!(
            "{what} must have 1 to {IDS_MAX} members, not {}",
            ids.len()
        )));
    }
    Ok(())
}

/// Checks the quotas for another job with `servers` servers.
fn check_quotas(state: &State, settings: &Settings, servers: usize) -> Result<(), Response> {
    if settings.jobs_max <= state.active().count() {
        return Err(wire::quota(JOBS, &format!("{} jobs are in progress", settings.jobs_max)));
    }
    let in_jobs: usize = state.active().map(|job| job.servers.len()).sum();
    if settings.servers_in_jobs_max < in_jobs + servers {
        let text =
            format!("{in_jobs} servers are in jobs; at most {}", settings.servers_in_jobs_max);
        return Err(wire::quota(SERVERS_IN_JOBS, &text));
    }
    Ok(())
}

fn source_server(id: &str) -> Value {
    let number = u128::from_str_radix(id.trim_start_matches("s-"), 16).unwrap_or_default();
    json!({
        "sourceServerID": id,
        "arn": format!("arn:aws:drs:eu-central-1:123456789012:source-server/{id}"),
        "tags": {},
        "dataReplicationInfo": { "dataReplicationState": "CONTINUOUS", "lagDuration": "P0D" },
        "sourceProperties": { "identificationHints": { "hostname": format!("host-{number:x}") } },
    })
}

fn launch_configuration(id: &str) -> Value {
    let template = id.replacen("s-", "lt-", 1);
    json!({
        "sourceServerID": id,
        "name": id,
        "ec2LaunchTemplateID": template,
        "launchDisposition": "STARTED",
        "targetInstanceTypeRightSizingMethod": "BASIC",
        "copyPrivateIp": false,
        "copyTags": true,
        "licensing": { "osByol": false },
        "postLaunchEnabled": false,
    })
}

fn instance(id: &str, server: &str) -> Value {
    json!({
        "recoveryInstanceID": id,
        "sourceServerID": server,
        "ec2InstanceID": id,
        "ec2InstanceState": "RUNNING",
        "isDrill": false,
    })
}
