//! Working on a job with somebody watching: progress, pauses and Ctrl-C.

use std::process::ExitCode;
use std::sync::Arc;

use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch::Receiver;
use tollgate::{Clock, ErrorKind, Span, Standing};
use tollgate_translate::job::Job;
use tollgate_translate::pipeline::{self, Amendment, Ended, Pipeline, Progress, Stop};
use tollgate_translate::{Error, ErrorKind as Kind};

use super::account::{Account, raised, resumable};
use super::desk::{Desk, Line};
use super::metrics::Page;
use super::outages::Outages;
use super::screen::{self, Scene};
use crate::DENIED;
use crate::failure::Failure;
use crate::output::{self, Reader};
use crate::view::View;

/// How often the screen is drawn again without news, since time passes on it.
const REDRAW: Span = Span::from_secs(1);

/// How long a database of jobs that is away is waited for after Ctrl-C, for the sake of answers that are paid; and after a
/// second one.
const STOPPING_PATIENCE: Span = Span::from_secs(10);
const STOPPED_PATIENCE: Span = Span::from_secs(1);

/// Works on the job `id` until it is over, paused or stopped, and writes its document if it is over.
pub(super) async fn job(
    desk: &Desk<'_>,
    line: &Line,
    pipeline: &Pipeline,
    account: &Account<'_>,
) -> Result<ExitCode, Failure> {
    let watched = || async {
        let ended = watched(desk, line, pipeline, account).await;
        ended.map_err(|failure| resumable(failure, &account.resume))
    };
    let mut ended = watched().await?;
    while let Ended::Paused { raise_to: Some(to), .. } = ended
        && account.may_raise(to).await?
    {
        let amendment = Amendment { ask_above: Some(to), ..Amendment::default() };
        pipeline.amend(account.id, &amendment).await?;
        ended = watched().await?;
    }
    let when = match &ended {
        Ended::Paused { resume_at: Some(at), .. } => {
            format!("it can go on {}", screen::at_home(*at, &line.policy))
        }
        _ => "somebody must act first".to_owned(),
    };
    account.give(&ended, &when).await
}

