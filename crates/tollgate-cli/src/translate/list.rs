//! Looking at jobs, and giving one up.

use std::process::ExitCode;

use serde_json::{Value, json};
use tollgate::{Clock as _, SystemClock};
use tollgate_translate::Layout;
use tollgate_translate::job::{ChunkRecord, Job, JobState, JobStore};
use tollgate_translate::pipeline::{JobSettings, Output};
use tollgate_translate::plan::Micros;

use super::{account, desk, invalid};
use crate::config::Config;
use crate::failure::Failure;
use crate::output::{self, Reader, table};

/// The state of a job that is not over and that no process works on.
pub(super) const STOPPED: &str = "stopped";

pub(super) async fn jobs(config: &Config, reader: Reader) -> Result<ExitCode, Failure> {
    let store = desk::jobs(&config.jobs).await?.store;
    let mut rows = Vec::new();
    for job in store.jobs().await? {
        rows.push(row(&*store, &job).await?);
    }
    let columns = ["id", "state", "done", "failed", "chunks", "to", "created_at", "name"];
    output::answer(reader, &json!({ "jobs": rows }), || {
        table(&columns, &rows, "there are no jobs")
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The job `id`, if there is one.
pub(super) async fn job(store: &dyn JobStore, id: &str) -> Result<Job, Failure> {
    let none = || invalid(format!("there is no job {id}; tollgate translate jobs lists them"));
    store.job(id).await?.ok_or_else(none)
}

/// The word for the state of a job.
pub(super) async fn state(
    store: &dyn JobStore,
    job: &Job,
) -> Result<&'static str, tollgate_translate::Error> {
    let is_left =
        job.state == JobState::Running && !store.is_worked_on(&job.id, SystemClock.now()).await?;
    // Nobody set another state when its process was killed or told to stop.
    Ok(if is_left { STOPPED } else { job.state.word() })
}

/// Everything about a job in one object.
pub(super) async fn row(store: &dyn JobStore, job: &Job) -> Result<Value, Failure> {
    let counts = store.counts(&job.id).await?;
    let settings = JobSettings::of(job)?;
    let state = state(store, job).await?;
    let (resume_at, why) = match &job.state {
        JobState::Paused { resume_at, why } => (*resume_at, Some(why)),
        _ => (None, None),
    };
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

pub(super) async fn status(config: &Config, id: &str, reader: Reader) -> Result<ExitCode, Failure> {
    let store = desk::jobs(&config.jobs).await?.store;
    let job = job(&*store, id).await?;
    let mut whole = row(&*store, &job).await?;
    let chunks = store.chunks(id).await?;
    let is_noted = |chunk: &ChunkRecord| chunk.reason.is_some() || !chunk.warnings.is_empty();
    let (failures, warnings) = if chunks.iter().any(is_noted) {
        let output = Output::of(&*store, id, Layout::Translation).await?;
        (account::fields(&output.failures), account::fields(&output.warnings))
    } else {
        (Vec::new(), Vec::new())
    };
    let retry = chunks.iter().filter(|chunk| chunk.again_at.is_some());
    let retry = retry.max_by_key(|chunk| chunk.again_at);
    whole["retry"] = retry.and_then(|chunk| chunk.reason.clone()).into();
    whole["retry_at"] = retry.and_then(|chunk| chunk.again_at).map(|at| at.to_string()).into();
    whole["failures"] = failures.clone().into();
    whole["warnings"] = warnings.clone().into();
    output::answer(reader, &whole, || {
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

pub(super) async fn cancel(config: &Config, id: &str, reader: Reader) -> Result<ExitCode, Failure> {
    let store = desk::jobs(&config.jobs).await?.store;
    let was = job(&*store, id).await?.state;
    if was.is_over() {
        return Err(invalid(format!("the job {id} is {was} already; nothing was changed")));
    }
    store.set_state(id, &JobState::Cancelled, SystemClock.now()).await?;
    output::answer(reader, &json!({ "id": id, "state": "cancelled" }), || {
        format!("{id} is cancelled; what is translated stays in the cache")
    })?;
    Ok(ExitCode::SUCCESS)
}
