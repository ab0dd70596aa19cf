//! The policies in force, by name.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use tollgate_core::Policy;
pub use tollgate_core::{Headroom, OnStoreFailure, Override, Period, PolicyBuilder, Refill, Rule};

use crate::error::{Error, ErrorKind};
use crate::internal::nearest;

/// The most names that an error lists.
const NAMES_SHOWN_MAX: usize = 20;

/// A set of policies with different names, in the order they were given. A new set replaces an old one whole.
///
/// ```
/// use tollgate::policy::Policies;
/// use tollgate::{Limit, Policy, TokenBucket};
///
/// let api = Policy::new("api", [Limit::new("burst", "requests", TokenBucket::per_second(10))])?;
/// let policies = Policies::new([api])?;
/// assert_eq!(policies.get("api")?.name(), "api");
/// assert_eq!(
///     policies.get("apl").unwrap_err().to_string(),
///     "no policy is called \"apl\"; did you mean api? known: api"
/// );
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Policies {
    all: Vec<Policy>,
    indexes: HashMap<Box<str>, usize, RandomState>,
}

impl Policies {
    /// A set of these policies.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if two have the same name.
    pub fn new(policies: impl IntoIterator<Item = Policy>) -> Result<Self, Error> {
        let mut set = Self::default();
        for policy in policies {
            if set.indexes.insert(policy.name().into(), set.all.len()).is_some() {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    format!("two policies are called {:?}; give each its own name", policy.name()),
                ));
            }
            set.all.push(policy);
        }
        Ok(set)
    }

    /// The policy called `name`.
    ///
    /// # Errors
    /// [`UnknownPolicy`](ErrorKind::UnknownPolicy), with the names there are.
    pub fn get(&self, name: &str) -> Result<&Policy, Error> {
        match self.indexes.get(name) {
            Some(index) => Ok(&self.all[*index]),
            None => Err(self.unknown(name)),
        }
    }

    /// Every policy, in the order they were given.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Policy> {
        self.all.iter()
    }

    /// The same set, with what `change` makes of a policy in its place. It keeps its name.
    #[must_use]
    pub fn map(&self, mut change: impl FnMut(&Policy) -> Option<Policy>) -> Self {
        let changed = |policy: &Policy| match change(policy) {
            Some(other) if other.is_named_as(policy) => other,
            _ => policy.clone(),
        };
        Self { all: self.all.iter().map(changed).collect(), indexes: self.indexes.clone() }
    }

    #[cold]
    fn unknown(&self, name: &str) -> Error {
        let names = || self.all.iter().map(Policy::name);
        let likely = nearest(name, names()).map(|name| format!("did you mean {name}? "));
        let mut known = names().take(NAMES_SHOWN_MAX).collect::<Vec<_>>().join(", ");
        if NAMES_SHOWN_MAX < self.all.len() {
            known += &format!(" and {} more", self.all.len() - NAMES_SHOWN_MAX);
        }
        if known.is_empty() {
            known.push_str("none");
        }
        let likely = likely.unwrap_or_default();
        Error::new(
            ErrorKind::UnknownPolicy,
            format!("no policy is called {name:?}; {likely}known: {known}"),
        )
    }
}
