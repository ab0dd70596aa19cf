//! The flags as they are typed. Nothing here is read, opened or resolved; [`crate::plan`] does the next step.
//!
//! Help, completions and parsing come from these structures alone, so they cannot drift apart.

mod examples;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueHint};
use clap_complete::Shell;

use crate::output::Reader;

/// Rate limits and quotas: may this go through now, and if not, when?
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, after_help = examples::TOP, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// The configuration; without it ./tollgate.toml, and without that built-in sample policies
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,

    /// Ask a running broker, as in http://127.0.0.1:8080, instead of opening the store
    #[arg(long, global = true, value_name = "URL", value_hint = ValueHint::Url)]
    pub(crate) server: Option<String>,

    /// Print JSON for programs: the bodies of the HTTP API, one line each
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

impl Global {
    /// Who reads what is printed.
    pub(crate) const fn reader(&self) -> Reader {
        if self.json { Reader::Program } else { Reader::Person }
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Ask whether something may go through now
    ///
    /// Prints the permit, which settle and release take. Exits with 0 if admitted, 1 if denied, 2 if it could not be
    /// decided. A denial charges nothing.
    #[command(after_help = examples::ACQUIRE)]
    Acquire(Acquire),

    /// Say what an admitted call really cost
    ///
    /// Replaces the estimate by the actual cost and frees slots. A unit that is not named keeps its estimate. The second
    /// time changes nothing.
    #[command(after_help = examples::SETTLE)]
    Settle(Settle),

    /// Give a permit back, because the call was not made
    #[command(after_help = examples::RELEASE)]
    Release(OfPermit),

    /// Keep the slots of a permit for another time to live
    #[command(after_help = examples::RENEW)]
    Renew(OfPermit),

    /// Show where a subject stands, consuming nothing
    #[command(after_help = examples::STANDING)]
    Standing(OfSubject),

    /// Forget everything about a subject, so that it starts with nothing used
    #[command(after_help = examples::RESET)]
    Reset(OfSubject),

    /// List the policies in force, or check a file
    #[command(after_help = examples::POLICIES)]
    Policies(Policies),

    /// Run the broker: HTTP and a dashboard
    #[command(after_help = examples::SERVE)]
    Serve(Serve),

    /// Print a completion script for a shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions {
        /// Which shell
        shell: Shell,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Acquire {
    /// The name of the policy
    pub(crate) policy: String,
    /// For whom
    pub(crate) subject: String,
    /// What it costs, as in tokens=3750. A unit that is not named costs 0, except requests, which costs 1
    #[arg(long = "cost", value_name = "UNIT=N")]
    pub(crate) costs: Vec<String>,
    /// Makes a repeat recognisable: the same id within two minutes is charged once
    #[arg(long)]
    pub(crate) id: Option<String>,
    /// Wait for room at most this long, as in 30s
    #[arg(long, value_name = "TIME")]
    pub(crate) wait: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Settle {
    /// The permit, as acquire printed it
    pub(crate) permit: String,
    /// What it really cost, as in tokens=3100
    #[arg(long = "actual", value_name = "UNIT=N")]
    pub(crate) actual: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct OfPermit {
    /// The permit, as acquire printed it
    pub(crate) permit: String,
}

#[derive(Debug, Args)]
pub(crate) struct OfSubject {
    /// The name of the policy
    pub(crate) policy: String,
    /// For whom
    pub(crate) subject: String,
}

#[derive(Debug, Args)]
pub(crate) struct Policies {
    #[command(subcommand)]
    pub(crate) command: Option<PoliciesCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PoliciesCommand {
    /// Check a configuration file without opening anything
    #[command(after_help = examples::CHECK)]
    Check {
        /// The file
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Where to listen, as in 127.0.0.1:8080; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) http: Option<String>,
    /// The folder of the embedded store
    #[arg(long, value_name = "PATH", value_hint = ValueHint::DirPath)]
    pub(crate) data: Option<PathBuf>,
}

/// Whether `--json` is among `arguments`, of which the rest may be wrong.
pub(crate) fn asks_for_json(arguments: impl Iterator<Item = OsString>) -> bool {
    arguments.take_while(|argument| argument != "--").any(|argument| argument == "--json")
}

/// What is wrong with the flags, in one line without the usage.
pub(crate) fn for_programs(error: &clap::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let is_about_help = |part: &str| part.starts_with("Usage:") || part.starts_with("For more");
    let paragraphs = text.split("\n\n").take_while(|part| !is_about_help(part));
    let lines = paragraphs.map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.collect::<Vec<_>>().join("; ")
}
