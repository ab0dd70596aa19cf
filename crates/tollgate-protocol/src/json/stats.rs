//! The response of `GET /v1/stats`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tollgate::Timestamp;

use super::serde_as;

/// The response of `GET /v1/stats`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StatsResponse {
    /// When this server started.
    #[serde(with = "serde_as::MaybeTime")]
    pub since: Option<Timestamp>,
    /// The time of this server.
    #[serde(with = "serde_as::MaybeTime")]
    pub now: Option<Timestamp>,
    /// The counts of each policy, in the order of the configuration; then those of `CL.THROTTLE`, if it was called.
    pub policies: Vec<PolicyCounts>,
    /// The latency of recent decisions.
    pub latency: LatencyStats,
    /// The store.
    pub store: StoreHealth,
    /// The records of the audit.
    pub audit: AuditStats,
}

/// The latency of decisions in the last minute or so, without waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct LatencyStats {
    /// The number of decisions.
    pub decisions: u64,
    /// The period in milliseconds.
    pub within_ms: u64,
    /// The median in microseconds.
    pub p50_us: u64,
    /// The 99th percentile in microseconds.
    pub p99_us: u64,
}

/// The store as the server sees it.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct StoreHealth {
    /// Its kind, as in the configuration; empty if unknown.
    pub kind: String,
    /// Whether decisions are made without it, or have not all been posted to it yet.
    pub degraded: bool,
    /// Since when it is degraded; null if it is not.
    #[serde(with = "serde_as::MaybeTime")]
    pub degraded_since: Option<Timestamp>,
    /// Whether it is reachable but does not serve this server until its operator changes something.
    #[serde(default)]
    pub misconfigured: bool,
    /// The number of subjects whose admissions have not been posted to it yet.
    pub owing: usize,
}

/// The records of the audit since the server started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct AuditStats {
    /// Written records.
    pub recorded: u64,
    /// Records that were dropped, because the queue was full or the log could not be written.
    pub dropped: u64,
}

/// The decisions under one policy.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct PolicyCounts {
    /// The name of the policy.
    pub name: String,
    /// Admitted asks.
    pub admitted: u64,
    /// Denied asks.
    pub refused: u64,
    /// Asks that could not be decided.
    pub failed: u64,
    /// Asks that only shadow mode admitted; part of `admitted`.
    pub shadow_denied: u64,
    /// Asks decided without the store; part of `admitted` and `refused`.
    pub degraded: u64,
}
