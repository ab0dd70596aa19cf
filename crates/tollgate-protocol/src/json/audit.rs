//! Messages of `GET /v1/audit` and `/v1/audit/top`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tollgate::audit::{PAGE_MAX, Query, Record, RecordedCharge};
use tollgate::core::bounds::{NAME_BYTES_MAX, SUBJECT_BYTES_MAX};
use tollgate::{Costs, Error, ErrorKind, Span, Timestamp};

use super::serde_as;

/// The default number of records on a page.
const PAGE_DEFAULT: usize = 100;

/// The query of `GET /v1/audit`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditQuery {
    /// Only records about this policy: that of the record, or of one of its charges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Only records about this subject; with a policy, about its charge under that policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Only since this time, as in `2026-11-15T05:45:00Z`, or since this long ago, as in `24h`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Only `admitted`, `denied`, `shadow_denied`, `violated`, or `degraded` for decisions without the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// Only records before this one: the `next` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    /// At most so many, 100 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

impl AuditQuery {
    /// Resolves relative times and defaults at `now`.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for an invalid time, outcome or limit.
    pub fn resolve(&self, now: Timestamp) -> Result<Query, Error> {
        let limit = self.limit.unwrap_or(PAGE_DEFAULT);
        if limit == 0 || PAGE_MAX < limit {
            let text = format!("limit {limit} must be between 1 and {PAGE_MAX}");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        check_length("policy", self.policy.as_deref(), NAME_BYTES_MAX)?;
        check_length("subject", self.subject.as_deref(), SUBJECT_BYTES_MAX)?;
        let degraded = self.outcome.as_deref() == Some("degraded");
        let outcome = self.outcome.as_deref().filter(|_| !degraded).map(str::parse).transpose();
        Ok(Query {
            policy: self.policy.clone(),
            subject: self.subject.clone(),
            since: self.since.as_deref().map(|text| since(text, now)).transpose()?,
            outcome: outcome.map_err(|error| {
                Error::new(ErrorKind::Invalid, format!("{error}, and not degraded"))
            })?,
            degraded,
            before: self.before,
            limit,
        })
    }
}

/// Refuses a text that no record can have; an empty one is usually an unset variable of a script.
pub(super) fn check_length(name: &str, text: Option<&str>, bytes_max: usize) -> Result<(), Error> {
    match text.map_or(1, str::len) {
        length if length == 0 || bytes_max < length => {
            let text = format!(
                "{name} must be 1 to {bytes_max} bytes long, not {length}; leave it out for all"
            );
            Err(Error::new(ErrorKind::Invalid, text))
        }
        _ => Ok(()),
    }
}

/// Parses a time, or a duration before `now`.
pub(super) fn since(text: &str, now: Timestamp) -> Result<Timestamp, Error> {
    if let Ok(ago) = text.parse::<Span>() {
        let micros = now.as_micros().saturating_sub(ago.as_micros());
        return Ok(Timestamp::from_micros(micros));
    }
    text.parse().map_err(|_| {
        let text = format!(
            "since {text:?} is neither a time, as in 2026-11-15T05:45:00Z, nor a length of time, as in 24h"
        );
        Error::new(ErrorKind::Invalid, text)
    })
}

/// The response of `GET /v1/audit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditResponse {
    /// The records, newest first.
    pub records: Vec<AuditRecord>,
    /// The `before` of the next page; omitted on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
    /// True if the log could not be read, so that these are only this server's newest records.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

/// One record of the audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditRecord {
    /// Its number in the log.
    pub number: u64,
    /// When it was decided.
    #[serde(with = "serde_as::MaybeTime")]
    pub at: Option<Timestamp>,
    /// The name of the policy; of several charges, that of the one that binds, or of the first.
    pub policy: String,
    /// The subject of the same charge.
    pub subject: String,
    /// The outcome: `admitted`, `denied`, `shadow_denied` or `violated`; or an action: `reset`, `overridden`,
    /// `restored`, `closed`, `charged`, `reloaded` or `unauthenticated`.
    pub outcome: String,
    /// The binding limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// Its unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// The cost in that unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<u64>,
    /// The wait in milliseconds, rounded up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// True if waiting does not help, because the cost is larger than the limit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub never: bool,
    /// Whether it was decided without the store.
    pub degraded: bool,
    /// The name of the API key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Every charge, in the order of the ask; omitted if it had only one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub charges: Vec<AuditCharge>,
}

/// One charge of an ask with several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditCharge {
    /// The name of the policy.
    pub policy: String,
    /// The subject.
    pub subject: String,
    /// The cost in each unit, without those that are zero.
    #[serde(with = "serde_as::UnitCosts")]
    pub costs: Costs,
    /// The names of the limits that refused it; omitted if none did.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
}

impl From<&RecordedCharge> for AuditCharge {
    fn from(charge: &RecordedCharge) -> Self {
        Self {
            policy: charge.policy.to_string(),
            subject: charge.subject.to_string(),
            costs: charge.costs.clone(),
            refused: charge.refused.iter().map(ToString::to_string).collect(),
        }
    }
}

impl From<&Record> for AuditRecord {
    fn from(record: &Record) -> Self {
        let binding = record.binding.as_ref();
        let wait = binding.and_then(|binding| binding.retry_after);
        Self {
            number: record.number,
            at: Some(record.at),
            policy: record.policy.to_string(),
            subject: record.subject.to_string(),
            outcome: record.outcome.to_string(),
            limit: binding.map(|binding| binding.limit.to_string()),
            unit: binding.map(|binding| binding.unit.to_string()),
            asked: binding.map(|binding| binding.asked),
            retry_after_ms: wait.map(Span::as_millis_ceil),
            never: binding.is_some() && wait.is_none(),
            degraded: record.degraded,
            by: record.by.as_deref().map(str::to_owned),
            charges: record.charges.iter().map(Into::into).collect(),
        }
    }
}

/// The query of `GET /v1/audit/top`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TopQuery {
    /// At most so many, 100 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// The response of `GET /v1/audit/top`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TopResponse {
    /// Since when subjects are counted.
    #[serde(with = "serde_as::MaybeTime")]
    pub since: Option<Timestamp>,
    /// The subjects, most often limited first.
    pub subjects: Vec<LimitedSubject>,
}

/// How often a subject was limited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LimitedSubject {
    /// The name of the policy.
    pub policy: String,
    /// The subject.
    pub subject: String,
    /// An upper bound of the count.
    pub count: u64,
    /// The possible error: at least `count - error` is certain.
    pub error: u64,
}
