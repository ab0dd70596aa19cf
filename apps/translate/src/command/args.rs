//! The arguments of `tollgate translate`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};

/// The arguments: a document to translate, or a command for existing jobs.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true, after_help = EXAMPLES)]
pub struct TranslateArgs {
    #[command(subcommand)]
    pub(super) command: Option<TranslateCommand>,
    #[command(flatten)]
    pub(super) create: CreateArgs,
}

impl TranslateArgs {
    /// Returns the address of `worker --metrics`.
    #[must_use]
    pub fn metrics_address(&self) -> Option<&str> {
        match &self.command {
            Some(TranslateCommand::Worker { metrics, .. }) => metrics.as_deref(),
            _ => None,
        }
    }

    /// Returns whether the command runs as an AWS Lambda function.
    #[must_use]
    pub const fn is_lambda(&self) -> bool {
        matches!(self.command, Some(TranslateCommand::Lambda { .. }))
    }
}

const EXAMPLES: &str = "\
Examples:
  tollgate translate book.md --to fr --plan
  tollgate translate page.html --to ar --strict
  tollgate translate book.epub --to fr --chapters 3-5
  tollgate translate book.md --to fr --sample 3
  tollgate translate - --format md --to fr --output page.fr.md --yes < page.md
  tollgate translate book.epub --to de --output buch.epub --glossary terms.csv --max-cost 2.50
  tollgate translate book.md --to fr --provider-url http://127.0.0.1:8080 --yes";

const JOBS_EXAMPLES: &str = "\
Examples:
  tollgate translate jobs
  tollgate translate jobs --json";

const STATUS_EXAMPLES: &str = "\
Examples:
  tollgate translate status book-fr-1f0c2a9b";

const RESUME_EXAMPLES: &str = "\
Examples:
  tollgate translate resume book-fr-1f0c2a9b
  tollgate translate resume book-fr-1f0c2a9b --retry-failed --model gemini-2.5-pro
  tollgate translate resume book-fr-1f0c2a9b --max-cost 5";

const CANCEL_EXAMPLES: &str = "\
Examples:
  tollgate translate cancel book-fr-1f0c2a9b";

const WORKER_EXAMPLES: &str = "\
Examples:
  tollgate translate worker --config tollgate.toml
  tollgate translate worker --workers 4 --key-file gemini.key
  tollgate translate worker --metrics 127.0.0.1:9464";

const LAMBDA_EXAMPLES: &str = "\
Examples:
  exec ./tollgate translate lambda --config tollgate.toml    # the file bootstrap of the function";

#[derive(Debug, Subcommand)]
pub(super) enum TranslateCommand {
    /// List the jobs, newest first
    #[command(after_help = JOBS_EXAMPLES)]
    Jobs,

    /// Show the progress and the failures of a job
    #[command(after_help = STATUS_EXAMPLES)]
    Status {
        /// The job
        id: String,
    },

    /// Continue a job that was stopped, killed or paused, and write its document
    ///
    /// Translated chunks are not paid again. For a finished job, it only writes the document.
    #[command(after_help = RESUME_EXAMPLES)]
    Resume(ResumeArgs),

    /// Cancel a job; pending calls are completed
    #[command(after_help = CANCEL_EXAMPLES)]
    Cancel {
        /// The job
        id: String,
    },

    /// Work on all jobs until stopped, beside other workers
    ///
    /// The section translate of the configuration names the store of the jobs; workers on many machines share PostgreSQL or DynamoDB.
    /// Documents are written by translate or resume.
    #[command(after_help = WORKER_EXAMPLES)]
    Worker {
        #[command(flatten)]
        provider: ProviderArgs,
        /// Serve metrics for Prometheus at /metrics of this address, as in 127.0.0.1:9464
        #[arg(long, value_name = "ADDRESS")]
        metrics: Option<String>,
    },

    /// Run as an AWS Lambda function that attempts one chunk for each event
    ///
    /// The event is {"jobId": "JOB"}. The response says what comes next: "chunk", "wait" with a time in until, or "end" with the
    /// state. deploy/translate.yaml has the function and the state machine that calls it.
    #[command(after_help = LAMBDA_EXAMPLES)]
    Lambda {
        #[command(flatten)]
        provider: ProviderArgs,
    },
}

