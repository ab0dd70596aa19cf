//! What the server counted.

use serde::{Deserialize, Serialize};
use tollgate::Timestamp;

use super::text;

/// The answer of `GET /v1/stats`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "serve", derive(schemars::JsonSchema))]
pub struct StatsResponse {
    /// Since when this server counts.
    #[serde(with = "text::MaybeTime")]
    pub since: Option<Timestamp>,
    /// The time of this server.
    #[serde(with = "text::MaybeTime")]
    pub now: Option<Timestamp>,
    /// The counts of each policy, in the order of the configuration; behind them those of `CL.THROTTLE`, if it was called.
    pub policies: Vec<PolicyCounts>,
    /// How long decisions took of late.
    pub latency: LatencyStats,
    /// What stands behind this server.
    pub store: StoreHealth,
    /// What became of the records of the audit.
    pub audit: AuditStats,
}

/// How long decisions took in the last minute or so, waits aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "serve", derive(schemars::JsonSchema))]
pub struct LatencyStats {
    /// How many decisions there were.
    pub decisions: u64,
    /// In how many milliseconds.
    pub within_ms: u64,
    /// Half of them took at most so many microseconds.
    pub p50_us: u64,
    /// 99 of 100 took at most so many microseconds.
    pub p99_us: u64,
}

/// The store behind a server, as the server sees it.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "serve", derive(schemars::JsonSchema))]
pub struct StoreHealth {
    /// What kind it is, as in configuration; empty if nobody said.
    pub kind: String,
    /// Whether decisions are made without it now, or were and it does not know all of them yet.
    pub degraded: bool,
    /// Since when; null if it is not degraded.
    #[serde(with = "text::MaybeTime")]
    pub degraded_since: Option<Timestamp>,
    /// Whether it can be reached but does not serve this server until its operator changes something.
    #[serde(default)]
    pub misconfigured: bool,
    /// How many subjects were let through without it that it does not know of yet.
    pub owing: usize,
}

/// What became of the records of the audit since the server started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "serve", derive(schemars::JsonSchema))]
pub struct AuditStats {
    /// Records that were written.
    pub recorded: u64,
    /// Records that were not, because the queue was full or the log out of order.
    pub dropped: u64,
}

/// How the asks under one policy were answered.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "serve", derive(schemars::JsonSchema))]
pub struct PolicyCounts {
    /// The name of the policy.
    pub name: String,
    /// Asks that went through.
    pub admitted: u64,
    /// Asks that did not go through.
    pub refused: u64,
    /// Asks that could not be decided.
    pub failed: u64,
    /// Asks that went through only because the policy is in shadow mode; part of `admitted`.
    pub shadow_denied: u64,
    /// Asks that were decided without the store; part of `admitted` and `refused`.
    pub degraded: u64,
}
