//! `tollgate drs`: Elastic Disaster Recovery for an operator, within the limits of the service.

mod ids;
mod list;
mod recover;
mod screen;
mod state;
mod terminate;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use tollgate::edge::environment;
use tollgate::{Clock, ErrorKind, Gate, SystemClock, TokenBucket};
use tollgate_aws::throttle::Settings;
use tollgate_aws::{DrsClient, JobThrottler, Rate, Role};

use crate::args::{DrsCommand, DrsFlags};
use crate::config::Config;
use crate::failure::Failure;
use crate::open::{self, Opened};
use crate::output::Reader;

/// What a command works with.
struct Desk {
    client: DrsClient,
    throttler: JobThrottler,
    reader: Reader,
}

/// Does what `flags` say. The exit status of something that did not go well is 1.
pub(crate) async fn run(
    flags: DrsFlags,
    config: Option<&Path>,
    reader: Reader,
) -> Result<ExitCode, Failure> {
    let opened = if flags.shared { Some(shared(config).await?) } else { None };
    let desk = desk(&flags, opened.as_ref().map(Opened::gate), reader).await?;
    let done = match flags.command {
        DrsCommand::Servers { ids } => list::servers(&desk, &ids).await,
        DrsCommand::Jobs { id: Some(id), .. } => list::job(&desk, &id).await,
        DrsCommand::Jobs { id: None, active } => list::jobs(&desk, active).await,
        DrsCommand::Capacity => list::capacity(&desk).await,
        DrsCommand::Recover(wanted) => recover::run(&desk, &wanted).await,
        DrsCommand::Terminate(wanted) => terminate::run(&desk, &wanted).await,
    };
    if let Some(opened) = opened {
        opened.close().await?;
    }
    done
}

async fn shared(config: Option<&Path>) -> Result<Opened, Failure> {
    let config = Config::load(config)?;
    Ok(open::for_command(&config.store, &config.fallback, Arc::new(SystemClock)).await?)
}

async fn desk(
    flags: &DrsFlags,
    gate: Option<Arc<dyn Gate>>,
    reader: Reader,
) -> Result<Desk, Failure> {
    let region = flags.region.clone().or_else(|| environment("AWS_REGION"));
    let region = region.ok_or_else(|| {
        invalid("no region; name one with --region, as in --region eu-central-1, or set AWS_REGION")
    })?;
    let mut builder = DrsClient::builder(region)
        .rate(Rate::new(TokenBucket::per_second(flags.rate).burst(flags.burst)))
        .clock(Arc::new(SystemClock) as Arc<dyn Clock>);
    if let Some(endpoint) = &flags.endpoint {
        builder = builder.endpoint(endpoint);
    }
    if let Some(arn) = &flags.role {
        let role = Role::new(arn);
        builder = builder.role(match &flags.external_id {
            Some(id) => role.external_id(id),
            None => role,
        });
    }
    if let Some(gate) = &gate {
        builder = builder.gate(Arc::clone(gate));
    }
    let client = builder.connect().await?;
    let throttler = JobThrottler::new(client.clone(), Settings::from_environment()?)?;
    let throttler = match gate {
        Some(gate) => throttler.slots(gate),
        None => throttler,
    };
    Ok(Desk { client, throttler, reader })
}

fn invalid(text: impl Into<String>) -> Failure {
    Failure::new(ErrorKind::Invalid, text)
}

impl From<tollgate_aws::Error> for Failure {
    fn from(error: tollgate_aws::Error) -> Self {
        match error {
            tollgate_aws::Error::Gate(error) => Self::Gate(error),
            tollgate_aws::Error::Invalid(text) => invalid(text),
            other => Self::new(ErrorKind::Unavailable, other.to_string()),
        }
    }
}
