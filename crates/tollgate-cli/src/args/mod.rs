//! The flags as they are typed. Nothing here is read, opened or resolved; [`crate::intent`] does the next step.
//!
//! Help, completions and parsing come from these structures alone, so they cannot drift apart.

mod audit;
mod drs;
mod examples;
mod plan;
mod stores;
mod translate;
mod verbs;

pub(crate) use audit::{AuditCommand, AuditDenials, AuditHistory, AuditIncidents, Violation};
pub(crate) use drs::{DrsCommand, DrsFlags, Recover, Terminate};
pub(crate) use plan::{PlanFlags, PlanStore};
pub(crate) use stores::{
    Database, DynamodbCommand, Export, Import, PostgresCommand, PostgresInstall, Repair,
};
pub(crate) use translate::{
    Making, Provided, ProviderKind, Resume, TranslateCommand, TranslateFlags, Working,
};
pub(crate) use verbs::{Acquire, OfPermit, OfSubject, Settle};

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

    /// Certificates to trust for a broker with https, as PEM; without it the machine's own
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) authority: Option<PathBuf>,

    /// The certificate to show to a broker that asks for one, as PEM
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        requires = "client_key",
        value_hint = ValueHint::FilePath
    )]
    pub(crate) client_cert: Option<PathBuf>,

    /// The private key of --client-cert, as PEM
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        requires = "client_cert",
        value_hint = ValueHint::FilePath
    )]
    pub(crate) client_key: Option<PathBuf>,

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

    /// List entries from the future, which a wrong clock wrote, and mend them
    ///
    /// Such an entry refuses its subject until its own time. Without --yes nothing is changed. With it, each is rewritten as
    /// used up now, so that its limits refill as usual from here on. That is right only if the clock is: check it first.
    #[command(after_help = examples::REPAIR)]
    Repair(Repair),

    /// Write the entries and overrides of the store into a document, to move them to another store
    ///
    /// The document is JSON Lines with the time at which it was taken. Stop the brokers on the store first: what is admitted
    /// after that is not in it. Ids of asks are not moved. An entry that does not decode is named and left out, and the command fails.
    #[command(after_help = examples::EXPORT)]
    Export(Export),

    /// Read the entries and overrides of an export into the store
    ///
    /// The export is read and checked as a whole before anything is written. Where the store has an entry already, the strict
    /// side of each limit wins. Importing again is safe.
    #[command(after_help = examples::IMPORT)]
    Import(Import),

    /// Report that a provider refused what was admitted
    ///
    /// Closes the limit until the provider wants to be asked again, and writes an incident: where every limit stood, what
    /// was in flight, what was acquired last. With --server the broker does it, which knows what it admitted.
    #[command(after_help = examples::VIOLATION)]
    Violation(Violation),

    /// List the policies in force, override one for a subject, or check a file
    #[command(after_help = examples::POLICIES)]
    Policies(Policies),

    /// Run the broker: HTTP, gRPC, the Redis protocol and a dashboard
    #[command(after_help = examples::SERVE)]
    Serve(Serve),

    /// Run the broker as an AWS Lambda function behind a function URL
    ///
    /// A custom runtime that answers the HTTP calls of tollgate serve. Instances share nothing but the store, which decides
    /// every ask; metrics go to the log of the function ([telemetry.emf]). deploy/broker-lambda.yaml deploys it.
    #[command(after_help = examples::LAMBDA)]
    Lambda(Lambda),

    /// Compare the strategies for a policy, a fleet and its traffic
    ///
    /// Simulates every strategy with the same arrivals and prints what each admits, issues too much, refuses though there
    /// was room, adds in latency and costs in store operations, also while the store is away, and which to take.
    #[command(after_help = examples::PLAN)]
    Plan(Box<PlanFlags>),

    /// Make keys for a broker that asks for them
    #[command(subcommand)]
    Keys(KeysCommand),

    /// Watch a broker: what it admits and refuses, who is limited, how its store is
    ///
    /// Redraws every second until q is pressed; tab and the arrows move through the lists. Into a pipe, or with --once, it
    /// prints what is there now and ends.
    #[command(after_help = examples::WATCH)]
    Top(Top),

    /// Set up a DynamoDB table
    #[command(subcommand)]
    Dynamodb(DynamodbCommand),

    /// Set up a PostgreSQL database
    #[command(subcommand)]
    Postgres(PostgresCommand),

    /// Look back: who reached a limit, and what providers refused
    #[command(subcommand)]
    Audit(AuditCommand),

    /// Recover servers with AWS Elastic Disaster Recovery, within its limits
    Drs(Box<DrsFlags>),

    /// Translate a long document with a language model, within the provider's quota
    ///
    /// Prints the plan first and asks. It can be interrupted or killed at any time and goes on where it was. Exits with 0 if
    /// the document is whole, 1 if it is not (a chunk was given up, the job is paused or was stopped), 2 on an error.
    #[command(after_help = examples::TRANSLATE)]
    Translate(Box<TranslateFlags>),

    /// Print a completion script for a shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions {
        /// Which shell
        shell: Shell,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Make a key, and print it once together with what to put into the configuration
    ///
    /// Programs send it as Authorization: Bearer KEY, Redis clients as their password, and this command line takes it from
    /// the variable TOLLGATE_KEY.
    #[command(after_help = examples::KEYS_NEW)]
    New(KeysNew),
}

