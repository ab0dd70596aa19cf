//! Running jobs in the foreground: progress, pauses and Ctrl-C.

use std::process::ExitCode;
use std::sync::Arc;

use crate::job::Job;
use crate::pipeline::{self, Amendment, Pipeline, Progress, RunOutcome};
use crate::{Error, ErrorKind as Kind};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch::Receiver;
use tokio_util::sync::CancellationToken;
use tollgate::{Clock, ErrorKind, GateExt, Span, Standing};

use super::context::{Context, Upstream};
use super::metrics::MetricsEndpoint;
use super::outages::Outages;
use super::report::{JobReport, raised, resumable};
use super::screen::{self, Screen};
use tollgate_terminal::EXIT_DENIED;
use tollgate_terminal::Failure;
use tollgate_terminal::ProgressDisplay;
use tollgate_terminal::output::{self, OutputFormat};

/// The redraw interval of the screen.
const REDRAW: Span = Span::from_secs(1);

/// How long paid answers wait for the job store after Ctrl-C, and after a second one.
const STOPPING_WAIT: Span = Span::from_secs(10);
const STOPPED_WAIT: Span = Span::from_secs(1);

/// Runs the job of `report` until it ends, is paused or stopped, and writes its document if it has ended.
pub(super) async fn job(
    context: &Context<'_>,
    upstream: &Upstream,
    pipeline: &Pipeline,
    report: &JobReport<'_>,
) -> Result<ExitCode, Failure> {
    let watched = || async {
        let ended = watched(context, upstream, pipeline, report).await;
        ended.map_err(|failure| resumable(failure, &report.resume))
    };
    let mut ended = watched().await?;
    while let RunOutcome::Paused { raise_to: Some(to), .. } = ended
        && report.confirm_raise(to).await?
    {
        let amendment = Amendment { ask_above: Some(to), ..Amendment::default() };
        pipeline.amend(report.id, &amendment).await?;
        ended = watched().await?;
    }
    let when = match &ended {
        RunOutcome::Paused { resume_at: Some(at), .. } => {
            format!("it can continue {}", screen::at_home(*at, &upstream.policy))
        }
        _ => "an operator must act first".to_owned(),
    };
    report.finish(&ended, &when).await
}

async fn watched(
    context: &Context<'_>,
    upstream: &Upstream,
    pipeline: &Pipeline,
    report: &JobReport<'_>,
) -> Result<RunOutcome, Failure> {
    let (id, plan, resume) = (report.id, report.plan, report.resume.as_str());
    let stop = CancellationToken::new();
    let mut signals = Signals::listen()?;
    let mut view = ProgressDisplay::new(context.format);
    let mut news = pipeline.progress();
    let done_before = {
        let counts = context.jobs.counts(id).await?;
        counts.done + counts.failed
    };
    let mut standing: Vec<Standing> = Vec::new();
    let mut shown = None;
    let run = pipeline.run(id, &stop);
    tokio::pin!(run);
    let mut looked = Box::pin(standing_after(context, upstream, Span::ZERO, view.redraws()));
    let mut outages = context.outages.clone();
    loop {
        let mut over = None;
        tokio::select! {
            biased;
            ended = &mut run => over = Some(ended?),
            () = signals.received() => {
                view.keep();
                if stop.is_cancelled() {
                    context.job_outages.cap_max_wait(STOPPED_WAIT);
                    return Ok(RunOutcome::Stopped);
                }
                context.job_outages.cap_max_wait(STOPPING_WAIT);
                stop.cancel();
                let calls = news.borrow().under_way.saturating_sub(upstream.waiting());
                let text = match calls {
                    0 => "stopping; no call is pending".to_owned(),
                    1 => "stopping; waits for a paid call, Ctrl-C again does not".to_owned(),
                    calls => format!("stopping; waits for up to {calls} paid calls, Ctrl-C again does not"),
                };
                view.update(|| text.clone(), || text.clone());
                view.keep();
            }
            now = &mut looked => {
                standing = now;
                looked = Box::pin(standing_after(context, upstream, REDRAW, view.redraws()));
            }
            () = outages.changed() => {}
            Ok(()) = news.changed() => {}
        }
        let now = context.clock.now();
        let outage_news = outages.news(Some(&upstream.policy), now);
        if !view.redraws() {
            for text in outage_news {
                view.update(String::new, || text);
            }
        }
        let mut progress = news.borrow_and_update().clone();
        progress.in_line = upstream.waiting();
        let (standing, policy) = (standing.as_slice(), &upstream.policy);
        let waits = upstream.exhausted();
        let scene = Screen {
            progress: &progress,
            standing,
            policy,
            plan,
            done_before,
            full: waits.as_ref(),
            now,
            resume,
            outages: &outages,
        };
        // A log gets a line only for a change.
        let (counts, trouble) = (&progress.counts, progress.retry.clone());
        let waits = scene.waits_until();
        let change = (counts.done, counts.failed, progress.paused.clone(), trouble, waits);
        if progress.job == id && (view.redraws() || shown.as_ref() != Some(&change)) {
            shown = Some(change);
            view.update(|| scene.draw(), || scene.brief());
        }
        if let Some(ended) = over {
            view.keep();
            return Ok(ended);
        }
    }
}

/// Returns the standing of the quota after `wait`, if it is drawn. Best effort.
async fn standing_after(
    context: &Context<'_>,
    upstream: &Upstream,
    wait: Span,
    is_drawn: bool,
) -> Vec<Standing> {
    context.clock.sleep_until(context.clock.now() + wait).await;
    if !is_drawn {
        return Vec::new();
    }
    context.gate.standing(&upstream.policy, &upstream.subject).await.unwrap_or_default()
}

