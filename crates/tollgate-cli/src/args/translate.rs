//! The flags of `tollgate translate`, as they are typed.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};

use super::examples;

/// A document to translate, or what to do with jobs that are there.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct TranslateFlags {
    #[command(subcommand)]
    pub(crate) command: Option<TranslateCommand>,
    #[command(flatten)]
    pub(crate) making: Making,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TranslateCommand {
    /// List the jobs, newest first
    #[command(after_help = examples::TRANSLATE_JOBS)]
    Jobs,

    /// Show how far a job is, and what went wrong in it
    #[command(after_help = examples::TRANSLATE_STATUS)]
    Status {
        /// The job
        id: String,
    },

    /// Go on with a job that was stopped, killed or paused, and write its document
    ///
    /// What is translated is not paid again. Of a job that is over, it writes the document.
    #[command(after_help = examples::TRANSLATE_RESUME)]
    Resume(Resume),

    /// Give a job up; calls that are under way are finished
    #[command(after_help = examples::TRANSLATE_CANCEL)]
    Cancel {
        /// The job
        id: String,
    },

    /// Work on every job there is until told to stop, beside other workers
    ///
    /// Jobs are those of the table translate in the configuration; in PostgreSQL or DynamoDB workers on many machines share them. Documents are
    /// written by translate or resume.
    #[command(after_help = examples::TRANSLATE_WORKER)]
    Worker {
        #[command(flatten)]
        provided: Provided,
        /// Serve what is counted at /metrics of this address, for Prometheus, as in 127.0.0.1:9464
        #[arg(long, value_name = "ADDRESS")]
        metrics: Option<String>,
    },

    /// Run as an AWS Lambda function that attempts one chunk for each event
    ///
    /// The event is {"id": "JOB"}. The answer says what comes next: "chunk", "wait" with a time in until, or "end" with the
    /// state. deploy/translate.yaml has the function and the state machine that calls it.
    #[command(after_help = examples::TRANSLATE_LAMBDA)]
    Lambda {
        #[command(flatten)]
        provided: Provided,
    },
}

/// Which provider, and which quota it is called within.
#[derive(Debug, Args)]
pub(crate) struct Provided {
    /// Whose interface it is; without it the job's own, and gemini for a new one
    #[arg(long, value_enum)]
    pub(crate) provider: Option<ProviderKind>,
    /// Another address than the provider's own; plain http is for this machine only, unless --plain-http is there
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    pub(crate) provider_url: Option<String>,
    /// Allow plain http to another machine, such as a model in your own network: everybody on the way can read text and key
    #[arg(long)]
    pub(crate) plain_http: bool,
    /// Send no key, for a server that wants none
    #[arg(long, conflicts_with_all = ["key_env", "key_file"])]
    pub(crate) no_key: bool,
    /// The variable with the key; without it GEMINI_API_KEY, GOOGLE_API_KEY or OPENAI_API_KEY
    #[arg(long, value_name = "VARIABLE")]
    pub(crate) key_env: Option<String>,
    /// The file with the key
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "key_env")]
    pub(crate) key_file: Option<PathBuf>,
    /// The policy with the provider's limits: units requests and tokens; without it the job's own, and gemini-free for a new one
    #[arg(long)]
    pub(crate) policy: Option<String>,
    /// For whom calls are counted; everybody with the same key has the same one. Without it the job's own, and project for a new one
    #[arg(long)]
    pub(crate) subject: Option<String>,
    /// How many chunks are translated at once
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) workers: usize,
}

/// Whose interface a provider speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub(crate) enum ProviderKind {
    /// Gemini's generateContent
    Gemini,
    /// The chat completions of OpenAI and of servers that are compatible
    Openai,
}

/// How a job is worked on.
#[derive(Debug, Args)]
pub(crate) struct Working {
    #[command(flatten)]
    pub(crate) provided: Provided,
    /// Where the document is written; without it beside the source, as in book.fr.md
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
    /// The job is paused before it costs more than this, in dollars, as in 2.50; without it, you are asked before it costs twice the plan
    #[arg(long, value_name = "DOLLARS")]
    pub(crate) max_cost: Option<String>,
    /// The model
    #[arg(long)]
    pub(crate) model: Option<String>,
    /// Prices of your own, as JSON
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) prices: Option<PathBuf>,
    /// End when the job is paused, instead of waiting until it goes on
    #[arg(long)]
    pub(crate) no_wait: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Resume {
    /// The job
    pub(crate) id: String,
    /// Try again what was given up, and nothing else
    #[arg(long)]
    pub(crate) retry_failed: bool,
    #[command(flatten)]
    pub(crate) working: Working,
}

#[derive(Debug, Args)]
pub(crate) struct Making {
    /// The document: .txt, .md, .html, .srt, .vtt or .epub; - is standard input
    #[arg(required = true, value_hint = ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,
    /// The language to translate into, as in fr or pt-BR
    #[arg(long, required = true, value_name = "LANGUAGE")]
    pub(crate) to: Option<String>,
    /// The format, where the name of the file does not say it: txt, md, html, srt, vtt or epub. Standard input is txt without it
    #[arg(long)]
    pub(crate) format: Option<String>,
    /// The language of the document; if it seems to be in another, you are warned
    #[arg(long, value_name = "LANGUAGE", default_value = "en")]
    pub(crate) from: String,
    #[command(flatten)]
    pub(crate) working: Working,
    /// Refuse a document with a page or a cue that is ill-formed, instead of reading it as far as possible with a warning
    #[arg(long)]
    pub(crate) strict: bool,
    /// The chapters of a book to translate, by their order of reading, as in 3-5 or 1,4-; the others stay as they are
    #[arg(long, value_name = "CHAPTERS")]
    pub(crate) chapters: Option<String>,
    /// Keep each paragraph, with its translation behind it
    #[arg(long)]
    pub(crate) bilingual: bool,
    /// Terms and their translations, as CSV or JSON
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) glossary: Option<PathBuf>,
    /// What the model should know besides, as in "address the reader informally"
    #[arg(long, value_name = "TEXT")]
    pub(crate) instructions: Option<String>,
    /// The size of a chunk, in tokens
    #[arg(long, value_name = "N", default_value_t = 3_500)]
    pub(crate) chunk_tokens: u64,
    /// Make chunks as large as it takes to fit the requests of one day
    #[arg(long, conflicts_with = "chunk_tokens")]
    pub(crate) fit_rpd: bool,
    /// The wish to be done in this time, as in 24h; the plan says whether it can be
    #[arg(long, value_name = "TIME")]
    pub(crate) within: Option<String>,
    /// Translate the first N paragraphs, show them, and ask before the rest; without a terminal it ends there
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100), conflicts_with_all = ["plan", "yes", "detach"])]
    pub(crate) sample: Option<u16>,
    /// Print the plan, and end
    #[arg(long)]
    pub(crate) plan: bool,
    /// Start without asking
    #[arg(long)]
    pub(crate) yes: bool,
    /// Keep the job for workers, and end
    #[arg(long)]
    pub(crate) detach: bool,
}
