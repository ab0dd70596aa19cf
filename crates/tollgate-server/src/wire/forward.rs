//! What a proxy asks before it passes a request on.

use serde::{Deserialize, Serialize};

/// The query of `GET /v1/forward-auth`, which whoever configures the proxy writes.
///
/// A field of the request counts only where the query names it, because most of them come from the proxy's own caller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "serve", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ForwardAuthQuery {
    /// The name of the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Instead of `policy`: the field of the request that names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_header: Option<String>,
    /// For whom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Instead of `subject`: the field of the request that names it, as in `X-Real-IP`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject_header: Option<String>,
    /// Of a field that is a list, as `X-Forwarded-For` is: which member is the subject, counted from the end, where the
    /// nearest proxy wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hops: Option<usize>,
    /// The cost of each unit, as in `requests=1,tokens=5`; without it one request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub costs: Option<String>,
    /// Instead of `costs`: the field of the request that has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub costs_header: Option<String>,
    /// The status of a refusal: 429 unless given, or 403 for nginx, which passes no 429 on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<u16>,
}
