//! `tollgate drs`: Elastic Disaster Recovery for an operator, within the limits of the service.

mod ids;
mod lease;
mod list;
mod lock;
mod outage;
mod overlap;
mod pace;
mod recover;
mod screen;
mod settings;
mod state;
mod telemetry;
mod terminate;
mod warnings;

use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use tollgate::edge::environment;
use tollgate::{Clock, ErrorKind, Gate, SystemClock};
use tollgate_aws::drs::Settings;
use tollgate_aws::{DrsClient, JobThrottler, NO_CREDENTIALS, throttle};

use crate::args::{DrsCommand, DrsFlags};
use crate::config::Config;
use crate::failure::Failure;
use crate::open::{self, Opened};
use crate::output::Reader;
use crate::view::View;
use outage::Outage;
use telemetry::Telemetry;

/// The most ids that one look takes, by the interface.
const LOOKED_UP_MAX: usize = 200;

/// What a command works with.
struct Desk {
    client: DrsClient,
    throttler: JobThrottler,
    reader: Reader,
    /// The store that other operators share, with `--shared`.
    shared: Option<Arc<dyn Gate>>,
    view: Arc<Mutex<View>>,
    /// What leads to the same account and region again.
    flags: String,
}

/// Does what `flags` say. The exit status of something that did not go well is 1.
pub(crate) async fn run(
    flags: DrsFlags,
    config: Option<&Path>,
    reader: Reader,
) -> Result<ExitCode, Failure> {
    let config = Config::load(config)?;
    let view = Arc::new(Mutex::new(View::new(reader)));
    warnings::start(&view);
    let settings = settings::read(&flags)?;
    let opened = if flags.shared { Some(shared(&config).await?) } else { None };
    let log = settings::log(&flags);
    let telemetry = Telemetry::start(&config.telemetry, &settings, log.as_deref()).await?;
    let gate = opened.as_ref().map(Opened::gate);
    let done = match desk(&flags, &settings, gate, &telemetry, reader, view).await {
        Ok(desk) => answer(flags.command, &desk).await,
        Err(failure) => Err(failure),
    };
    telemetry.drain().await;
    if let Some(opened) = opened {
        opened.close().await?;
    }
    done
}

async fn answer(command: DrsCommand, desk: &Desk) -> Result<ExitCode, Failure> {
    match command {
        DrsCommand::Servers { ids } => list::servers(desk, &ids).await,
        DrsCommand::LaunchConfigurations { ids } => list::launch_configurations(desk, &ids).await,
        DrsCommand::Jobs { id: Some(id), .. } => list::job(desk, &id).await,
        DrsCommand::Jobs { id: None, active } => list::jobs(desk, active).await,
        DrsCommand::Capacity => list::capacity(desk).await,
        DrsCommand::Recover(wanted) => recover::run(desk, &wanted).await,
        DrsCommand::Terminate(wanted) => terminate::run(desk, &wanted).await,
    }
}

async fn shared(config: &Config) -> Result<Opened, Failure> {
    Ok(open::for_command(&config.store, &config.fallback, Arc::new(SystemClock)).await?)
}

async fn desk(
    flags: &DrsFlags,
    settings: &Settings,
    gate: Option<Arc<dyn Gate>>,
    telemetry: &Telemetry,
    reader: Reader,
    view: Arc<Mutex<View>>,
) -> Result<Desk, Failure> {
    let region = flags.region.clone().or_else(|| environment("AWS_REGION"));
    let region = region.ok_or_else(|| {
        invalid("no region; name one with --region, as in --region eu-central-1, or set AWS_REGION")
    })?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let builder = DrsClient::builder(region)
        .monitor(Arc::new(Outage(Arc::clone(&view))))
        .clock(Arc::clone(&clock));
    let mut builder = settings.apply(builder, settings::retry(&flags.command)?);
    if let Some(endpoint) = &flags.endpoint {
        builder = builder.endpoint(endpoint);
    }
    if let Some(gate) = gate.clone().or_else(|| pace::gate(flags.endpoint.as_deref(), clock)) {
        builder = builder.gate(gate);
    }
    let client = telemetry.watch(builder).connect().await?;
    let throttler = JobThrottler::new(client.clone(), throttle::Settings::from_environment()?)?;
    let throttler = match &gate {
        Some(gate) => throttler.slots(Arc::clone(gate)),
        None => throttler,
    };
    let flags = repeated(flags, settings, client.region());
    Ok(Desk { client, throttler, reader, shared: gate, view, flags })
}

/// The flags that name the account and the region, as they would be typed again.
fn repeated(flags: &DrsFlags, settings: &Settings, region: &str) -> String {
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

impl From<tollgate_aws::Error> for Failure {
    fn from(error: tollgate_aws::Error) -> Self {
        match error {
            tollgate_aws::Error::Gate(error) => Self::Gate(error),
            tollgate_aws::Error::Invalid(text) => invalid(text),
            other if other.code() == NO_CREDENTIALS => {
                let text = other.failure().map_or_else(String::new, |why| why.message.clone());
                Self::new(ErrorKind::Misconfigured, text)
            }
            other => Self::new(ErrorKind::Unavailable, other.to_string()),
        }
    }
}
