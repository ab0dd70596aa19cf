//! Other numbers for single subjects: finding the policy that applies to one, and a policy with some of them changed.

use std::collections::HashMap;
use std::sync::Arc;

use super::builder::{PolicyBuilder, map_overrides};
use super::{Limit, Policy};
use crate::error::Error;

/// What one subject has of its own under a policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    /// All limits, with the names and units of the policy's. A limit of 0 refuses every ask that costs something of its
    /// unit, for ever.
    pub limits: Vec<Limit>,
    /// The [weight](super::PolicyBuilder::weight), if it is not that of the policy.
    pub weight: Option<u64>,
    /// Whether nothing is refused; see [`Policy::is_unlimited`].
    pub unlimited: bool,
}

impl From<Vec<Limit>> for Override {
    fn from(limits: Vec<Limit>) -> Self {
        Self { limits, weight: None, unlimited: false }
    }
}

impl Policy {
    /// The policy that applies to `subject`: the more specific of its override and its plan, or this one. If both are equally
    /// specific, it is the override.
    #[inline]
    #[must_use]
    pub fn for_subject(&self, subject: &str) -> &Self {
        if self.0.overrides.is_empty() && self.0.plans.is_none() {
            self
        } else {
            self.own_of(subject).unwrap_or(self)
        }
    }

    fn own_of(&self, subject: &str) -> Option<&Self> {
        let own = self.0.overrides.find(subject);
        let plan = self.0.plans.as_ref().and_then(|plans| plans.find(subject));
        match (own, plan) {
            (Some((specificity, own)), Some((of_plan, _))) if of_plan <= specificity => Some(own),
            (_, Some((_, numbers))) => numbers,
            (own, None) => own.map(|(_, own)| own),
        }
    }

    /// The policy of the override for `text`, a subject or a pattern; nothing if there is none for exactly this text.
    #[must_use]
    pub fn override_of(&self, text: &str) -> Option<&Self> {
        self.0.overrides.get(text)
    }

    /// The subjects and patterns that have an override, with the policy that applies to them.
    pub fn overrides(&self) -> impl ExactSizeIterator<Item = (&str, &Self)> {
        self.0.overrides.iter().collect::<Vec<_>>().into_iter()
    }

    /// This policy with the override of `subject` set to `limits`, or removed if there are none.
    ///
    /// # Errors
    /// As [`with_overrides`](Self::with_overrides).
    pub fn with_override(&self, subject: &str, limits: Option<Vec<Limit>>) -> Result<Self, Error> {
        self.with_overrides([(subject, limits.map(Override::from))])
    }

    /// This policy with the override of each of these subjects set, or removed if there is none. Each subject may be there
    /// once. Overrides that do not change are not built again.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the limits do not have the names and units of this policy's,
    /// if their numbers are out of bounds, or if two patterns are equally specific for some subject.
    pub fn with_overrides<'a>(
        &self,
        changes: impl IntoIterator<Item = (&'a str, Option<Override>)>,
    ) -> Result<Self, Error> {
        let changes: HashMap<&str, Option<Override>> = changes.into_iter().collect();
        let named =
            |error: Error| Error::new(error.kind(), format!("policy {:?}: {error}", self.name()));
        let kept = self.0.overrides.iter().filter(|(other, _)| !changes.contains_key(other));
        let mut overrides: Vec<(Box<str>, Self)> =
            kept.map(|(subject, own)| (subject.into(), own.clone())).collect();
        let builder = PolicyBuilder::from_policy(self);
        for (subject, own) in changes {
            if let Some(own) = own {
                let own = builder.build_override(subject, &own).map_err(named)?;
                overrides.push((subject.into(), own));
            }
        }
        let mut inner = (*self.0).clone();
        inner.overrides = Arc::new(map_overrides(overrides).map_err(named)?);
        Ok(Self(Arc::new(inner)))
    }

    /// Returns how this policy, which applies to one subject of `base`, overrides it.
    #[must_use]
    pub fn as_override_of(&self, base: &Self) -> Override {
        let weight = Some(self.0.weight).filter(|weight| *weight != base.0.weight);
        let unlimited = self.0.unlimited;
        Override { limits: self.limits().cloned().collect(), weight, unlimited }
    }
}
