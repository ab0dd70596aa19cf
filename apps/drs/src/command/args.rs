//! The arguments of `tollgate drs`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use tollgate::Span;

/// The arguments of `tollgate drs`.
#[derive(Debug, Args)]
pub struct DrsArgs {
    #[command(subcommand)]
    pub(super) command: DrsCommand,
    /// The region, as in eu-central-1; without it AWS_REGION
    #[arg(long, global = true)]
    pub(super) region: Option<String>,
    /// Another endpoint than the region's
    #[arg(long, global = true, value_name = "URL", value_hint = ValueHint::Url)]
    pub(super) endpoint: Option<String>,
    /// The role to assume first, as an ARN; without it DRS_ROLE_ARN
    #[arg(long, global = true, value_name = "ARN")]
    pub(super) role: Option<String>,
    /// The external id that the role requires; without it DRS_EXTERNAL_ID
    #[arg(long, global = true, value_name = "ID")]
    pub(super) external_id: Option<String>,
    /// Calls per second; without it DRS_RATE, or 10
    #[arg(long, global = true, value_name = "N")]
    pub(super) rate: Option<u64>,
    /// Calls at once; without it DRS_BURST, or 20
    #[arg(long, global = true, value_name = "N")]
    pub(super) burst: Option<u64>,
    /// Retries of a call; without it DRS_MAX_RETRIES, or 5 (recover: as many as fit into --outage)
    #[arg(long, global = true, value_name = "N")]
    pub(super) max_retries: Option<u32>,
    /// The delay before the first retry; without it DRS_BASE_DELAY, or 1s
    #[arg(long, global = true, value_name = "TIME", value_parser = str::parse::<Span>)]
    pub(super) base_delay: Option<Span>,
    /// The longest delay between retries, before jitter; without it DRS_MAX_DELAY, or 60s
    #[arg(long, global = true, value_name = "TIME", value_parser = str::parse::<Span>)]
    pub(super) max_delay: Option<Span>,
    /// The SNS topic to notify when all retries of a call failed, as an ARN; without it DRS_ALERTS_TOPIC_ARN, or the topic
    /// of [telemetry.sns]
    #[arg(long, global = true, value_name = "ARN")]
    pub(super) alerts_topic: Option<String>,
    /// Append the log of calls to this file as JSON lines, - for standard error; without it DRS_LOG
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) log: Option<PathBuf>,
    /// The least severity in the log: info, warning, error or critical; without it DRS_LOG_LEVEL, or warning
    #[arg(long, global = true, value_name = "LEVEL")]
    pub(super) log_level: Option<String>,
    /// Take tokens and job slots from the configured store, which other operators share
    #[arg(long, global = true)]
    pub(super) shared: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum DrsCommand {
    /// List source servers
    #[command(after_help = SERVERS)]
    Servers {
        /// Only these
        ids: Vec<String>,
    },

    /// List how servers would be launched: template, instance type, tags and private address
    #[command(after_help = LAUNCH_CONFIGURATIONS)]
    LaunchConfigurations {
        /// Only those of these source servers
        ids: Vec<String>,
    },

    /// List the jobs of the last two days, or show one with its log
    #[command(after_help = JOBS)]
    Jobs {
        /// The job to show
        id: Option<String>,
        /// Only jobs that are not completed
        #[arg(long, conflicts_with = "id")]
        active: bool,
    },

    /// Show how many jobs there are, and whether another may be started
    ///
    /// Exits with 1 if a new job would have to wait.
    #[command(after_help = CAPACITY)]
    Capacity,

    /// Recover servers, in jobs that fit into the quotas, and watch until each runs or failed
    ///
    /// Prints the plan and asks for confirmation. It can be interrupted at any time and continued with --resume; no server
    /// is started twice. A lock file excludes a second command on the same state file, and with --shared a lease in the
    /// store excludes one on the same servers from another machine. Servers that another caller is launching are refused
    /// before the start; later the command waits for them and counts them as launched. While DRS does not respond, it
    /// retries and says so. Exits with 1 if a server failed.
    #[command(after_help = RECOVER)]
    Recover(Recover),

    /// Terminate recovery instances
    #[command(after_help = TERMINATE)]
    Terminate(Terminate),
}

/// Flags of commands that ask before they change something.
#[derive(Debug, Args)]
pub(super) struct Confirmation {
    /// Print what would be done, and exit
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Confirm without asking
    #[arg(long)]
    pub(super) yes: bool,
}

#[derive(Debug, Args)]
pub(super) struct Recover {
    /// Source servers, as in s-0123456789abcdef0
    #[arg(conflicts_with = "resume")]
    pub(super) ids: Vec<String>,
    /// A file with a source server on each line; # starts a comment
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "resume")]
    pub(super) servers: Option<PathBuf>,
    /// Launch for a drill
    #[arg(long, conflicts_with = "resume")]
    pub(super) drill: bool,
    #[command(flatten)]
    pub(super) confirmation: Confirmation,
    /// The file with the progress
    #[arg(long, value_name = "FILE", default_value = "tollgate-recovery.json", value_hint = ValueHint::FilePath)]
    pub(super) state: PathBuf,
    /// Continue an interrupted recovery
    #[arg(long)]
    pub(super) resume: bool,
    /// The polling interval, as in 10s
    #[arg(long, value_name = "TIME", default_value = "10s")]
    pub(super) poll: String,
    /// How long to retry each call while DRS does not respond, as in 15m
    #[arg(long, value_name = "TIME", default_value = "15m")]
    pub(super) outage: String,
}

#[derive(Debug, Args)]
pub(super) struct Terminate {
    /// Recovery instances, as in i-0123456789abcdef0
    pub(super) ids: Vec<String>,
    /// All recovery instances of the source servers in this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) servers: Option<PathBuf>,
    #[command(flatten)]
    pub(super) confirmation: Confirmation,
}

const SERVERS: &str = "\
Examples:
  tollgate drs servers --region eu-central-1
  tollgate drs servers --region eu-central-1 --role arn:aws:iam::123456789012:role/recovery --json";

const LAUNCH_CONFIGURATIONS: &str = "\
Examples:
  tollgate drs launch-configurations --region eu-central-1
  tollgate drs launch-configurations s-0123456789abcdef0 --region eu-central-1 --json";

const JOBS: &str = "\
Examples:
  tollgate drs jobs --region eu-central-1 --active
  tollgate drs jobs drsjob-0123456789abcdef0 --region eu-central-1";

const CAPACITY: &str = "\
Examples:
  tollgate drs capacity --region eu-central-1
  tollgate drs capacity --region eu-central-1 --json";

const RECOVER: &str = "\
Examples:
  tollgate drs recover --region eu-central-1 --servers servers.txt --drill --dry-run
  tollgate drs recover s-0123456789abcdef0 --region eu-central-1 --yes
  tollgate drs recover --region eu-central-1 --resume";

const TERMINATE: &str = "\
Examples:
  tollgate drs terminate i-0123456789abcdef0 --region eu-central-1
  tollgate drs terminate --servers servers.txt --region eu-central-1 --dry-run";