/// The provider and the quota.
#[derive(Debug, Args)]
pub(super) struct ProviderArgs {
    /// The API of the provider; default: that of the job, gemini for a new one
    #[arg(long, value_enum)]
    pub(super) provider: Option<ProviderKind>,
    /// Another URL than the provider's own; plain http only for this machine, unless --plain-http is set
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    pub(super) provider_url: Option<String>,
    /// Allow unencrypted http to another machine, such as a model in your own network
    #[arg(long)]
    pub(super) plain_http: bool,
    /// Send no key, for a server without one
    #[arg(long, conflicts_with_all = ["key_env", "key_file"])]
    pub(super) no_key: bool,
    /// The variable with the key; default: GEMINI_API_KEY, GOOGLE_API_KEY, OPENAI_API_KEY or ANTHROPIC_API_KEY
    #[arg(long, value_name = "VARIABLE")]
    pub(super) key_env: Option<String>,
    /// The file with the key
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "key_env")]
    pub(super) key_file: Option<PathBuf>,
    /// The policy with the provider's limits, in requests and tokens; default: that of the job, gemini-free for a new one
    #[arg(long)]
    pub(super) policy: Option<String>,
    /// The subject of the quota, shared by all users of a key; default: that of the job, project for a new one
    #[arg(long)]
    pub(super) subject: Option<String>,
    /// The number of concurrent chunks
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(super) workers: usize,
}

/// The API of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub(super) enum ProviderKind {
    /// Gemini's generateContent
    Gemini,
    /// The chat completions of OpenAI and of compatible servers
    Openai,
    /// Anthropic's messages
    Anthropic,
}

/// How a job is run.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    pub(super) provider: ProviderArgs,
    /// The file to write; default: beside the source, as in book.fr.md
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) output: Option<PathBuf>,
    /// The budget in dollars, as in 2.50: the job is paused before it costs more; default: asks before it costs twice the plan
    #[arg(long, value_name = "DOLLARS")]
    pub(super) max_cost: Option<String>,
    /// The model
    #[arg(long)]
    pub(super) model: Option<String>,
    /// A file with prices, as JSON
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) prices: Option<PathBuf>,
    /// Exit when the job is paused, instead of waiting
    #[arg(long)]
    pub(super) no_wait: bool,
}

#[derive(Debug, Args)]
pub(super) struct ResumeArgs {
    /// The job
    pub(super) id: String,
    /// Repeat failed chunks, and nothing else
    #[arg(long)]
    pub(super) retry_failed: bool,
    #[command(flatten)]
    pub(super) run: RunArgs,
}

#[derive(Debug, Args)]
pub(super) struct CreateArgs {
    /// The document: .txt, .md, .html, .srt, .vtt or .epub; - is standard input
    #[arg(required = true, value_hint = ValueHint::FilePath)]
    pub(super) file: Option<PathBuf>,
    /// The target language, as in fr or pt-BR
    #[arg(long, required = true, value_name = "LANGUAGE")]
    pub(super) to: Option<String>,
    /// The format, if the file name does not tell: txt, md, html, srt, vtt or epub; default of standard input: txt
    #[arg(long)]
    pub(super) format: Option<String>,
    /// The language of the document; warns if another is detected
    #[arg(long, value_name = "LANGUAGE", default_value = "en")]
    pub(super) from: String,
    #[command(flatten)]
    pub(super) run: RunArgs,
    /// Refuse a document with an invalid page or cue, instead of warning
    #[arg(long)]
    pub(super) strict: bool,
    /// The chapters of a book to translate, in reading order, as in 3-5 or 1,4-; the others stay unchanged
    #[arg(long, value_name = "CHAPTERS")]
    pub(super) chapters: Option<String>,
    /// Write each paragraph followed by its translation
    #[arg(long)]
    pub(super) bilingual: bool,
    /// Terms and their translations, as CSV or JSON
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) glossary: Option<PathBuf>,
    /// Additional instructions for the model, as in "address the reader informally"
    #[arg(long, value_name = "TEXT")]
    pub(super) instructions: Option<String>,
    /// The size of a chunk, in tokens
    #[arg(long, value_name = "N", default_value_t = 3_500)]
    pub(super) chunk_tokens: u64,
    /// Enlarge chunks to fit the requests of one day
    #[arg(long, conflicts_with = "chunk_tokens")]
    pub(super) fit_rpd: bool,
    /// The goal to finish in this time, as in 24h; the plan says whether it is feasible
    #[arg(long, value_name = "TIME")]
    pub(super) within: Option<String>,
    /// Translate and show the first N paragraphs, and ask before the rest; without a terminal, exit
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100), conflicts_with_all = ["plan", "yes", "detach"])]
    pub(super) sample: Option<u16>,
    /// Print the plan, and exit
    #[arg(long)]
    pub(super) plan: bool,
    /// Start without confirmation
    #[arg(long)]
    pub(super) yes: bool,
    /// Store the job for workers, and exit
    #[arg(long)]
    pub(super) detach: bool,
}
