//! The arguments of the command line. Help, completions and parsing all come from these structures.

mod audit;
mod convert;
mod examples;
#[cfg(feature = "gateway")]
mod gateway;
mod plan;
mod stores;
mod verbs;

pub(crate) use audit::{AuditCommand, AuditDenials, AuditHistory, AuditIncidents, Violation};
pub(crate) use convert::{Convert, ConvertCommand, ConvertEnvoy};
#[cfg(feature = "gateway")]
pub(crate) use gateway::{GatewayCheck, GatewayCommand};
pub(crate) use plan::{PlanFlags, PlanStore};
pub(crate) use stores::{
    Database, DynamodbCommand, Export, Import, PostgresCommand, PostgresInstall, Repair,
};
pub(crate) use verbs::{Acquire, PermitArgs, Settle, SubjectArgs};

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueHint};
use clap_complete::Shell;

use tollgate_terminal::output::OutputFormat;

/// Rate limits and quotas: may this go through now, and if not, when?
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, after_help = examples::TOP, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The arguments of every command.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// The configuration file; by default ./tollgate.toml, or built-in sample policies
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,

    /// Call a running broker, as in http://127.0.0.1:8080, instead of opening the store
    #[arg(long, global = true, value_name = "URL", value_hint = ValueHint::Url)]
    pub(crate) server: Option<String>,

    /// Certificate authorities to trust for a broker with https, as PEM; by default the system's
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) authority: Option<PathBuf>,

    /// The client certificate, as PEM
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
    /// Returns the format of the output.
    pub(crate) const fn format(&self) -> OutputFormat {
        if self.json { OutputFormat::Json } else { OutputFormat::Text }
    }
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Ask whether something may go through now
    ///
    /// Prints the permit, which settle and release take. Exits with 0 if admitted, 1 if denied, 2 if it could not be
    /// decided. A denial charges nothing.
    #[command(after_help = examples::ACQUIRE)]
    Acquire(Acquire),

    /// Replace the estimate of an admitted call by its actual cost
    ///
    /// Also frees slots. A unit that is not named keeps its estimate. Idempotent.
    #[command(after_help = examples::SETTLE)]
    Settle(Settle),

    /// Give a permit back, because the call was not made
    #[command(after_help = examples::RELEASE)]
    Release(PermitArgs),

    /// Extend the slots of a permit by another time to live
    #[command(after_help = examples::RENEW)]
    Renew(PermitArgs),

    /// Show the usage of a subject, consuming nothing
    #[command(after_help = examples::STANDING)]
    Standing(SubjectArgs),

    /// Delete the state of a subject, so that it starts with nothing used
    #[command(after_help = examples::RESET)]
    Reset(SubjectArgs),

    /// List and repair entries from the future, which a wrong clock wrote
    ///
    /// Such an entry denies its subject until its own time. Without --yes nothing is changed. With it, each is rewritten as
    /// used up now, so that its limits refill from now on. Check the clock first.
    #[command(after_help = examples::REPAIR)]
    Repair(Repair),

    /// Export the entries and overrides of the store, to move them to another store
    ///
    /// The document is JSON Lines with the time of the export. Stop the brokers on the store first: later admissions are not
    /// in it. Ids of asks are not exported. An entry that does not decode is reported and left out, and the command fails.
    #[command(after_help = examples::EXPORT)]
    Export(Export),

    /// Import the entries and overrides of an export into the store
    ///
    /// The whole export is checked before anything is written. Where the store has an entry already, the stricter state of each
    /// limit wins. Idempotent.
    #[command(after_help = examples::IMPORT)]
    Import(Import),

    /// Convert the limits of another program into a tollgate.toml
    Convert(Convert),

    /// Run as a drop-in for envoyproxy/ratelimit
    ///
    /// Reads the environment variables and the configuration files of that program and serves what it serves: gRPC on 8081,
    /// /healthcheck and /json on 8080, /rlconfig on 6070. docs/envoy-ratelimit.md lists every variable.
    #[command(after_help = examples::ENVOY_RATELIMIT)]
    EnvoyRatelimit {
        #[command(flatten)]
        no_server: stores::NoServer,
    },

    /// Report that a provider refused an admitted call
    ///
    /// Closes the limit until the provider accepts calls again, and records an incident: the state of every limit, the calls
    /// in flight and the last acquisitions. With --server the broker records it, which knows what it admitted.
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

    /// Create API keys for a broker
    #[command(subcommand)]
    Keys(KeysCommand),

    /// Watch a broker: rates, limited subjects, decisions and the health of its store
    ///
    /// Redraws every second until q is pressed; tab and the arrows move through the lists. Into a pipe, or with --once, it
    /// prints one screen and exits.
    #[command(after_help = examples::WATCH)]
    Top(Top),

    /// Set up a DynamoDB table
    #[command(subcommand)]
    Dynamodb(DynamodbCommand),

    /// Set up a PostgreSQL database
    #[command(subcommand)]
    Postgres(PostgresCommand),

    /// Show past denials and incidents
    #[command(subcommand)]
    Audit(AuditCommand),

    /// Check the upstreams of the gateway for LLM APIs, which serve runs
    #[cfg(feature = "gateway")]
    #[command(subcommand)]
    Gateway(GatewayCommand),

    #[cfg(not(feature = "gateway"))]
    #[command(hide = true)]
    Gateway(NotCompiled),

    /// Recover servers with AWS Elastic Disaster Recovery, within its limits
    #[cfg(feature = "drs")]
    Drs(Box<tollgate_drs::command::DrsArgs>),

    #[cfg(not(feature = "drs"))]
    #[command(hide = true)]
    Drs(NotCompiled),

    /// Translate a long document with a language model, within the provider's quota
    ///
    /// Prints the plan and asks for confirmation. A job that is interrupted or killed can be resumed. Exits with 0 if the document is
    /// complete, 1 if it is not (a chunk failed, the job is paused or was stopped), 2 on an error.
    #[cfg(feature = "translate")]
    Translate(Box<tollgate_translate::command::TranslateArgs>),

    #[cfg(not(feature = "translate"))]
    #[command(hide = true)]
    Translate(NotCompiled),

    /// Print a completion script for a shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions {
        /// Which shell
        shell: Shell,
    },
}

