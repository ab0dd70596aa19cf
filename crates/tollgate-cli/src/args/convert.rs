//! The arguments of `tollgate convert`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use super::examples;
use super::stores::NoServer;

#[derive(Debug, Args)]
pub(crate) struct Convert {
    #[command(subcommand)]
    pub(crate) command: ConvertCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConvertCommand {
    /// Convert the configuration of envoyproxy/ratelimit
    ///
    /// Prints a tollgate.toml with [[policy]] and [[envoy]] sections, and on standard error what it does not express. To run such a
    /// configuration as it is, name it in [envoy] ratelimit_config, or start tollgate envoy-ratelimit.
    #[command(after_help = examples::CONVERT_ENVOY)]
    EnvoyRatelimit(ConvertEnvoy),

    /// Convert the limits file of Limitador
    ///
    /// Prints a tollgate.toml with [[policy]] and [[envoy]] sections, and on standard error what it does not express.
    #[command(after_help = examples::CONVERT_LIMITADOR)]
    Limitador {
        /// The limits file, in YAML
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ConvertEnvoy {
    /// A YAML file, or a folder of them
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) path: PathBuf,
    /// Use rolling windows also for minutes, hours and days, so that no border admits twice the limit
    #[arg(long)]
    pub(crate) rolling: bool,
    /// Take a month for a calendar month instead of 30 days, as with USE_CALENDAR_MONTH_RATE_LIMIT
    #[arg(long)]
    pub(crate) calendar_months: bool,
    #[command(flatten)]
    pub(crate) no_server: NoServer,
}
