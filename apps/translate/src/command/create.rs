//! Creating a job: the document, the plan, the confirmation, and then the work.
//!
//! The id is a hash of the document and the settings, so the same command after a crash continues the same job.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::json;
use tollgate::clock::SystemClock;
use tollgate::{Clock, Policy, Span};
use tollgate_terminal::output::{self, OutputFormat};
use tollgate_terminal::{EXIT_DENIED, Failure, confirm};

use super::args::CreateArgs;
use super::config::JobsConfig;
use super::context::{self, Context};
use super::new_job::{self, JobRequest};
use super::report::{self, JobReport};
use super::source::Source;
use super::{Environment, invalid, max_cost, prices, read_text, sample, watch};
use crate::pipeline::{Amendment, JobSpec, Route};
use crate::plan::{Plan, size_for_a_day};
use crate::{Glossary, Layout, Task};

pub(super) async fn run(
    flags: &CreateArgs,
    jobs: &JobsConfig,
    env: Environment<'_>,
) -> Result<ExitCode, Failure> {
    let format = env.format;
    let route = context::complete(&flags.run.provider, Route::default());
    let policy = context::policy(&env.config, &route)?;
    if !flags.plan {
        // A missing key is reported before a long plan.
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        context::provider(&flags.run.provider, &route, &clock)?;
    }
    let source = Source::read(flags)?;
    let (mut spec, plan) = plan(flags, &source, &policy, route)?;
    source.warn(&spec.task, format)?;
    if flags.plan {
        output::print(format, &json!({ "plan": plan }), || plan.to_string().trim_end().to_owned())?;
        return Ok(ExitCode::SUCCESS);
    }
    if format == OutputFormat::Text {
        output::print_line(plan.to_string().trim_end())?;
    }
    let jobs = context::jobs(jobs).await?;
    let exists = new_job::identify(&mut spec, &*jobs.store, None).await?;
    if !exists {
        check_output(flags, &spec)?;
    }
    report::can_be_written(Path::new(spec.output.as_deref().unwrap_or_default()))?;
    let question = if exists { "Continue it?" } else { "Start it?" };
    if exists && format == OutputFormat::Text {
        output::print_line(&format!("this is the job {}, which is there already", spec.id))?;
    }
    if flags.sample.is_none() && !confirm::confirm(flags.yes, "--plan", question)? {
        return refused();
    }
    let context = Context::open(jobs, &flags.run.provider, env).await?;
    let done = async {
        if let Some(number) = flags.sample {
            sample::show(&context, &spec, &plan, &source.document, usize::from(number)).await?;
            if format == OutputFormat::Json {
                return Ok(ExitCode::SUCCESS);
            }
            match confirm::ask(question)? {
                Some(true) => {}
                Some(false) => return refused(),
                None => return Ok(ExitCode::SUCCESS),
            }
        }
        work(flags, &context, &spec, &plan).await
    }
    .await;
    context.shutdown().await;
    done
}

fn refused() -> Result<ExitCode, Failure> {
    output::print_line("nothing was started")?;
    Ok(ExitCode::from(EXIT_DENIED))
}

async fn work(
    flags: &CreateArgs,
    context: &Context<'_>,
    spec: &JobSpec,
    plan: &Plan,
) -> Result<ExitCode, Failure> {
    let upstream = match context.jobs.job(&spec.id).await? {
        Some(job) => context.upstream_for(&job)?,
        None => context.upstream(spec.route.clone())?,
    };
    let pipeline = context.pipeline(&upstream, !flags.run.no_wait);
    let is_new = pipeline.submit(spec).await?;
    let route = context::typed(&flags.run.provider);
    let report = JobReport::open(
        &context.jobs,
        context.format,
        &spec.id,
        flags.run.output.as_deref(),
        &context.again,
        Some(plan),
    )
    .await?;
    if !is_new && report.ended.is_none() {
        report.check()?;
        let amendment = Amendment { max_cost: spec.max_cost, route, ..Amendment::default() };
        pipeline.amend(&spec.id, &amendment).await?;
    }
    if flags.detach {
        output::print(context.format, &json!({ "plan": plan, "id": spec.id }), || {
            format!(
                "{0} is stored for workers; fetch its document with: tollgate translate resume {0}{1}",
                spec.id, context.again
            )
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    watch::job(context, &upstream, &pipeline, &report).await
}

/// Returns the job of `flags`, without its id, and its plan.
fn plan(
    flags: &CreateArgs,
    source: &Source,
    policy: &Policy,
    route: Route,
) -> Result<(JobSpec, Plan), Failure> {
    let run = &flags.run;
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
    let model = new_job::model(run.model.as_deref(), &route)
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
    let request = JobRequest {
        source,
        task,
        chunk_tokens,
        workers: run.provider.workers,
        price: prices(run)?.price_for(&model),
        model,
        within: within(flags)?,
        max_cost: max_cost(run)?,
        layout: if flags.bilingual { Layout::Bilingual } else { Layout::Translation },
        route,
    };
    let (mut spec, plan) = request.plan(policy)?;
    let file = source.file.as_path();
    let output = run.output.clone().unwrap_or_else(|| beside(file, spec.task.to.tag()));
    let output = std::path::absolute(&output)
        .map_err(|error| invalid(format!("{} cannot be a file: {error}", output.display())))?;
    spec.output = Some(output.display().to_string());
    spec.overwrites = run.output.is_some();
    Ok((spec, plan))
}

fn within(flags: &CreateArgs) -> Result<Option<Span>, Failure> {
    let span = flags.within.as_deref().map(str::parse).transpose();
    Ok(span.map_err(tollgate::Error::from)?)
}

fn glossary(file: &Path) -> Result<Glossary, Failure> {
    let text = read_text("--glossary", file)?;
    let is_json = file.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json"));
    let read = if is_json { Glossary::from_json(&text) } else { Glossary::from_csv(&text) };
    read.map_err(|error| invalid(format!("{}: {error}", file.display())))
}

/// Returns `book.fr.md` for `book.md` in French.
fn beside(file: &Path, language: &str) -> PathBuf {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let ending = file.extension().unwrap_or_default().to_string_lossy();
    file.with_file_name(format!("{stem}.{language}.{ending}"))
}

/// Refuses to overwrite the source, or an existing file that the user did not name.
fn check_output(flags: &CreateArgs, spec: &JobSpec) -> Result<(), Failure> {
    let output = PathBuf::from(spec.output.as_deref().unwrap_or_default());
    let shown = output.display();
    let is_source = flags.file.as_ref().is_some_and(|file| {
        let whole = |path: &Path| std::fs::canonicalize(path).ok();
        whole(file).is_some_and(|file| whole(&output) == Some(file))
    });
    if is_source {
        return Err(invalid(format!("{shown} is the document itself; name another with --output")));
    }
    if flags.run.output.is_none() && output.exists() {
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
