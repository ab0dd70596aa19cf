//! The response of `GET /v1/access`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The response of `GET /v1/access`: what the caller may do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AccessResponse {
    /// The name of its key; null where no key is required.
    pub key: Option<String>,
    /// What it may do: `acquire`, `inspect` and `administer`. A key that is sent as a password may only inspect.
    pub scopes: Vec<String>,
}
