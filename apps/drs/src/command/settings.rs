//! The settings of a command: flags, then environment variables, then defaults.

use std::path::PathBuf;

use crate::RetryOptions;
use crate::client::ClientOptions;
use tollgate::Span;
use tollgate::internal::edge::environment;

use super::args::{DrsArgs, DrsCommand};
use super::invalid;
use tollgate_terminal::Failure;

/// The file for the log of calls.
const LOG_VARIABLE: &str = "DRS_LOG";

/// Reads the environment variables; flags take precedence.
pub(super) fn read(flags: &DrsArgs) -> Result<ClientOptions, Failure> {
    let set = ClientOptions::from_environment()?;
    let level = flags.log_level.as_deref().map(str::parse).transpose();
    let settings = ClientOptions {
        rate: flags.rate.or(set.rate),
        burst: flags.burst.or(set.burst),
        max_retries: flags.max_retries.or(set.max_retries),
        base_delay: flags.base_delay.or(set.base_delay),
        max_delay: flags.max_delay.or(set.max_delay),
        role: flags.role.clone().or(set.role),
        external_id: flags.external_id.clone().or(set.external_id),
        alerts_topic: flags.alerts_topic.clone().or(set.alerts_topic),
        log_level: level?.or(set.log_level),
    };
    settings.check()?;
    if settings.external_id.is_some() && settings.role.is_none() {
        return Err(invalid("an external id is for a role; name the role with --role"));
    }
    Ok(settings)
}

/// Returns the file of the log of calls, if there is one.
pub(super) fn log(flags: &DrsArgs) -> Option<PathBuf> {
    let set = || environment(LOG_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    flags.log.clone().or_else(set)
}

/// Returns the default retries. A recovery retries for `--outage` while the service does not respond; other commands a few
/// times.
pub(super) fn retry(command: &DrsCommand) -> Result<RetryOptions, Failure> {
    let DrsCommand::Recover(wanted) = command else { return Ok(RetryOptions::default()) };
    let outage: Span = wanted.outage.parse().map_err(tollgate::Error::from)?;
    Ok(RetryOptions { max_retries: u32::MAX, deadline: Some(outage), ..RetryOptions::default() })
}