/// Runs all jobs until it is stopped.
pub(super) async fn worker(
    context: &Context<'_>,
    metrics: Option<MetricsEndpoint>,
) -> Result<ExitCode, Failure> {
    let stop = CancellationToken::new();
    let mut signals = Signals::listen()?;
    let (mut view, format) = (ProgressDisplay::new(context.format), context.format);
    let tell = |id: &str, ended: Result<RunOutcome, Error>| {
        let state = ended.as_ref().map_or("error", RunOutcome::word);
        let why = match &ended {
            Ok(RunOutcome::Paused { why, raise_to, .. }) => {
                let resume = |to| {
                    format!(
                        "; go on with: {}",
                        raised(&format!("tollgate translate resume {id}"), to)
                    )
                };
                Some(format!("{why}{}", raise_to.map(resume).unwrap_or_default()))
            }
            Err(error) => Some(error.to_string()),
            _ => None,
        };
        let line = json!({ "id": id, "state": state, "why": why });
        // Best effort: a worker continues without a reader.
        drop(output::print(format, &line, || match why {
            Some(why) => format!("{id}: {state}: {why}"),
            None => format!("{id}: {state}"),
        }));
    };
    let text = match &metrics {
        None => "working on the jobs there are, until Ctrl-C".to_owned(),
        Some(metrics) => {
            format!("working on the jobs there are, until Ctrl-C; metrics at {}", metrics.url())
        }
    };
    view.update(|| text.clone(), || text.clone());
    view.keep();
    let pipeline_for = |job: &Job| match context.trusted_upstream(job) {
        Ok(upstream) => {
            let pipeline = context.pipeline(&upstream, false);
            let (news, clock) = (pipeline.progress(), Arc::clone(&context.clock));
            let outages = context.outages.clone();
            tokio::spawn(follow(job.id.clone(), news, upstream, outages, clock, format));
            Ok(pipeline)
        }
        Err(failure) => Err(Error::new(Kind::Invalid, failure.problem().detail.clone())),
    };
    let mut outages = context.outages.clone();
    let work = pipeline::work(&*context.jobs, &*context.clock, &stop, pipeline_for, tell);
    tokio::pin!(work);
    let page = async {
        match metrics {
            Some(metrics) => metrics.serve(context).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(page);
    loop {
        tokio::select! {
            biased;
            failure = &mut page => return Err(failure),
            done = &mut work => {
                let again = format!("tollgate translate worker{}", context.again);
                done.map_err(|error| resumable(error.into(), &again))?;
                return Ok(ExitCode::SUCCESS);
            }
            () = signals.received() => {
                if stop.is_cancelled() {
                    return Ok(ExitCode::from(EXIT_DENIED));
                }
                context.job_outages.cap_max_wait(STOPPING_WAIT);
                stop.cancel();
            }
            () = outages.changed() => {}
        }
        for text in outages.news(None, context.clock.now()) {
            view.update(|| text.clone(), || text.clone());
            view.keep();
        }
    }
}

/// Prints a line for each change of a worker's job, until its pipeline is dropped.
async fn follow(
    id: String,
    mut news: Receiver<Progress>,
    upstream: Arc<Upstream>,
    outages: Outages,
    clock: Arc<dyn Clock>,
    format: OutputFormat,
) {
    let mut shown = None;
    let mut done_before = None;
    loop {
        tokio::select! {
            biased;
            changed = news.changed() => if changed.is_err() { return },
            () = clock.sleep_until(clock.now() + REDRAW) => {}
        }
        let mut progress = news.borrow_and_update().clone();
        // The end and a pause are printed when the run ends.
        let is_over = progress.counts.done + progress.counts.failed == progress.counts.all();
        if progress.job != id || progress.paused.is_some() || is_over {
            continue;
        }
        progress.in_line = upstream.waiting();
        let (waits, now, counts) = (upstream.exhausted(), clock.now(), progress.counts);
        let done_before = *done_before.get_or_insert(counts.done + counts.failed);
        let (progress, policy, full) = (&progress, &upstream.policy, waits.as_ref());
        let (standing, plan, resume, outages) = (&[], None, "", &outages);
        let scene =
            Screen { progress, standing, policy, plan, done_before, full, now, resume, outages };
        let change = (counts.done, counts.failed, progress.retry.clone(), scene.waits_until());
        if shown.as_ref() == Some(&change) {
            continue;
        }
        shown = Some(change);
        let (done, failed, chunks) = (counts.done, counts.failed, counts.all());
        let fields = json!({ "id": id, "state": "running", "done": done, "failed": failed, "chunks": chunks });
        // Best effort: a worker continues without a reader.
        drop(output::print(format, &fields, || format!("{id}: {}", scene.brief())));
    }
}

/// SIGINT and SIGTERM.
pub(super) struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    pub(super) fn listen() -> Result<Self, Failure> {
        let handler = |kind| {
            signal(kind).map_err(|error| {
                let text = format!("could not handle signals: {error}");
                Failure::new(ErrorKind::Unavailable, text)
            })
        };
        let (interrupt, terminate) = (SignalKind::interrupt(), SignalKind::terminate());
        Ok(Self { interrupt: handler(interrupt)?, terminate: handler(terminate)? })
    }

    pub(super) async fn received(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
