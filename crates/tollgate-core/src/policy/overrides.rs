//! Other numbers for single subjects: finding the policy that applies to one, and a policy with some of them changed.

use std::collections::HashMap;

use super::{Limit, Policy};
use crate::error::Error;

/// What one subject has of its own under a policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    /// All limits, with the names and units of the policy's.
    pub limits: Vec<Limit>,
    /// The [weight](super::PolicyBuilder::weight), if it is not that of the policy.
    pub weight: Option<u64>,
}

impl From<Vec<Limit>> for Override {
    fn from(limits: Vec<Limit>) -> Self {
        Self { limits, weight: None }
    }
}

impl Policy {
    /// The policy that applies to `subject`: its override, or this one.
    #[inline]
    #[must_use]
    pub fn for_subject(&self, subject: &str) -> &Self {
        if self.0.overrides.is_empty() {
            self
        } else {
            self.0.overrides.get(subject).unwrap_or(self)
        }
    }

    /// The subjects that have an override, with the policy that applies to them.
    pub fn overrides(&self) -> impl ExactSizeIterator<Item = (&str, &Self)> {
        self.0.overrides.iter().map(|(subject, policy)| (&**subject, policy))
    }

    /// This policy with the override of `subject` set to `limits`, or removed if there are none.
    ///
    /// # Errors
    /// As [`with_overrides`](Self::with_overrides).
    pub fn with_override(&self, subject: &str, limits: Option<Vec<Limit>>) -> Result<Self, Error> {
        self.with_overrides([(subject, limits.map(Override::from))])
    }

    /// This policy with the override of each of these subjects set, or removed if there is none. Each subject may be there
    /// once.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the limits do not have the names and units of this policy's,
    /// or if their numbers are out of bounds.
    pub fn with_overrides<'a>(
        &self,
        changes: impl IntoIterator<Item = (&'a str, Option<Override>)>,
    ) -> Result<Self, Error> {
        let changes: HashMap<&str, Option<Override>> = changes.into_iter().collect();
        let mut builder = Self::builder(self.name())
            .limits(self.limits().cloned())
            .shadow(self.0.shadow)
            .on_store_failure(self.0.on_store_failure)
            .block_ttl(self.0.block_ttl)
            .subjects_max(self.0.subjects_max)
            .weight(self.0.weight);
        for (other, policy) in self.overrides().filter(|(other, _)| !changes.contains_key(other)) {
            builder = builder.override_for(other, policy.as_override_of(self));
        }
        for (subject, other) in changes {
            if let Some(other) = other {
                builder = builder.override_for(subject, other);
            }
        }
        builder.build()
    }

    /// Returns how this policy, which applies to one subject of `base`, overrides it.
    #[must_use]
    pub fn as_override_of(&self, base: &Self) -> Override {
        let weight = Some(self.0.weight).filter(|weight| *weight != base.0.weight);
        Override { limits: self.limits().cloned().collect(), weight }
    }
}
