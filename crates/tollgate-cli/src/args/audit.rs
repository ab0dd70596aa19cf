//! The arguments of `audit` and `violation`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use super::{Database, examples};

#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// List users who reached the limit of a quota over a table in PostgreSQL
    #[command(after_help = examples::AUDIT_HISTORY)]
    History(AuditHistory),

    /// List admitted calls that a provider refused
    #[command(after_help = examples::AUDIT_INCIDENTS)]
    Incidents(AuditIncidents),

    /// List decisions in the audit log of a broker: who was limited, when and why
    ///
    /// Newest first. Calls the broker at --server, or at the address in the configuration.
    #[command(after_help = examples::AUDIT_DENIALS)]
    Denials(AuditDenials),
}

#[derive(Debug, Args)]
pub(crate) struct AuditDenials {
    /// Only of this policy
    #[arg(long)]
    pub(crate) policy: Option<String>,
    /// Only of this subject
    #[arg(long)]
    pub(crate) subject: Option<String>,
    /// Only from this time on, as in 2026-11-01T00:00:00Z, or this long ago, as in 24h
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,
    /// denied, shadow_denied, admitted, violated, degraded, or all
    #[arg(long, default_value = "denied")]
    pub(crate) outcome: String,
    /// The most records, up to 1000
    #[arg(long, default_value_t = 100, value_name = "N")]
    pub(crate) limit: usize,
    /// Only records before this one, for the page that follows
    #[arg(long, value_name = "NUMBER")]
    pub(crate) before: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct AuditHistory {
    #[command(flatten)]
    pub(crate) database: Database,
    /// The schema of the quota, as postgres install printed it
    pub(crate) schema: String,
    /// From when, as in 2026-11-01T00:00:00Z; without it, from the beginning
    #[arg(long, value_name = "TIME")]
    pub(crate) from: Option<String>,
    /// Until when; without it, until now
    #[arg(long, value_name = "TIME")]
    pub(crate) to: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct AuditIncidents {
    /// The file; without it, the one in the configuration
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,
    /// Only from this time on, as in 2026-11-01T00:00:00Z, or this long ago, as in 24h
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,
    /// Only of this policy
    #[arg(long)]
    pub(crate) policy: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Violation {
    /// The name of the policy; with --permit it may be left out, and all charges of the permit are meant
    #[arg(required_unless_present = "permit")]
    pub(crate) policy: Option<String>,
    /// The subject
    #[arg(required_unless_present = "permit")]
    pub(crate) subject: Option<String>,
    /// The limit that the provider named; by default the one with the least remaining
    #[arg(long)]
    pub(crate) limit: Option<String>,
    /// How long the provider refuses calls, as in 30s
    #[arg(long, value_name = "TIME")]
    pub(crate) retry_after: String,
    /// The permit of the call that the provider refused; a broker's key without the scope administer needs it
    #[arg(long)]
    pub(crate) permit: Option<String>,
}