/// The arguments of an application that this build does not have.
#[cfg(not(all(feature = "drs", feature = "gateway", feature = "translate")))]
#[derive(Debug, Args)]
pub(crate) struct NotCompiled {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    _arguments: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Create a key, and print it once with its section of the configuration
    ///
    /// Programs send it as Authorization: Bearer KEY, Redis clients as their password, and this command line takes it from
    /// the variable TOLLGATE_KEY. With --gateway it is the API key of a client of the gateway, and allows nothing else.
    #[command(after_help = examples::KEYS_NEW)]
    New(KeysNew),
}

#[derive(Debug, Args)]
pub(crate) struct KeysNew {
    /// The name of the key
    pub(crate) name: String,
    /// A scope: acquire, inspect or administer; may be given several times
    #[arg(
        long = "scope",
        value_name = "SCOPE",
        required_unless_present = "gateway",
        conflicts_with = "gateway"
    )]
    pub(crate) scopes: Vec<String>,
    /// Create a key of the gateway for LLM APIs, as a [[gateway.key]]
    #[arg(long)]
    pub(crate) gateway: bool,
    /// The subject that calls with the key are charged to, by default its name
    #[arg(long)]
    pub(crate) subject: Option<String>,
    /// The team of the key
    #[arg(long)]
    pub(crate) team: Option<String>,
    /// When the key expires, as in 2027-01-01T00:00:00Z
    #[arg(long, value_name = "TIME")]
    pub(crate) expires: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Print one screen and exit
    #[arg(long)]
    pub(crate) once: bool,
    /// Also show the usage of a subject
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

    /// Override the numbers of a policy for one subject, or for a pattern as in 'eu-*', in the store
    ///
    /// Usage is kept, so there is no free burst. Every broker on the store applies it within seconds. It takes precedence over
    /// an override in the configuration.
    #[command(after_help = examples::OVERRIDE)]
    Override(Override),
}

#[derive(Debug, Args)]
pub(crate) struct Override {
    #[command(flatten)]
    pub(crate) of: SubjectArgs,
    /// A new value, as in burst.capacity=100; may be given several times
    #[arg(
        long = "set",
        value_name = "LIMIT.FIELD=VALUE",
        required_unless_present_any = ["block", "unlimited", "weight", "remove"]
    )]
    pub(crate) set: Vec<String>,
    /// Refuse everything
    #[arg(long, conflicts_with_all = ["set", "unlimited"])]
    pub(crate) block: bool,
    /// Refuse nothing; usage still counts, up to the limits
    #[arg(long, conflicts_with = "set")]
    pub(crate) unlimited: bool,
    /// How often the subject is served while it waits for a limit that it shares, compared with others: 1 to 1000
    #[arg(long, value_name = "N")]
    pub(crate) weight: Option<u64>,
    /// Remove the override
    #[arg(long, conflicts_with_all = ["set", "block", "unlimited", "weight"])]
    pub(crate) remove: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Lambda {
    /// The variable with the secret that permits are sealed with; by default the key in the store
    #[arg(long, value_name = "VARIABLE")]
    pub(crate) permit_key_env: Option<String>,
    /// Accept calls without a key
    #[arg(long)]
    pub(crate) allow_anonymous: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// The address of HTTP, as in 127.0.0.1:8080; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) http: Option<String>,
    /// The address of the Redis protocol, as in 127.0.0.1:6380, or off
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) resp: Option<String>,
    /// The address of gRPC and Envoy's rate limit service, as in 127.0.0.1:8081, or off
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) grpc: Option<String>,
    /// Accept calls without a key from other machines
    #[arg(long)]
    pub(crate) allow_anonymous: bool,
    /// The format of the log on standard error: text or json
    #[arg(long, value_name = "FORMAT")]
    pub(crate) log_format: Option<String>,
    /// The folder of the embedded store
    #[arg(long, value_name = "PATH", value_hint = ValueHint::DirPath)]
    pub(crate) data: Option<PathBuf>,
}

/// Returns whether `--json` is among `arguments`, which may be invalid.
pub(crate) fn asks_for_json(arguments: impl Iterator<Item = OsString>) -> bool {
    arguments.take_while(|argument| argument != "--").any(|argument| argument == "--json")
}

/// Returns the error of clap in one line, without the usage.
pub(crate) fn for_programs(error: &clap::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let is_about_help = |part: &str| part.starts_with("Usage:") || part.starts_with("For more");
    let paragraphs = text.split("\n\n").take_while(|part| !is_about_help(part));
    let lines = paragraphs.map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.collect::<Vec<_>>().join("; ")
}