async fn watched(
    desk: &Desk<'_>,
    line: &Line,
    pipeline: &Pipeline,
    account: &Account<'_>,
) -> Result<Ended, Failure> {
    let (id, plan, resume) = (account.id, account.plan, account.resume.as_str());
    let (stopper, stop) = Stop::new();
    let mut told = Told::listen()?;
    let mut view = View::new(desk.reader);
    let mut news = pipeline.progress();
    let done_before = {
        let counts = desk.jobs.counts(id).await?;
        counts.done + counts.failed
    };
    let mut standing: Vec<Standing> = Vec::new();
    let mut shown = None;
    let run = pipeline.run(id, &stop);
    tokio::pin!(run);
    let mut looked = Box::pin(looked_after(desk, line, Span::ZERO, view.redraws()));
    let mut outages = desk.outages.clone();
    loop {
        let mut over = None;
        tokio::select! {
            biased;
            ended = &mut run => over = Some(ended?),
            () = told.heard() => {
                view.leave();
                if stop.is_set() {
                    desk.patience.shorten(STOPPED_PATIENCE);
                    return Ok(Ended::Stopped);
                }
                desk.patience.shorten(STOPPING_PATIENCE);
                stopper.stop();
                let calls = news.borrow().under_way.saturating_sub(line.waiting());
                let text = match calls {
                    0 => "stopping; no call is on its way".to_owned(),
                    1 => "stopping; waits for a call that is paid, Ctrl-C again does not".to_owned(),
                    calls => format!("stopping; waits for up to {calls} calls that are paid, Ctrl-C again does not"),
                };
                view.show(|| text.clone(), || text.clone());
                view.leave();
            }
            now = &mut looked => {
                standing = now;
                looked = Box::pin(looked_after(desk, line, REDRAW, view.redraws()));
            }
            () = outages.changed() => {}
            Ok(()) = news.changed() => {}
        }
        let now = desk.clock.now();
        let outage_news = outages.news(Some(&line.policy), now);
        if !view.redraws() {
            for text in outage_news {
                view.show(String::new, || text);
            }
        }
        let mut progress = news.borrow_and_update().clone();
        progress.in_line = line.waiting();
        let (standing, policy) = (standing.as_slice(), &line.policy);
        let waits = line.full();
        let scene = Scene {
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
        // Before the first news there is nothing to show, and in a log only what changed is worth a line.
        let (counts, trouble) = (&progress.counts, progress.retry.clone());
        let waits = scene.waits_until();
        let change = (counts.done, counts.failed, progress.paused.clone(), trouble, waits);
        if progress.job == id && (view.redraws() || shown.as_ref() != Some(&change)) {
            shown = Some(change);
            view.show(|| scene.draw(), || scene.brief());
        }
        if let Some(ended) = over {
            view.leave();
            return Ok(ended);
        }
    }
}

/// Where the quota stands after a while, if that is drawn. It is worth a look, and not worth a failure.
async fn looked_after(desk: &Desk<'_>, line: &Line, wait: Span, is_drawn: bool) -> Vec<Standing> {
    desk.clock.sleep_until(desk.clock.now() + wait).await;
    if !is_drawn {
        return Vec::new();
    }
    desk.gate.standing(&line.policy, &line.subject).await.unwrap_or_default()
}

/// Works on whatever job there is until it is told to stop.
pub(super) async fn worker(desk: &Desk<'_>, page: Option<Page>) -> Result<ExitCode, Failure> {
    let (stopper, stop) = Stop::new();
    let mut told = Told::listen()?;
    let (mut view, reader) = (View::new(desk.reader), desk.reader);
    let tell = |id: &str, ended: Result<Ended, Error>| {
        let state = match &ended {
            Ok(Ended::Completed) => "completed",
            Ok(Ended::CompletedWithErrors) => "completed_with_errors",
            Ok(Ended::Paused { .. }) => "paused",
            Ok(Ended::Stopped) => "stopped",
            Ok(Ended::Cancelled) => "cancelled",
            Err(_) => "error",
        };
        let why = match &ended {
            Ok(Ended::Paused { why, raise_to, .. }) => {
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
        // A worker whose reader went away works on.
        drop(output::answer(reader, &line, || match why {
            Some(why) => format!("{id}: {state}: {why}"),
            None => format!("{id}: {state}"),
        }));
    };
    let text = match &page {
        None => "working on the jobs there are, until Ctrl-C".to_owned(),
        Some(page) => {
            format!("working on the jobs there are, until Ctrl-C; metrics at {}", page.url())
        }
    };
    view.show(|| text.clone(), || text.clone());
    view.leave();
    let pipeline_for = |job: &Job| match desk.trusted_line(job) {
        Ok(line) => {
            let pipeline = desk.pipeline(&line, false);
            let (news, clock) = (pipeline.progress(), Arc::clone(&desk.clock));
            let outages = desk.outages.clone();
            tokio::spawn(follow(job.id.clone(), news, line, outages, clock, reader));
            Ok(pipeline)
        }
        Err(failure) => Err(Error::new(Kind::Invalid, failure.problem().detail.clone())),
    };
    let mut outages = desk.outages.clone();
    let work = pipeline::work(&*desk.jobs, &*desk.clock, &stop, pipeline_for, tell);
    tokio::pin!(work);
    let page = async {
        match page {
            Some(page) => page.serve(desk).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(page);
    loop {
        tokio::select! {
            biased;
            failure = &mut page => return Err(failure),
            done = &mut work => {
                let again = format!("tollgate translate worker{}", desk.again);
                done.map_err(|error| resumable(error.into(), &again))?;
                return Ok(ExitCode::SUCCESS);
            }
            () = told.heard() => {
                if stop.is_set() {
                    return Ok(ExitCode::from(DENIED));
                }
                desk.patience.shorten(STOPPING_PATIENCE);
                stopper.stop();
            }
            () = outages.changed() => {}
        }
        for text in outages.news(None, desk.clock.now()) {
            view.show(|| text.clone(), || text.clone());
            view.leave();
        }
    }
}

/// Prints a line for each change of a job that a worker works on, until its pipeline is gone.
async fn follow(
    id: String,
    mut news: Receiver<Progress>,
    line: Arc<Line>,
    outages: Outages,
    clock: Arc<dyn Clock>,
    reader: Reader,
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
        // How it ended, or why it is paused, is told when its run ends.
        let is_over = progress.counts.done + progress.counts.failed == progress.counts.all();
        if progress.job != id || progress.paused.is_some() || is_over {
            continue;
        }
        progress.in_line = line.waiting();
        let (waits, now, counts) = (line.full(), clock.now(), progress.counts);
        let done_before = *done_before.get_or_insert(counts.done + counts.failed);
        let (progress, policy, full) = (&progress, &line.policy, waits.as_ref());
        let (standing, plan, resume, outages) = (&[], None, "", &outages);
        let scene =
            Scene { progress, standing, policy, plan, done_before, full, now, resume, outages };
        let change = (counts.done, counts.failed, progress.retry.clone(), scene.waits_until());
        if shown.as_ref() == Some(&change) {
            continue;
        }
        shown = Some(change);
        let (done, failed, chunks) = (counts.done, counts.failed, counts.all());
        let fields = json!({ "id": id, "state": "running", "done": done, "failed": failed, "chunks": chunks });
        // A worker whose reader went away works on.
        drop(output::answer(reader, &fields, || format!("{id}: {}", scene.brief())));
    }
}

/// Hears Ctrl-C and the request to terminate.
pub(super) struct Told {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Told {
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

    pub(super) async fn heard(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
