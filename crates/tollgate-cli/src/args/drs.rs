//! The flags of `tollgate drs`, as they are typed.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use super::examples;

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
    /// The role to assume first, as an ARN
    #[arg(long, global = true, value_name = "ARN")]
    pub(crate) role: Option<String>,
    /// What the role asks for besides
    #[arg(long, global = true, value_name = "ID", requires = "role")]
    pub(crate) external_id: Option<String>,
    /// Calls per second
    #[arg(long, global = true, value_name = "N", default_value_t = 10)]
    pub(crate) rate: u64,
    /// Calls at once
    #[arg(long, global = true, value_name = "N", default_value_t = 20)]
    pub(crate) burst: u64,
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
