//! The arguments of `dynamodb`, `postgres`, `repair`, `export` and `import`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use super::examples;

#[derive(Debug, Subcommand)]
pub(crate) enum DynamodbCommand {
    /// Create the table of the configured store, if it is missing
    ///
    /// Billing is by request, and items expire seven days after their last use. Idempotent.
    #[command(after_help = examples::DYNAMODB_CREATE_TABLE)]
    CreateTable,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PostgresCommand {
    /// Make the tables and functions of the store, or of a quota over a table of yours
    ///
    /// Without --table it makes or updates the tables of the store. With --table it writes functions into the database
    /// that count the rows of that table per user in a rolling window, and makes the index they need. The functions run
    /// with the rights of the owner of the table; the GRANT statements that let other roles call them are printed, and
    /// grants of an earlier install are kept. Both can be done again at any time. With --print the SQL goes to standard
    /// output, for `psql -v ON_ERROR_STOP=1 -f` or a migration tool, and no database is needed.
    #[command(after_help = examples::POSTGRES_INSTALL)]
    Install(PostgresInstall),
}

#[derive(Debug, Args)]
pub(crate) struct Repair {
    /// Repair the entries instead of only listing them
    #[arg(long, visible_alias = "apply")]
    pub(crate) yes: bool,
    /// Take only entries that are more than this ahead of the store's time
    #[arg(long, default_value = "5m", value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) ahead: String,
    /// Repair although the store last saw a later time than the clock shows, because the clock was checked
    #[arg(long, requires = "yes")]
    pub(crate) clock_is_right: bool,
    #[command(flatten)]
    pub(crate) no_server: NoServer,
}

#[derive(Debug, Args)]
pub(crate) struct Export {
    /// Write to this file instead of standard output
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) to: Option<PathBuf>,
    /// Take only the entries and overrides of this policy
    #[arg(long, value_name = "NAME")]
    pub(crate) policy: Option<String>,
    /// Include the secret key of permits, so that permits in flight stay valid; keep the export as secret as the key
    #[arg(long)]
    pub(crate) with_permit_key: bool,
    #[command(flatten)]
    pub(crate) no_server: NoServer,
}

#[derive(Debug, Args)]
pub(crate) struct Import {
    /// The export; without it, or with -, standard input
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,
    /// Print what would be done, and exit
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Confirm without asking
    #[arg(long)]
    pub(crate) yes: bool,
    /// Import an export that is truncated
    #[arg(long)]
    pub(crate) partial: bool,
    /// Replace overrides that the store has for the same policy and subject
    #[arg(long)]
    pub(crate) overwrite_overrides: bool,
    /// Write entries that are ahead of the store's time as used up now, instead of refusing the export
    #[arg(long)]
    pub(crate) mend_future: bool,
    #[command(flatten)]
    pub(crate) no_server: NoServer,
}

/// Hides the broker's flags from the help of a command that refuses them.
#[derive(Debug, Args)]
pub(crate) struct NoServer {
    #[arg(long, hide = true)]
    server: Option<String>,
    #[arg(long, hide = true)]
    authority: Option<PathBuf>,
    #[arg(long, hide = true)]
    client_cert: Option<PathBuf>,
    #[arg(long, hide = true)]
    client_key: Option<PathBuf>,
}

/// The database, if it is not the configured store.
#[derive(Debug, Args)]
pub(crate) struct Database {
    /// The variable that holds the url of the database; without it, the configured store
    #[arg(long, value_name = "VARIABLE")]
    pub(crate) url_env: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PostgresInstall {
    #[command(flatten)]
    pub(crate) database: Database,
    /// The table whose rows are counted, with its schema if it is not on the search path; names are literal, or quoted as
    /// in app."Orders"
    #[arg(long)]
    pub(crate) table: Option<String>,
    /// How many rows a user may have in the window
    #[arg(long, default_value_t = 5, requires = "table")]
    pub(crate) limit: u32,
    /// How long a row counts, as in 24h
    #[arg(long, default_value = "24h", value_name = "TIME", requires = "table")]
    pub(crate) window: String,
    /// The column that says whose row it is
    #[arg(long, default_value = "user_id", value_name = "COLUMN", requires = "table")]
    pub(crate) user_column: String,
    /// The column that says when, of type timestamptz
    #[arg(long, default_value = "created_at", value_name = "COLUMN", requires = "table")]
    pub(crate) time_column: String,
    /// The column of idempotency keys; without one, keys are kept in a table beside
    #[arg(long, value_name = "COLUMN", requires = "table")]
    pub(crate) key_column: Option<String>,
    /// Count only rows with this value, as in status=done; several values of one column are alternatives
    #[arg(long, value_name = "COLUMN=VALUE", requires = "table")]
    pub(crate) only: Vec<String>,
    /// Count no row with this value, as in status=failed
    #[arg(long, value_name = "COLUMN=VALUE", requires = "table", conflicts_with = "only")]
    pub(crate) except: Vec<String>,
    /// The schema for the functions; by default the name of the table with _quota behind
    #[arg(long, requires = "table")]
    pub(crate) schema: Option<String>,
    /// Take a time column without a zone for UTC
    #[arg(long, requires = "table")]
    pub(crate) utc: bool,
    /// Also refuse inserts and updates by others that evade the quota, by a trigger with SQLSTATE RL429
    #[arg(long, requires = "table")]
    pub(crate) trigger: bool,
    /// Print the SQL instead of running it, without a connection; a table without a schema is taken to be in public
    #[arg(long, conflicts_with = "url_env")]
    pub(crate) print: bool,
    /// The type of the user column, which --print cannot look up
    #[arg(long, default_value = "text", value_name = "TYPE", requires_all = ["print", "table"])]
    pub(crate) user_type: String,
    /// The type of the key column, which --print cannot look up
    #[arg(long, default_value = "text", value_name = "TYPE", requires_all = ["print", "key_column"])]
    pub(crate) key_type: String,
}