#[derive(Debug, Args)]
pub(crate) struct KeysNew {
    /// What to call it
    pub(crate) name: String,
    /// What it allows: acquire, inspect or administer; may be given several times
    #[arg(long = "scope", value_name = "SCOPE", required = true)]
    pub(crate) scopes: Vec<String>,
    /// From when on it is refused, as in 2027-01-01T00:00:00Z
    #[arg(long, value_name = "TIME")]
    pub(crate) expires: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Print what is there now, and end
    #[arg(long)]
    pub(crate) once: bool,
    /// Show where a subject stands, too
    #[arg(long, num_args = 2, value_names = ["POLICY", "SUBJECT"])]
    pub(crate) standing: Option<Vec<String>>,
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

    /// Give one subject other numbers, kept in the store
    ///
    /// What was used stays used, so nobody gets a free burst. Every broker on the store has it within seconds. It wins over
    /// an override in the configuration, which stays as it is.
    #[command(after_help = examples::OVERRIDE)]
    Override(Override),
}

#[derive(Debug, Args)]
pub(crate) struct Override {
    #[command(flatten)]
    pub(crate) of: OfSubject,
    /// What changes, as in burst.capacity=100; may be given several times, and what is not named stays
    #[arg(long = "set", value_name = "LIMIT.FIELD=VALUE", required_unless_present = "remove")]
    pub(crate) set: Vec<String>,
    /// Give the subject the numbers of the configuration again
    #[arg(long, conflicts_with = "set")]
    pub(crate) remove: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Lambda {
    /// The variable that holds the secret that permits are sealed with; without it, the key that the store keeps
    #[arg(long, value_name = "VARIABLE")]
    pub(crate) permit_key_env: Option<String>,
    /// Let everybody in whom the function URL lets in, without a key
    #[arg(long)]
    pub(crate) allow_anonymous: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Where to listen for HTTP, as in 127.0.0.1:8080; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) http: Option<String>,
    /// Where to listen for the Redis protocol, as in 127.0.0.1:6380, or off
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) resp: Option<String>,
    /// Where to serve gRPC and Envoy's rate limit service, as in 127.0.0.1:8081, or off
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) grpc: Option<String>,
    /// Let everybody in who reaches an address beyond this machine, without a key
    #[arg(long)]
    pub(crate) allow_anonymous: bool,
    /// How to log, to standard error: text for people, or json for programs
    #[arg(long, value_name = "FORMAT")]
    pub(crate) log_format: Option<String>,
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
