//! The flags of `tollgate drs`, as they are typed.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use super::examples;
use tollgate::Span;

/// Which account, and how fast.
#[derive(Debug, Args)]
pub(crate) struct DrsFlags {
    #[command(subcommand)]
    pub(crate) command: DrsCommand,
    /// The region, as in eu-central-1; without it AWS_REGION
    #[arg(long, global = true)]
    pub(crate) region: Option<String>,
    /// Another address than the region's own
    #[arg(long, global = true, value_name = "URL", value_hint = ValueHint::Url)]
    pub(crate) endpoint: Option<String>,
    /// The role to assume first, as an ARN; without it DRS_ROLE_ARN
    #[arg(long, global = true, value_name = "ARN")]
    pub(crate) role: Option<String>,
    /// The external id that the role requires; without it DRS_EXTERNAL_ID
    #[arg(long, global = true, value_name = "ID")]
    pub(crate) external_id: Option<String>,
    /// Calls per second; without it DRS_RATE, or 10
    #[arg(long, global = true, value_name = "N")]
    pub(crate) rate: Option<u64>,
    /// Calls at once; without it DRS_BURST, or 20
    #[arg(long, global = true, value_name = "N")]
    pub(crate) burst: Option<u64>,
    /// Retries of a call; without it DRS_MAX_RETRIES, or 5 (recover: as many as fit into --outage)
    #[arg(long, global = true, value_name = "N")]
    pub(crate) max_retries: Option<u32>,
    /// The delay before the first retry; without it DRS_BASE_DELAY, or 1s
    #[arg(long, global = true, value_name = "TIME", value_parser = str::parse::<Span>)]
    pub(crate) base_delay: Option<Span>,
    /// The longest delay between retries, before jitter; without it DRS_MAX_DELAY, or 60s
    #[arg(long, global = true, value_name = "TIME", value_parser = str::parse::<Span>)]
    pub(crate) max_delay: Option<Span>,
    /// The SNS topic that is told when all retries of a call failed, as an ARN; without it DRS_ALERTS_TOPIC_ARN, or the topic of
    /// [telemetry.sns]
    #[arg(long, global = true, value_name = "ARN")]
    pub(crate) alerts_topic: Option<String>,
    /// Append the log of calls to this file as JSON lines, - for standard error; without it DRS_LOG
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) log: Option<PathBuf>,
    /// The least severity in the log: info, warning, error or critical; without it DRS_LOG_LEVEL, or warning
    #[arg(long, global = true, value_name = "LEVEL")]
    pub(crate) log_level: Option<String>,
    /// Take tokens and places for jobs from the configured store, which other operators share
    #[arg(long, global = true)]
    pub(crate) shared: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DrsCommand {
    /// List source servers
    #[command(after_help = examples::DRS_SERVERS)]
    Servers {
        /// Only these
        ids: Vec<String>,
    },

    /// List how servers would be launched: template, instance type, tags and private address
    #[command(after_help = examples::DRS_LAUNCH_CONFIGURATIONS)]
    LaunchConfigurations {
        /// Only those of these source servers
        ids: Vec<String>,
    },

    /// List the jobs of the last two days, or show one with its log
    #[command(after_help = examples::DRS_JOBS)]
    Jobs {
        /// The job to show
        id: Option<String>,
        /// Only jobs that are not completed
        #[arg(long, conflicts_with = "id")]
        active: bool,
    },

    /// Say how many jobs there are, and whether another may be started
    ///
    /// Exits with 1 if a new job would have to wait.
    #[command(after_help = examples::DRS_CAPACITY)]
    Capacity,

    /// Recover servers, in jobs that fit into the quotas, and watch until each runs or failed
    ///
    /// Prints the plan first and asks. It can be interrupted at any time, and goes on with --resume: no server is started
    /// twice. A lock beside the state file refuses a second command on it, and with --shared a lease in the store refuses
    /// one on the same servers from another machine. Servers that another caller is launching are refused before the
    /// start; later they are waited for, and count as launched. While DRS does not answer, it tries again and says so.
    /// Exits with 1 if a server failed.
    #[command(after_help = examples::DRS_RECOVER)]
    Recover(Recover),

    /// Terminate recovery instances
    #[command(after_help = examples::DRS_TERMINATE)]
    Terminate(Terminate),
}

/// What is asked before something is done.
#[derive(Debug, Args)]
pub(crate) struct Consent {
    /// Print what would be done, and end
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do it without asking
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Recover {
    /// Source servers, as in s-0123456789abcdef0
    #[arg(conflicts_with = "resume")]
    pub(crate) ids: Vec<String>,
    /// A file with a source server on each line; # starts a remark
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "resume")]
    pub(crate) servers: Option<PathBuf>,
    /// Launch for a drill
    #[arg(long, conflicts_with = "resume")]
    pub(crate) drill: bool,
    #[command(flatten)]
    pub(crate) consent: Consent,
    /// Where the progress is kept
    #[arg(long, value_name = "FILE", default_value = "tollgate-recovery.json", value_hint = ValueHint::FilePath)]
    pub(crate) state: PathBuf,
    /// Go on with what was interrupted
    #[arg(long)]
    pub(crate) resume: bool,
    /// How long to wait between looks, as in 10s
    #[arg(long, value_name = "TIME", default_value = "10s")]
    pub(crate) poll: String,
    /// How long to wait for each answer while DRS does not answer, as in 15m
    #[arg(long, value_name = "TIME", default_value = "15m")]
    pub(crate) outage: String,
}

#[derive(Debug, Args)]
pub(crate) struct Terminate {
    /// Recovery instances, as in i-0123456789abcdef0
    pub(crate) ids: Vec<String>,
    /// All recovery instances of the source servers in this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) servers: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) consent: Consent,
}
