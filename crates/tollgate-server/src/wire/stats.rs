//! What the server counted.

use serde::{Deserialize, Serialize};
use tollgate::Timestamp;

use super::text;

/// The answer of `GET /v1/stats`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatsResponse {
    /// Since when this server counts.
    #[serde(with = "text::time")]
    pub since: Option<Timestamp>,
    /// The counts of each policy, in the order of the configuration.
    pub policies: Vec<PolicyCounts>,
}

/// How the asks under one policy were answered.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
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
