//! `tollgate translate lambda`: one chunk for each event, for a Map of AWS Step Functions.
//!
//! It is a custom runtime: it asks the runtime interface of Lambda for an event, attempts one chunk, and answers. An event and its
//! answer are a contract with the state machine in `deploy/translate.yaml`.

use std::process::ExitCode;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tollgate::{Span, Timestamp};
use tollgate_translate::job::{ChunkState, JobState, Run};
use tollgate_translate::pipeline::{Ended, Options, Single};

use super::desk::{self, Desk};
use super::watch::Told;
use super::{invalid, list};
use crate::failure::Failure;
use crate::lambda::Runtime;

/// A function is paid while it waits, so it waits in line no longer than a minute's quota takes.
const PATIENCE: Span = Span::from_mins(1);

/// The same for a database of jobs that is away.
const JOBS_PATIENCE: Span = Span::from_secs(10);

/// The most chunks of one answer. An answer to a state machine has at most 256 KiB; the next round has the rest.
const CHUNKS_MAX: usize = 1_000;

/// What the state machine sends: a job, to be told which chunks are open, or one of its chunks, to work on the job.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    job_id: String,
    chunk: Option<Value>,
}

/// What the state machine chooses by.
#[derive(Debug, Serialize)]
#[serde(tag = "next", rename_all = "snake_case", rename_all_fields = "camelCase")]
enum Next {
    /// These are open.
    Chunks { job_id: String, chunks: Vec<Run> },
    /// A chunk was attempted; there may be more.
    Chunk { job_id: String },
    /// Nothing can be done before this time.
    Wait { job_id: String, until: String },
    /// Nothing more will be done by itself.
    End { job_id: String, state: &'static str, why: Option<String> },
}

/// Answers events until Lambda ends the process, or says that it will.
pub(super) async fn serve(desk: &Desk<'_>) -> Result<ExitCode, Failure> {
    let runtime = Runtime::from_environment()?;
    let mut told = Told::listen()?;
    // The state machine calls again, which costs less than a function that waits.
    desk.patience.shorten(JOBS_PATIENCE);
    let mut outages = desk.outages.clone();
    loop {
        let event = tokio::select! {
            biased;
            () = told.heard() => return Ok(ExitCode::SUCCESS),
            event = runtime.next() => event?,
        };
        let meters = desk.meters().translation();
        let calls_before = meters.calls();
        let working = meters.running();
        let next = answer(desk, &event.body).await;
        for line in outages.news(None, desk.clock.now()) {
            desk::warn(&line);
        }
        // Lambda freezes the process after the answer, so what was counted goes out before. What went on in this invocation is
        // over by now, and counts until it is written.
        let at_provider = (calls_before < meters.calls()).then(|| meters.at_provider());
        if !desk.flush().await {
            desk::warn("a telemetry sink did not write what it had within 2s");
        }
        drop((working, at_provider));
        runtime.tell(event.request, next).await?;
    }
}

async fn answer(desk: &Desk<'_>, event: &[u8]) -> Result<Next, Failure> {
    let Event { job_id: id, chunk } = serde_json::from_slice(event).map_err(|error| {
        invalid(format!(
            "the event is not {{\"jobId\": \"JOB\"}} or {{\"jobId\": \"JOB\", \"chunk\": …}}: {error}"
        ))
    })?;
    let now = desk.clock.now();
    // Nobody else wakes a job that is worked on by functions alone.
    let mut job = list::job(&*desk.jobs, &id).await?;
    if let JobState::Paused { resume_at: Some(at), .. } = job.state {
        if now < at {
            return Ok(wait(id, at));
        }
        desk.jobs.set_state(&id, &JobState::Running, now).await?;
        job.state = JobState::Running;
    }
    if chunk.is_none() && matches!(job.state, JobState::Planned | JobState::Running) {
        let chunks = open_chunks(desk, &id).await?;
        if !chunks.is_empty() {
            return Ok(Next::Chunks { job_id: id, chunks });
        }
    }
    let options = Options { patience: PATIENCE, ..Options::default() };
    let pipeline = desk.pipeline_with(&*desk.trusted_line(&job)?, options);
    Ok(match pipeline.run_one(&id).await? {
        Single::Worked => Next::Chunk { job_id: id },
        Single::Later(at) | Single::Ended(Ended::Paused { resume_at: Some(at), .. }) => {
            wait(id, at)
        }
        Single::Ended(ended) => {
            let (state, why) = match ended {
                Ended::Completed => ("completed", None),
                Ended::CompletedWithErrors => {
                    ("completed_with_errors", Some(given_up(desk, &id).await?))
                }
                Ended::Paused { why, .. } => ("paused", Some(why)),
                Ended::Stopped => ("stopped", None),
                Ended::Cancelled => ("cancelled", None),
            };
            Next::End { job_id: id, state, why }
        }
    })
}

/// The chunks of a job that are neither translated nor given up.
async fn open_chunks(desk: &Desk<'_>, id: &str) -> Result<Vec<Run>, Failure> {
    let chunks = desk.jobs.chunks(id).await?;
    let is_open = |state| !matches!(state, ChunkState::Done | ChunkState::Failed);
    let open = chunks.iter().filter(|chunk| is_open(chunk.state));
    Ok(open.map(|chunk| chunk.run).take(CHUNKS_MAX).collect())
}

/// What a person reads who is told that the execution failed.
async fn given_up(desk: &Desk<'_>, id: &str) -> Result<String, Failure> {
    let counts = desk.jobs.counts(id).await?;
    Ok(format!(
        "{} of {} chunks were given up; tollgate translate resume {id} --retry-failed tries them again",
        counts.failed,
        counts.done + counts.failed
    ))
}

/// The state machine waits by whole seconds.
fn wait(id: String, at: Timestamp) -> Next {
    let until = Timestamp::from_secs(at.as_micros().div_ceil(1_000_000)).to_string();
    Next::Wait { job_id: id, until }
}
