//! The query of `GET /v1/forward-auth`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The query of `GET /v1/forward-auth`, from the proxy's configuration.
///
/// A header is used only if the query names it, because most headers come from the proxy's client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ForwardAuthQuery {
    /// The name of the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Instead of `policy`: the header that names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_header: Option<String>,
    /// The subject.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Instead of `subject`: the header that names it, as in `X-Real-IP`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject_header: Option<String>,
    /// Instead of policy and subject: up to eight of them, decided together, as in `user:{X-User},account:all`. A subject in
    /// braces is the header that names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub charges: Option<String>,
    /// The member of a list header such as `X-Forwarded-For` that is the subject, counted from the end, where the nearest
    /// proxy writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hops: Option<usize>,
    /// The cost of each unit, as in `requests=1,tokens=5`; without it one request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub costs: Option<String>,
    /// Instead of `costs`: the header that has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub costs_header: Option<String>,
    /// The status of a denial: 429 by default, or 403 for nginx, which does not forward a 429.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<u16>,
}
