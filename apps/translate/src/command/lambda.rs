//! `tollgate translate lambda`: one chunk for each event, for a Map of AWS Step Functions.
//!
//! A custom runtime: polls the runtime interface of Lambda for events, attempts one chunk, and responds. Events and responses are a
//! contract with the state machine in `deploy/translate.yaml`.

use std::process::ExitCode;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tollgate::{Span, Timestamp};
use tollgate_terminal::Failure;

use super::context::{self, Context};
use super::watch::Signals;
use super::{invalid, jobs};
use crate::job::{ChunkState, JobState, SegmentRange};
use crate::pipeline::{ChunkOutcome, Options, RunOutcome};

/// A function is paid while it waits, so it waits for the quota no longer than a minute's window.
const QUOTA_WAIT: Span = Span::from_mins(1);

/// How long it waits during an outage of the job store; the state machine calls again.
const OUTAGE_WAIT: Span = Span::from_secs(10);

/// The most chunks of one response. A response has at most 256 KiB; the next round has the rest.
const CHUNKS_MAX: usize = 1_000;

/// The runtime interface of AWS Lambda.
#[async_trait]
pub trait LambdaRuntime: Send + Sync {
    /// Waits for the next event: the id of its request, and its body.
    async fn next(&self) -> Result<(String, Vec<u8>), Failure>;

    /// Responds to the event of `request`.
    async fn respond(&self, request: String, answer: Result<Value, Failure>)
    -> Result<(), Failure>;
}

/// An event of the state machine: a job, to list its open chunks, or one of its chunks, to work on the job.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    job_id: String,
    chunk: Option<Value>,
}

/// The next step of the state machine.
#[derive(Debug, Serialize)]
#[serde(tag = "next", rename_all = "snake_case", rename_all_fields = "camelCase")]
enum Next {
    /// The open chunks.
    Chunks { job_id: String, chunks: Vec<SegmentRange> },
    /// A chunk was attempted; there may be more.
    Chunk { job_id: String },
    /// No chunk is ready before this time.
    Wait { job_id: String, until: String },
    /// The job has ended, or needs an operator.
    End { job_id: String, state: &'static str, why: Option<String> },
}

/// Responds to events until Lambda terminates the process.
pub(super) async fn serve(
    context: &Context<'_>,
    runtime: &dyn LambdaRuntime,
) -> Result<ExitCode, Failure> {
    let mut signals = Signals::listen()?;
    context.job_outages.cap_max_wait(OUTAGE_WAIT);
    let mut outages = context.outages.clone();
    loop {
        let (request, event) = tokio::select! {
            biased;
            () = signals.received() => return Ok(ExitCode::SUCCESS),
            event = runtime.next() => event?,
        };
        let meters = context.meters().translation();
        let calls_before = meters.calls();
        let working = meters.running();
        let next = answer(context, &event).await;
        for line in outages.news(None, context.clock.now()) {
            context::warn(&line);
        }
        // Lambda freezes the process after the response, so metrics are flushed before. This invocation counts as active until they are.
        let at_provider = (calls_before < meters.calls()).then(|| meters.at_provider());
        if !context.flush().await {
            context::warn("a telemetry sink did not write its data within 2s");
        }
        drop((working, at_provider));
        let next = next.and_then(|next| {
            serde_json::to_value(next).map_err(|error| invalid(format!("cannot respond: {error}")))
        });
        runtime.respond(request, next).await?;
    }
}

async fn answer(context: &Context<'_>, event: &[u8]) -> Result<Next, Failure> {
    let Event { job_id, chunk } = serde_json::from_slice(event).map_err(|error| {
        invalid(format!(
            "the event is not {{\"jobId\": \"JOB\"}} or {{\"jobId\": \"JOB\", \"chunk\": …}}: {error}"
        ))
    })?;
    let now = context.clock.now();
    // No worker resumes a job that only functions work on.
    let mut job = jobs::find(&*context.jobs, &job_id).await?;
    if let JobState::Paused { resume_at: Some(at), .. } = job.state {
        if now < at {
            return Ok(wait(job_id, at));
        }
        context.jobs.set_state(&job_id, &JobState::Running, now).await?;
        job.state = JobState::Running;
    }
    if chunk.is_none() && matches!(job.state, JobState::Planned | JobState::Running) {
        let chunks = open_chunks(context, &job_id).await?;
        if !chunks.is_empty() {
            return Ok(Next::Chunks { job_id, chunks });
        }
    }
    let options = Options { quota_wait: QUOTA_WAIT, ..Options::default() };
    let pipeline = context.pipeline_with(&*context.trusted_upstream(&job)?, options);
    Ok(match pipeline.run_chunk(&job_id).await? {
        ChunkOutcome::Worked => Next::Chunk { job_id },
        ChunkOutcome::Later(at)
        | ChunkOutcome::Ended(RunOutcome::Paused { resume_at: Some(at), .. }) => wait(job_id, at),
        ChunkOutcome::Ended(outcome) => {
            let state = outcome.word();
            let why = match outcome {
                RunOutcome::CompletedWithErrors => Some(failed_chunks(context, &job_id).await?),
                RunOutcome::Paused { why, .. } => Some(why),
                RunOutcome::Completed | RunOutcome::Stopped | RunOutcome::Cancelled => None,
            };
            Next::End { job_id, state, why }
        }
    })
}

/// Returns the chunks of a job that are neither translated nor failed.
async fn open_chunks(context: &Context<'_>, id: &str) -> Result<Vec<SegmentRange>, Failure> {
    let chunks = context.jobs.chunks(id).await?;
    let is_open = |state| !matches!(state, ChunkState::Done | ChunkState::Failed);
    let open = chunks.iter().filter(|chunk| is_open(chunk.state));
    Ok(open.map(|chunk| chunk.run).take(CHUNKS_MAX).collect())
}

/// Describes the failed chunks for the operator of the execution.
async fn failed_chunks(context: &Context<'_>, id: &str) -> Result<String, Failure> {
    let counts = context.jobs.counts(id).await?;
    Ok(format!(
        "{} of {} chunks were given up; tollgate translate resume {id} --retry-failed tries them again",
        counts.failed,
        counts.done + counts.failed
    ))
}

/// The state machine waits by whole seconds.
fn wait(job_id: String, at: Timestamp) -> Next {
    let until = Timestamp::from_secs(at.as_micros().div_ceil(1_000_000)).to_string();
    Next::Wait { job_id, until }
}
