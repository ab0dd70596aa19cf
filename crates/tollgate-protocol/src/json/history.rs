//! Messages of `GET /v1/history` and `/v1/history/subject`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tollgate::core::bounds::NAME_BYTES_MAX;
use tollgate::{Error, ErrorKind, Span, Timestamp};

use super::audit::{check_length, since};
use super::serde_as;

/// The query of `GET /v1/history`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HistoryQuery {
    /// Only this policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Only since this time, as in `2026-11-15T05:45:00Z`, or since this long ago, as in `15m`; everything unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// The length of a bucket: `10s`, which is kept for an hour and is the default, or `5m`, which is kept for a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
}

/// The length of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HistoryStep {
    /// Ten seconds, for an hour.
    #[default]
    Fine,
    /// Five minutes, for a day.
    Coarse,
}

impl HistoryStep {
    /// Returns the length of a bucket.
    #[must_use]
    pub const fn span(self) -> Span {
        match self {
            Self::Fine => Span::from_secs(10),
            Self::Coarse => Span::from_mins(5),
        }
    }
}

impl HistoryQuery {
    /// Resolves the start and the step at `now`.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for an invalid time, step or name.
    pub fn resolve(&self, now: Timestamp) -> Result<(Timestamp, HistoryStep), Error> {
        check_length("policy", self.policy.as_deref(), NAME_BYTES_MAX)?;
        let step = match self.step.as_deref() {
            None | Some("10s") => HistoryStep::Fine,
            Some("5m") => HistoryStep::Coarse,
            Some(other) => {
                let text = format!("unknown step {other:?}; use \"10s\" or \"5m\"");
                return Err(Error::new(ErrorKind::Invalid, text));
            }
        };
        let since = self.since.as_deref().map(|text| since(text, now)).transpose()?;
        Ok((since.unwrap_or(Timestamp::EPOCH), step))
    }
}

/// The response of `GET /v1/history`: what this server decided in each bucket of time. Every server has its own history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryResponse {
    /// Identifies this server until it stops.
    pub broker: String,
    /// When this server started.
    #[serde(with = "serde_as::Time")]
    pub since: Timestamp,
    /// The time of this server, which is in the last bucket.
    #[serde(with = "serde_as::Time")]
    pub now: Timestamp,
    /// The length of a bucket in seconds.
    pub step_secs: u64,
    /// When the first bucket starts.
    #[serde(with = "serde_as::Time")]
    pub start: Timestamp,
    /// The number of buckets.
    pub buckets: usize,
    /// The policies, by name, without those that were never asked.
    pub policies: Vec<PolicyHistory>,
}

/// The decisions under one policy. Each series has a value for every bucket, or is omitted if all of them are zero.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct PolicyHistory {
    /// The name of the policy.
    pub name: String,
    /// Admitted asks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub admitted: Vec<u64>,
    /// Denied asks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<u64>,
    /// Asks that could not be decided.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<u64>,
    /// Asks that only shadow mode admitted; part of `admitted`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shadow_denied: Vec<u64>,
    /// Asks decided without the store; part of `admitted` and `refused`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub degraded: Vec<u64>,
    /// How many asks waited when the bucket was sampled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<u64>,
    /// The limits that refused, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<LimitHistory>,
}

/// The refusals of one limit.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct LimitHistory {
    /// The name of the limit.
    pub name: String,
    /// Asks that it refused.
    pub refused: Vec<u64>,
}

/// The response of `GET /v1/history/subject`: how much of each limit a subject used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SubjectHistoryResponse {
    /// Identifies this server until it stops.
    pub broker: String,
    /// The name of the policy.
    pub policy: String,
    /// The subject.
    pub subject: String,
    /// Since when this server watches the subject.
    #[serde(with = "serde_as::Time")]
    pub since: Timestamp,
    /// The time of this server, which is in the last bucket.
    #[serde(with = "serde_as::Time")]
    pub now: Timestamp,
    /// The length of a bucket in seconds.
    pub step_secs: u64,
    /// When the first bucket starts.
    #[serde(with = "serde_as::Time")]
    pub start: Timestamp,
    /// The number of buckets.
    pub buckets: usize,
    /// The limits, in the order of the policy.
    pub limits: Vec<LimitUsage>,
}

/// How much of one limit a subject used.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct LimitUsage {
    /// The name of the limit.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// The limit, as configured.
    pub limit: u64,
    /// The most that was used in each bucket; null for a bucket without a sample.
    pub used: Vec<Option<u64>>,
}
