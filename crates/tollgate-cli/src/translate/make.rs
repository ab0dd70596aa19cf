//! A new job: the document, the plan, the question, and then the work.
//!
//! The id is made of what is asked for, so the same command typed again after a crash goes on with the same job.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::json;
use tollgate::{Clock, Policy, Span, SystemClock};
use tollgate_translate::pipeline::{Amendment, JobSpec, Route};
use tollgate_translate::plan::{Plan, size_for_a_day};
use tollgate_translate::{Glossary, Layout, Task};

use super::account::Account;
use super::desk::{self, Desk};
use super::order::{self, Order};
use super::source::Source;
use super::{account, invalid, max_cost, prices, read_text, sample, watch};
use crate::DENIED;
use crate::args::Making;
use crate::config::Config;
use crate::consent;
use crate::failure::Failure;
use crate::output::{self, Reader};
use crate::remote::Server;

pub(super) async fn run(
    flags: &Making,
    config: &Config,
    server: Option<Server>,
    named: Option<&Path>,
    reader: Reader,
) -> Result<ExitCode, Failure> {
    let route = desk::whole(&flags.working.provided, Route::default());
    let policy = desk::policy(config, &route)?;
    if !flags.plan {
        // A missing key is told before a long plan is.
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        desk::provider(&flags.working.provided, &route, &clock)?;
    }
    let source = Source::read(flags)?;
    let (mut spec, plan) = planned(flags, &source, &policy, route)?;
    source.warn(&spec.task, reader)?;
    if flags.plan {
        output::answer(reader, &json!({ "plan": plan }), || {
            plan.to_string().trim_end().to_owned()
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    if reader == Reader::Person {
        output::line(plan.to_string().trim_end())?;
    }
    let jobs = desk::jobs(&config.jobs).await?;
    let there = order::identify(&mut spec, &*jobs.store, None).await?;
    if !there {
        check_output(flags, &spec)?;
    }
    account::can_be_written(Path::new(spec.output.as_deref().unwrap_or_default()))?;
    let question = if there { "Go on with it?" } else { "Start it?" };
    if there && reader == Reader::Person {
        output::line(&format!("this is the job {}, which is there already", spec.id))?;
    }
    if flags.sample.is_none() && !consent::given(flags.yes, "--plan", question)? {
        return refused();
    }
    let desk = Desk::open(jobs, &flags.working.provided, config, server, named, reader).await?;
    let done = async {
        if let Some(number) = flags.sample {
            sample::show(&desk, &spec, &plan, &source.document, usize::from(number)).await?;
            if reader == Reader::Program {
                return Ok(ExitCode::SUCCESS);
            }
            match consent::asked(question)? {
                Some(true) => {}
                Some(false) => return refused(),
                None => return Ok(ExitCode::SUCCESS),
            }
        }
        work(flags, &desk, &spec, &plan).await
    }
    .await;
    desk.close().await;
    done
}

fn refused() -> Result<ExitCode, Failure> {
    output::line("nothing was started")?;
    Ok(ExitCode::from(DENIED))
}

async fn work(
    flags: &Making,
    desk: &Desk<'_>,
    spec: &JobSpec,
    plan: &Plan,
) -> Result<ExitCode, Failure> {
    let line = match desk.jobs.job(&spec.id).await? {
        Some(job) => desk.line_for(&job)?,
        None => desk.line(spec.route.clone())?,
    };
    let pipeline = desk.pipeline(&line, !flags.working.no_wait);
    let is_new = pipeline.submit(spec).await?;
    let route = desk::typed(&flags.working.provided);
    let account = Account::open(
        &desk.jobs,
        desk.reader,
        &spec.id,
        flags.working.output.as_deref(),
        &desk.again,
        Some(plan),
    )
    .await?;
    if !is_new && account.over.is_none() {
        account.check()?;
        let amendment = Amendment { max_cost: spec.max_cost, route, ..Amendment::default() };
        pipeline.amend(&spec.id, &amendment).await?;
    }
    if flags.detach {
        output::answer(desk.reader, &json!({ "plan": plan, "id": spec.id }), || {
            format!(
                "{0} is kept for workers; fetch its document with: tollgate translate resume {0}{1}",
                spec.id, desk.again
            )
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    watch::job(desk, &line, &pipeline, &account).await
}

/// The job that `flags` ask for, without its id, and its plan.
fn planned(
    flags: &Making,
    source: &Source,
    policy: &Policy,
    route: Route,
) -> Result<(JobSpec, Plan), Failure> {
    let working = &flags.working;
    let to = flags.to.as_deref().ok_or_else(|| invalid("name a language with --to"))?;
    let mut task = Task::new(flags.from.parse()?, to.parse()?);
    if task.from.is_same_as(&task.to) {
        let text =
            format!("the document is in {to:?} already; name another language with --to or --from");
        return Err(invalid(text));
    }
    if let Some(path) = &flags.glossary {
        task.glossary = glossary(path)?;
    }
    task.instructions.clone_from(&flags.instructions);
    let model = order::model(working.model.as_deref(), &route)
        .ok_or_else(|| invalid("this provider has many models; name one with --model"))?
        .to_owned();
    let chunk_tokens = match flags.fit_rpd {
        true => size_for_a_day(&source.document, &task, policy).ok_or_else(|| {
            let name = policy.name();
            invalid(format!(
                "the policy {name:?} has no limit of requests per day to fit; leave --fit-rpd out"
            ))
        })?,
        false => flags.chunk_tokens,
    };
    let order = Order {
        source,
        task,
        chunk_tokens,
        workers: working.provided.workers,
        price: prices(working)?.of(&model),
        model,
        within: within(flags)?,
        max_cost: max_cost(working)?,
        layout: if flags.bilingual { Layout::Bilingual } else { Layout::Translation },
        route,
    };
    let (mut spec, plan) = order.planned(policy)?;
    let file = source.file.as_path();
    let output = working.output.clone().unwrap_or_else(|| beside(file, spec.task.to.tag()));
    let output = std::path::absolute(&output)
        .map_err(|error| invalid(format!("{} cannot be a file: {error}", output.display())))?;
    spec.output = Some(output.display().to_string());
    spec.overwrites = working.output.is_some();
    Ok((spec, plan))
}

fn within(flags: &Making) -> Result<Option<Span>, Failure> {
    let span = flags.within.as_deref().map(str::parse).transpose();
    Ok(span.map_err(tollgate::Error::from)?)
}

fn glossary(file: &Path) -> Result<Glossary, Failure> {
    let text = read_text("--glossary", file)?;
    let is_json = file.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json"));
    let read = if is_json { Glossary::from_json(&text) } else { Glossary::from_csv(&text) };
    read.map_err(|error| invalid(format!("{}: {error}", file.display())))
}

/// `book.md` in French is `book.fr.md`.
fn beside(file: &Path, language: &str) -> PathBuf {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let ending = file.extension().unwrap_or_default().to_string_lossy();
    file.with_file_name(format!("{stem}.{language}.{ending}"))
}

/// A file that is there and that nobody named is not written over; nor is the source.
fn check_output(flags: &Making, spec: &JobSpec) -> Result<(), Failure> {
    let output = PathBuf::from(spec.output.as_deref().unwrap_or_default());
    let shown = output.display();
    let is_source = flags.file.as_ref().is_some_and(|file| {
        let whole = |path: &Path| std::fs::canonicalize(path).ok();
        whole(file).is_some_and(|file| whole(&output) == Some(file))
    });
    if is_source {
        return Err(invalid(format!("{shown} is the document itself; name another with --output")));
    }
    if flags.working.output.is_none() && output.exists() {
        let text = format!("{shown} is there already; move it away, or name a file with --output");
        return Err(invalid(text));
    }
    if !output.parent().is_some_and(Path::is_dir) {
        return Err(invalid(format!(
            "there is no folder for {shown}; make it, or name another file"
        )));
    }
    Ok(())
}
