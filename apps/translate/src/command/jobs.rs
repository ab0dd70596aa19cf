//! Listing, showing and cancelling jobs.

use std::process::ExitCode;

use serde_json::{Value, json};
use tollgate::Clock as _;
use tollgate::clock::SystemClock;
use tollgate_terminal::Failure;
use tollgate_terminal::output::{self, OutputFormat, table};

use super::config::JobsConfig;
use super::{context, invalid, report};
use crate::Layout;
use crate::job::{ChunkRecord, Job, JobState, JobStore};
use crate::pipeline::{JobOptions, Output};
use crate::plan::Micros;

/// The state of an unfinished job without a process.
pub(super) const STOPPED: &str = "stopped";

/// Lists all jobs.
pub(super) async fn list(config: &JobsConfig, format: OutputFormat) -> Result<ExitCode, Failure> {
    let store = context::jobs(config).await?.store;
    let mut rows = Vec::new();
    for job in store.jobs().await? {
        rows.push(row(&*store, &job).await?);
    }
    let columns = ["id", "state", "done", "failed", "chunks", "to", "created_at", "name"];
    output::print(format, &json!({ "jobs": rows }), || {
        table(&columns, &rows, "there are no jobs")
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the job `id`.
pub(super) async fn find(store: &dyn JobStore, id: &str) -> Result<Job, Failure> {
    let none = || invalid(format!("there is no job {id}; tollgate translate jobs lists them"));
    store.job(id).await?.ok_or_else(none)
}

/// Returns the name of the state of a job.
pub(super) async fn state(store: &dyn JobStore, job: &Job) -> Result<&'static str, crate::Error> {
    let is_left =
        job.state == JobState::Running && !store.is_active(&job.id, SystemClock.now()).await?;
    // The state stays `running` when the process is killed or stopped.
    Ok(if is_left { STOPPED } else { job.state.word() })
}

/// Returns a job as JSON.
pub(super) async fn row(store: &dyn JobStore, job: &Job) -> Result<Value, Failure> {
    let counts = store.counts(&job.id).await?;
    let settings = JobOptions::from_job(job)?;
    let state = state(store, job).await?;
    let (resume_at, why) = job.state.pause();
    Ok(json!({
        "id": job.id,
        "name": job.name,
        "state": state,
        "why": why,
        "resume_at": resume_at.map(|at| at.to_string()),
        "from": settings.from.tag(),
        "to": settings.to.tag(),
        "model": settings.model,
        "output": settings.output,
        "chunks": counts.all(),
        "done": counts.done,
        "failed": counts.failed,
        "calls": counts.calls,
        "input_tokens": counts.input_tokens,
        "output_tokens": counts.output_tokens,
        "cost_micros": counts.cost,
        "max_cost_micros": settings.max_cost,
        "ask_above_micros": settings.ask_above,
        "created_at": job.created_at.to_string(),
        "started_at": job.started_at.map(|at| at.to_string()),
        "ended_at": job.ended_at.map(|at| at.to_string()),
    }))
}

/// Shows one job.
pub(super) async fn status(
    config: &JobsConfig,
    id: &str,
    format: OutputFormat,
) -> Result<ExitCode, Failure> {
    let store = context::jobs(config).await?.store;
    let job = find(&*store, id).await?;
    let mut whole = row(&*store, &job).await?;
    let chunks = store.chunks(id).await?;
    let is_noted = |chunk: &ChunkRecord| chunk.reason.is_some() || !chunk.warnings.is_empty();
    let (failures, warnings) = if chunks.iter().any(is_noted) {
        let output = Output::assemble(&*store, id, Layout::Translation).await?;
        (report::fields(&output.failures), report::fields(&output.warnings))
    } else {
        (Vec::new(), Vec::new())
    };
    let retry = chunks.iter().filter(|chunk| chunk.again_at.is_some());
    let retry = retry.max_by_key(|chunk| chunk.again_at);
    whole["retry"] = retry.and_then(|chunk| chunk.reason.clone()).into();
    whole["retry_at"] = retry.and_then(|chunk| chunk.again_at).map(|at| at.to_string()).into();
    whole["failures"] = failures.clone().into();
    whole["warnings"] = warnings.clone().into();
    output::print(format, &whole, || {
        let text = |key: &str| match &whole[key] {
            Value::Null => "-".to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let cost = Micros(whole["cost_micros"].as_u64().unwrap_or(0));
        let mut lines = vec![
            format!("job       {id}: {}, {} to {}", text("name"), text("from"), text("to")),
            format!("state     {}", text("state")),
            format!(
                "chunks    {} of {} done, {} failed",
                text("done"),
                text("chunks"),
                text("failed")
            ),
            format!("calls     {} to {}", text("calls"), text("model")),
            format!("tokens    {} sent, {} received", text("input_tokens"), text("output_tokens")),
            format!("cost      {cost} at the list price"),
            format!("output    {}", text("output")),
        ];
        if !whole["why"].is_null() {
            lines.insert(2, format!("why       {}", text("why")));
        }
        if whole["state"] == STOPPED {
            lines.push(format!("go on     tollgate translate resume {id}"));
        }
        if !whole["resume_at"].is_null() {
            lines.insert(3, format!("goes on   at {}", text("resume_at")));
        }
        if !whole["retry"].is_null() {
            lines.push(format!("trouble   {}; tries again at {}", text("retry"), text("retry_at")));
        }
        for (title, rows) in [("not translated", &failures), ("worth a look", &warnings)] {
            if !rows.is_empty() {
                lines.push(format!(
                    "{title}:\n{}",
                    table(&["segments", "source", "reason"], rows, "")
                ));
            }
        }
        lines.join("\n")
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Cancels a job.
pub(super) async fn cancel(
    config: &JobsConfig,
    id: &str,
    format: OutputFormat,
) -> Result<ExitCode, Failure> {
    let store = context::jobs(config).await?.store;
    let was = find(&*store, id).await?.state;
    if was.is_over() {
        return Err(invalid(format!("the job {id} is {was} already; nothing was changed")));
    }
    store.set_state(id, &JobState::Cancelled, SystemClock.now()).await?;
    output::print(format, &json!({ "id": id, "state": "cancelled" }), || {
        format!("{id} is cancelled; what is translated stays in the cache")
    })?;
    Ok(ExitCode::SUCCESS)
}
