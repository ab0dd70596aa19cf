//! The subcommand `tollgate drs`.

mod args;
mod display;
mod ids;
mod lease;
mod list;
mod lock;
mod overlap;
mod recover;
mod retry_notices;
mod settings;
mod state;
mod telemetry;
mod terminate;
mod user_rate;

use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use tollgate::clock::SystemClock;
use tollgate::internal::edge::environment;
use tollgate::{Clock, ErrorKind, Gate};
use tollgate_config::Config;
use tollgate_config::open::{self, Opened, SHUTDOWN_MAX};
use tollgate_terminal::{Failure, OutputFormat, ProgressDisplay};

pub use args::DrsArgs;
use args::DrsCommand;
use retry_notices::RetryNotices;
use telemetry::Telemetry;

use crate::client::ClientOptions;
use crate::throttle::ThrottleOptions;
use crate::{DrsClient, JobThrottler};

/// The most ids of one request.
const IDS_MAX: usize = 200;

/// The client and the settings of a command.
struct Session {
    client: DrsClient,
    throttler: JobThrottler,
    format: OutputFormat,
    /// The store that other operators share, with `--shared`.
    shared: Option<Arc<dyn Gate>>,
    progress: Arc<Mutex<ProgressDisplay>>,
    /// The flags that select the same account and region.
    flags: String,
}

/// Runs the command. The exit status is 1 if something was not done completely.
pub async fn run(
    flags: DrsArgs,
    config: &Config,
    format: OutputFormat,
) -> Result<ExitCode, Failure> {
    let progress = Arc::new(Mutex::new(ProgressDisplay::new(format)));
    tollgate_terminal::warnings::start(&progress);
    let settings = settings::read(&flags)?;
    let opened = if flags.shared { Some(shared(config).await?) } else { None };
    let log = settings::log(&flags);
    let telemetry = Telemetry::start(&config.telemetry, &settings, log.as_deref()).await?;
    let gate = opened.as_ref().map(Opened::gate);
    let done = match session(&flags, &settings, gate, &telemetry, format, progress).await {
        Ok(session) => execute(flags.command, &session).await,
        Err(failure) => Err(failure),
    };
    telemetry.shutdown(SystemClock.now() + SHUTDOWN_MAX).await;
    if let Some(opened) = opened {
        opened.shutdown(SystemClock.now() + SHUTDOWN_MAX).await?;
    }
    done
}

async fn execute(command: DrsCommand, session: &Session) -> Result<ExitCode, Failure> {
    match command {
        DrsCommand::Servers { ids } => list::servers(session, &ids).await,
        DrsCommand::LaunchConfigurations { ids } => {
            list::launch_configurations(session, &ids).await
        }
        DrsCommand::Jobs { id: Some(id), .. } => list::job(session, &id).await,
        DrsCommand::Jobs { id: None, active } => list::jobs(session, active).await,
        DrsCommand::Capacity => list::capacity(session).await,
        DrsCommand::Recover(wanted) => recover::run(session, &wanted).await,
        DrsCommand::Terminate(wanted) => terminate::run(session, &wanted).await,
    }
}

async fn shared(config: &Config) -> Result<Opened, Failure> {
    Ok(open::for_command(&config.store, &config.fallback, Arc::new(SystemClock)).await?)
}

async fn session(
    flags: &DrsArgs,
    settings: &ClientOptions,
    gate: Option<Arc<dyn Gate>>,
    telemetry: &Telemetry,
    format: OutputFormat,
    progress: Arc<Mutex<ProgressDisplay>>,
) -> Result<Session, Failure> {
    let region = flags.region.clone().or_else(|| environment("AWS_REGION"));
    let region = region.ok_or_else(|| {
        invalid("no region; name one with --region, as in --region eu-central-1, or set AWS_REGION")
    })?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let builder = DrsClient::builder(region)
        .monitor(Arc::new(RetryNotices(Arc::clone(&progress))))
        .clock(Arc::clone(&clock));
    let mut builder = settings.apply(builder, settings::retry(&flags.command)?);
    if let Some(endpoint) = &flags.endpoint {
        builder = builder.endpoint(endpoint);
    }
    if let Some(gate) = gate.clone().or_else(|| user_rate::gate(flags.endpoint.as_deref(), clock)) {
        builder = builder.gate(gate);
    }
    let client = telemetry.attach(builder).open().await?;
    let throttler = JobThrottler::new(client.clone(), ThrottleOptions::from_environment()?)?;
    let throttler = match &gate {
        Some(gate) => throttler.slots(Arc::clone(gate)),
        None => throttler,
    };
    let flags = account_flags(flags, settings, client.region());
    Ok(Session { client, throttler, format, shared: gate, progress, flags })
}

/// Formats the flags that select the same account and region.
fn account_flags(flags: &DrsArgs, settings: &ClientOptions, region: &str) -> String {
    let mut text = format!("--region {region}");
    let named = [
        ("endpoint", &flags.endpoint),
        ("role", &settings.role),
        ("external-id", &settings.external_id),
    ];
    for (name, value) in named {
        if let Some(value) = value {
            text += &format!(" --{name} {value}");
        }
    }
    if flags.shared {
        text += " --shared";
    }
    text
}

fn invalid(text: impl Into<String>) -> Failure {
    Failure::new(ErrorKind::Invalid, text)
}
