//! Whom a job calls, kept with it, so that whoever goes on with it need not know.

use serde::{Deserialize, Serialize};

/// Whom a job calls, and within which quota, by the names of whoever made it. The key is never kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Route {
    /// Whose interface the provider speaks.
    pub provider: Option<String>,
    /// Its address, if it is another than the provider's own.
    pub url: Option<String>,
    /// The policy with its limits.
    pub policy: Option<String>,
    /// For whom calls are counted.
    pub subject: Option<String>,
}

impl Route {
    /// This route where it says something, and `other` where it does not.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let is_same = self.provider.is_none() || self.provider == other.provider;
        Self {
            provider: self.provider.or(other.provider),
            // An address is one of its provider.
            url: self.url.or(other.url.filter(|_| is_same)),
            policy: self.policy.or(other.policy),
            subject: self.subject.or(other.subject),
        }
    }
}
