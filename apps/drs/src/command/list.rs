//! `tollgate drs servers`, `launch-configurations`, `jobs` and `capacity`.

use std::process::ExitCode;

use crate::JobFilter;
use crate::throttle::LOOK_BACK;
use aws_sdk_drs::operation::get_launch_configuration::GetLaunchConfigurationOutput;
use aws_sdk_drs::types::{
    DataReplicationState, Job, JobLogEvent, JobStatus, JobType, LastLaunchResult,
    LaunchDisposition, LaunchStatus, Licensing, SourceServer, TargetInstanceTypeRightSizingMethod,
};
use serde_json::{Value, json};

use super::{Session, ids, invalid};
use tollgate_terminal::EXIT_DENIED;
use tollgate_terminal::Failure;
use tollgate_terminal::output::{self, table};

pub(super) async fn servers(session: &Session, ids: &[String]) -> Result<ExitCode, Failure> {
    let servers = session.client.describe_source_servers(ids).all().await?;
    let row = |server: &SourceServer| {
        let state = server.data_replication_info().and_then(|info| info.data_replication_state());
        json!({
            "id": server.source_server_id(),
            "hostname": server.source_properties()
                .and_then(|properties| properties.identification_hints())
                .and_then(|hints| hints.hostname()),
            "replication": state.map(DataReplicationState::as_str),
            "last_launch": server.last_launch_result().map(LastLaunchResult::as_str),
        })
    };
    let rows: Vec<Value> = servers.iter().map(row).collect();
    let columns = ["id", "hostname", "replication", "last_launch"];
    output::print(session.format, &json!({ "servers": rows }), || {
        table(&columns, &rows, "there are no source servers")
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the launch configurations of the servers `ids`, or of all servers.
pub(super) async fn launch_configurations(
    session: &Session,
    ids: &[String],
) -> Result<ExitCode, Failure> {
    let ids: Vec<String> = if ids.is_empty() {
        let servers = session.client.describe_source_servers(&[]).all().await?;
        servers.iter().filter_map(|server| server.source_server_id().map(str::to_owned)).collect()
    } else {
        ids::read(ids, None, "s-")?.into_iter().collect()
    };
    let all = session.client.get_launch_configurations(&ids).await?;
    let row = |one: &GetLaunchConfigurationOutput| {
        json!({
            "server": one.source_server_id(),
            "name": one.name(),
            "template": one.ec2_launch_template_id(),
            "disposition": one.launch_disposition().map(LaunchDisposition::as_str),
            "right_sizing": one.target_instance_type_right_sizing_method()
                .map(TargetInstanceTypeRightSizingMethod::as_str),
            "copy_private_ip": one.copy_private_ip(),
            "copy_tags": one.copy_tags(),
            "own_license": one.licensing().and_then(Licensing::os_byol),
            "post_launch": one.post_launch_enabled(),
        })
    };
    let rows: Vec<Value> = all.iter().map(row).collect();
    let columns = [
        "server",
        "name",
        "template",
        "disposition",
        "right_sizing",
        "copy_private_ip",
        "copy_tags",
        "own_license",
        "post_launch",
    ];
    output::print(session.format, &json!({ "launch_configurations": rows }), || {
        table(&columns, &rows, "there are no source servers")
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn jobs(session: &Session, active: bool) -> Result<ExitCode, Failure> {
    let from = Some(session.client.clock().now() - LOOK_BACK);
    let jobs =
        session.client.describe_jobs(&JobFilter { from, ..JobFilter::default() }).all().await?;
    let is_wanted = |job: &&Job| !active || job.status != Some(JobStatus::Completed);
    let rows: Vec<Value> = jobs.iter().filter(is_wanted).map(row).collect();
    let columns = ["id", "type", "status", "created", "servers", "launched", "failed"];
    output::print(session.format, &json!({ "jobs": rows }), || {
        table(&columns, &rows, "there are no jobs")
    })?;
    Ok(ExitCode::SUCCESS)
}

fn row(job: &Job) -> Value {
    let servers = job.participating_servers();
    let count = |wanted: LaunchStatus| {
        servers.iter().filter(|server| server.launch_status() == Some(&wanted)).count()
    };
    json!({
        "id": job.job_id(),
        "type": job.r#type().map(JobType::as_str),
        "status": job.status().map(JobStatus::as_str),
        "created": job.creation_date_time(),
        "servers": servers.len(),
        "launched": count(LaunchStatus::Launched),
        "failed": count(LaunchStatus::Failed),
    })
}

pub(super) async fn job(session: &Session, id: &str) -> Result<ExitCode, Failure> {
    let filter = JobFilter { ids: vec![id.to_owned()], ..JobFilter::default() };
    let jobs = session.client.describe_jobs(&filter).all().await?;
    let Some(job) = jobs.first() else {
        return Err(invalid(format!("there is no job {id}; tollgate drs jobs lists them")));
    };
    let log = session.client.describe_job_log_items(id).all().await?;
    let servers: Vec<Value> = job
        .participating_servers()
        .iter()
        .map(|server| {
            json!({
                "server": server.source_server_id(),
                "status": server.launch_status().map(LaunchStatus::as_str),
                "instance": server.recovery_instance_id(),
            })
        })
        .collect();
    let log: Vec<Value> = log
        .iter()
        .map(|item| {
            let data = item.event_data();
            json!({
                "at": item.log_date_time(),
                "event": item.event().map(JobLogEvent::as_str),
                "server": data.and_then(|data| data.source_server_id()),
                "error": data.and_then(|data| data.raw_error()),
            })
        })
        .collect();
    let whole = json!({ "job": row(job), "servers": servers, "log": log });
    output::print(session.format, &whole, || {
        let head = ["id", "type", "status", "created", "servers", "launched", "failed"];
        [
            table(&head, &[row(job)], ""),
            table(&["server", "status", "instance"], &servers, "it has no servers"),
            table(&["at", "event", "server", "error"], &log, "its log is empty"),
        ]
        .join("\n\n")
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn capacity(session: &Session) -> Result<ExitCode, Failure> {
    let status = session.throttler.check_capacity().await?;
    let threshold = session.throttler.settings().threshold;
    output::print(session.format, &status.to_json(), || {
        let state = if status.at_capacity {
            "full".to_owned()
        } else if status.throttling_active {
            format!("a new job waits until there are fewer than {threshold}")
        } else {
            "a new job starts at once".to_owned()
        };
        let (jobs, max) = (status.current_jobs, status.max_jobs);
        format!("{jobs} of {max} jobs, {} free: {state}", status.available_slots)
    })?;
    Ok(if status.throttling_active { ExitCode::from(EXIT_DENIED) } else { ExitCode::SUCCESS })
}
