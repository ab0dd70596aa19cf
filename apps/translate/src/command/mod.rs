//! The command `tollgate translate`, which the binary mounts, and the translations of a broker.

mod args;
mod config;
mod context;
mod create;
mod jobs;
mod lambda;
mod metrics;
mod new_job;
mod outages;
mod reopening_gate;
mod report;
mod sample;
mod screen;
mod service;
mod source;
mod watch;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use tollgate::ErrorKind;
use tollgate_config::{BrokerConfig, Config};
use tollgate_terminal::{Failure, OutputFormat};

use crate::pipeline::{Amendment, Route};
use crate::plan::{Micros, Prices};
use args::{ResumeArgs, RunArgs, TranslateCommand};
use context::Context;
use report::JobReport;

pub use args::TranslateArgs;
pub use config::JobsConfig;
pub use lambda::LambdaRuntime;
pub use metrics::MetricsEndpoint;
pub use service::TranslationService;

/// What the binary provides.
pub struct Environment<'a> {
    /// The configuration of the gate.
    pub config: Config,
    /// The configuration file that the user named.
    pub config_file: Option<&'a Path>,
    /// The broker that the user named, which replaces the configured store.
    pub broker: Option<BrokerConfig>,
    /// The output format.
    pub format: OutputFormat,
    /// The endpoint at [`TranslateArgs::metrics_address`].
    pub metrics: Option<MetricsEndpoint>,
    /// The runtime interface, if [`TranslateArgs::is_lambda`].
    pub lambda: Option<Box<dyn LambdaRuntime>>,
}

/// Runs the command. The exit status of an incomplete document is 1.
///
/// # Errors
/// If a flag is invalid, or a server fails.
pub async fn run(args: TranslateArgs, mut env: Environment<'_>) -> Result<ExitCode, Failure> {
    use TranslateCommand::{Cancel, Jobs, Lambda, Resume, Status, Worker};
    if env.broker.is_some() && matches!(args.command, Some(Jobs | Status { .. } | Cancel { .. })) {
        return Err(invalid(
            "jobs are stored where [translate] says, not at a broker; leave --server out",
        ));
    }
    let jobs = JobsConfig::resolve(&env.config)?;
    if !matches!(args.command, Some(Worker { .. } | Lambda { .. })) {
        // Its lines on standard output would interleave with the result.
        env.config.telemetry.emf = None;
    }
    let format = env.format;
    match args.command {
        None => create::run(&args.create, &jobs, env).await,
        Some(Jobs) => jobs::list(&jobs, format).await,
        Some(Status { id }) => jobs::status(&jobs, &id, format).await,
        Some(Cancel { id }) => jobs::cancel(&jobs, &id, format).await,
        Some(Resume(args)) => resume(&args, &jobs, env).await,
        Some(Worker { provider, .. }) => {
            let metrics = env.metrics.take();
            let context = Context::open(context::jobs(&jobs).await?, &provider, env).await?;
            let done = match context.check() {
                Ok(()) => watch::worker(&context, metrics).await,
                Err(failure) => Err(failure),
            };
            context.shutdown().await;
            done
        }
        Some(Lambda { provider }) => {
            let Some(runtime) = env.lambda.take() else {
                return Err(invalid("this command is for AWS Lambda"));
            };
            let context = Context::open(context::jobs(&jobs).await?, &provider, env).await?;
            let done = lambda::serve(&context, &*runtime).await;
            context.shutdown().await;
            done
        }
    }
}

async fn resume(
    args: &ResumeArgs,
    jobs: &JobsConfig,
    env: Environment<'_>,
) -> Result<ExitCode, Failure> {
    let ResumeArgs { id, retry_failed, run } = args;
    let (max_cost, prices) = (max_cost(run)?, prices(run)?);
    let route = context::typed(&run.provider);
    let (jobs, changes) = (context::jobs(jobs).await?, run.model.is_some() || max_cost.is_some());
    let again = context::again(&run.provider, env.broker.as_ref(), env.config_file);
    let store = Arc::clone(&jobs.store);
    let output = run.output.as_deref();
    let report = JobReport::open(&store, env.format, id, output, &again, None).await?;
    if let (Some(outcome), false, false) = (&report.ended, *retry_failed, changes) {
        return report.finish(outcome, "").await;
    }
    report.check()?;
    let context = Context::open(jobs, &run.provider, env).await?;
    let done = async {
        let upstream = context.upstream_for(&jobs::find(&*context.jobs, id).await?)?;
        let pipeline = context.pipeline(&upstream, !run.no_wait);
        if *retry_failed && pipeline.retry_failed(id).await? == 0 {
            return Err(invalid(format!(
                "no chunk of the job {id} failed; leave --retry-failed out"
            )));
        }
        let model = run.model.as_ref().map(|model| (model.clone(), prices.price_for(model)));
        if changes || route != Route::default() {
            let amendment = Amendment { model, max_cost, route, ..Amendment::default() };
            pipeline.amend(id, &amendment).await?;
        }
        watch::job(&context, &upstream, &pipeline, &report).await
    }
    .await;
    context.shutdown().await;
    done
}

/// Parses the budget, in millionths of a dollar.
fn max_cost(run: &RunArgs) -> Result<Option<Micros>, Failure> {
    let Some(text) = &run.max_cost else { return Ok(None) };
    let wrong = || invalid(format!("--max-cost {text:?} is not an amount in dollars, as in 2.50"));
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(part) || 6 < part.len() {
        return Err(wrong());
    }
    let micros = format!("{whole}{part:0<6}").parse().map_err(|_| wrong())?;
    Ok(Some(Micros(micros)))
}

fn prices(run: &RunArgs) -> Result<Prices, Failure> {
    match &run.prices {
        None => Ok(Prices::built_in()),
        Some(file) => Prices::from_json(&read_text("--prices", file)?)
            .map_err(|error| invalid(error.to_string())),
    }
}

/// Reads the file of `flag`.
fn read_text(flag: &str, file: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(file)
        .map_err(|error| invalid(format!("{flag} {}: cannot be read: {error}", file.display())))
}

fn invalid(text: impl Into<String>) -> Failure {
    Failure::new(ErrorKind::Invalid, text)
}

impl From<crate::Error> for Failure {
    fn from(error: crate::Error) -> Self {
        match error.kind() {
            crate::ErrorKind::Store | crate::ErrorKind::Unavailable => {
                Self::new(ErrorKind::Unavailable, error.to_string())
            }
            _ => invalid(error.to_string()),
        }
    }
}
