//! `tollgate translate`: long documents within a provider's quota, and the jobs that they are.

mod account;
mod broker_jobs;
mod desk;
mod lambda;
mod list;
mod make;
mod metrics;
mod order;
mod outages;
mod sample;
mod screen;
mod source;
mod turns;
mod watch;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use tollgate::ErrorKind;
use tollgate_translate::pipeline::{Amendment, Route};
use tollgate_translate::plan::{Micros, Prices};

use crate::args::{Resume, TranslateCommand, TranslateFlags, Working};
use crate::config::Config;
use crate::failure::Failure;
use crate::incidents;
use crate::output::Reader;
use crate::remote::Server;
use account::Account;
pub(crate) use broker_jobs::BrokerJobs;
use desk::Desk;

/// Does what `flags` say. The exit status of a document that is not whole is 1.
pub(crate) async fn run(
    flags: TranslateFlags,
    server: Option<Server>,
    named: Option<&Path>,
    reader: Reader,
) -> Result<ExitCode, Failure> {
    use TranslateCommand::{Cancel, Jobs, Status};
    if server.is_some() && matches!(flags.command, Some(Jobs | Status { .. } | Cancel { .. })) {
        return Err(invalid(
            "jobs are kept where [translate] says, not at a broker; leave --server out",
        ));
    }
    let mut config = Config::load(named)?;
    let answers_once = !matches!(
        flags.command,
        Some(TranslateCommand::Worker { .. } | TranslateCommand::Lambda { .. })
    );
    if answers_once {
        // Its lines on standard output would run into the answer.
        config.telemetry.emf = None;
    }
    match flags.command {
        None => make::run(&flags.making, &config, server, named, reader).await,
        Some(Jobs) => list::jobs(&config, reader).await,
        Some(Status { id }) => list::status(&config, &id, reader).await,
        Some(Cancel { id }) => list::cancel(&config, &id, reader).await,
        Some(TranslateCommand::Resume(wanted)) => {
            resume(&wanted, &config, server, named, reader).await
        }
        Some(TranslateCommand::Worker { provided, metrics }) => {
            let page = match &metrics {
                Some(address) => Some(metrics::Page::bind(address, &config).await?),
                None => None,
            };
            let jobs = desk::jobs(&config.jobs).await?;
            let desk = Desk::open(jobs, &provided, &config, server, named, reader).await?;
            let done = match desk.check() {
                Ok(()) => watch::worker(&desk, page).await,
                Err(failure) => Err(failure),
            };
            desk.close().await;
            done
        }
        Some(TranslateCommand::Lambda { provided }) => {
            // The package of a function cannot be written to.
            config.telemetry.incident_file = incidents::writable(&config.telemetry.incident_file);
            let jobs = desk::jobs(&config.jobs).await?;
            let desk = Desk::open(jobs, &provided, &config, server, named, reader).await?;
            let done = lambda::serve(&desk).await;
            desk.close().await;
            done
        }
    }
}

async fn resume(
    wanted: &Resume,
    config: &Config,
    server: Option<Server>,
    named: Option<&Path>,
    reader: Reader,
) -> Result<ExitCode, Failure> {
    let Resume { id, retry_failed, working } = wanted;
    let max_cost = max_cost(working)?;
    let prices = prices(working)?;
    let route = desk::typed(&working.provided);
    let (jobs, changes) =
        (desk::jobs(&config.jobs).await?, working.model.is_some() || max_cost.is_some());
    let again = desk::again(&working.provided, server.as_ref(), named);
    let output = working.output.as_deref();
    let store = Arc::clone(&jobs.store);
    let account = Account::open(&store, reader, id, output, &again, None).await?;
    if let (Some(over), false, false) = (&account.over, *retry_failed, changes) {
        return account.give(over, "").await;
    }
    account.check()?;
    let desk = Desk::open(jobs, &working.provided, config, server, named, reader).await?;
    let done = async {
        let line = desk.line_of(id).await?;
        let pipeline = desk.pipeline(&line, !working.no_wait);
        if *retry_failed && pipeline.retry_failed(id).await? == 0 {
            return Err(invalid(format!(
                "nothing of the job {id} was given up; leave --retry-failed out"
            )));
        }
        let model = working.model.as_ref().map(|model| (model.clone(), prices.of(model)));
        if changes || route != Route::default() {
            let amendment = Amendment { model, max_cost, route, ..Amendment::default() };
            pipeline.amend(id, &amendment).await?;
        }
        watch::job(&desk, &line, &pipeline, &account).await
    }
    .await;
    desk.close().await;
    done
}

/// The bound on the cost, in millionths of a dollar.
fn max_cost(working: &Working) -> Result<Option<Micros>, Failure> {
    let Some(text) = &working.max_cost else { return Ok(None) };
    let wrong = || invalid(format!("--max-cost {text:?} is no amount in dollars, as in 2.50"));
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(part) || 6 < part.len() {
        return Err(wrong());
    }
    let micros = format!("{whole}{part:0<6}").parse().map_err(|_| wrong())?;
    Ok(Some(Micros(micros)))
}

fn prices(working: &Working) -> Result<Prices, Failure> {
    match &working.prices {
        None => Ok(Prices::built_in()),
        Some(file) => Ok(Prices::from_json(&read_text("--prices", file)?)?),
    }
}

/// The text of the file that `flag` names.
fn read_text(flag: &str, file: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(file)
        .map_err(|error| invalid(format!("{flag} {}: cannot be read: {error}", file.display())))
}

fn invalid(text: impl Into<String>) -> Failure {
    Failure::new(ErrorKind::Invalid, text)
}

impl From<tollgate_translate::Error> for Failure {
    fn from(error: tollgate_translate::Error) -> Self {
        match error.kind() {
            tollgate_translate::ErrorKind::Store | tollgate_translate::ErrorKind::Unavailable => {
                Self::new(ErrorKind::Unavailable, error.to_string())
            }
            _ => invalid(error.to_string()),
        }
    }
}
