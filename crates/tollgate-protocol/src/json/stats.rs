//! The response of `GET /v1/stats`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tollgate::Timestamp;

use super::serde_as;

/// The response of `GET /v1/stats`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StatsResponse {
    /// Identifies this server until it stops.
    #[serde(default)]
    pub broker: String,
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
    /// The gateway for LLM APIs; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<GatewayStats>,
}

/// The gateway for LLM APIs: its queue now, and its calls since it started.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct GatewayStats {
    /// Calls that wait for their quota.
    pub waiting: u64,
    /// The bytes of request bodies that it holds.
    pub held_bytes: u64,
    /// For how long the oldest waiting call has waited, in milliseconds; absent if none waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_wait_ms: Option<u64>,
    /// Calls that are at a provider.
    pub in_flight: u64,
    /// Each model at each upstream that a route serves there.
    pub deployments: Vec<DeploymentStats>,
}

/// The calls of one model at one upstream.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct DeploymentStats {
    /// The name of the upstream.
    pub upstream: String,
    /// Its dialect: `openai`, `anthropic` or `gemini`.
    pub dialect: String,
    /// The model, as the configuration names it.
    pub model: String,
    /// Calls that are at the provider.
    pub in_flight: u64,
    /// Calls that were sent.
    pub calls: u64,
    /// Calls that waited for their quota before they were sent.
    pub waited_calls: u64,
    /// How long they waited together, in milliseconds.
    pub waited_ms: u64,
    /// Input tokens that the provider reported.
    pub input_tokens: u64,
    /// Output tokens that the provider reported.
    pub output_tokens: u64,
    /// The mean time to the first byte of a response, in milliseconds; absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_byte_ms: Option<u64>,
    /// Calls that the provider refused although they were admitted.
    pub refused: u64,
    /// Until when no calls are sent there, because the provider refused one, is overloaded or cannot be reached; null if
    /// they are.
    #[serde(default, with = "serde_as::MaybeTime")]
    pub closed_until: Option<Timestamp>,
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
