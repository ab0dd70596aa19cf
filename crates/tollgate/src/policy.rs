//! The policies in force, by name.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use foldhash::fast::RandomState;
pub use tollgate_core::{Headroom, OnStoreFailure, Override, Period, PolicyBuilder, Refill, Rule};
use tollgate_core::{PlanSubjects, Policy, check_subjects};

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
    plans: Arc<[Plan]>,
    #[cfg(feature = "spec")]
    plan_specs: Arc<[crate::spec::PlanSpec]>,
}

/// A plan: a named set of numbers, which each policy has, for the subjects on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The name.
    pub name: String,
    /// The subjects on it; each `*` in one matches any text.
    pub subjects: Vec<String>,
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
        Self { all: self.all.iter().map(changed).collect(), ..self.clone() }
    }

    /// The plans, in the order they were given.
    #[must_use]
    pub fn plans(&self) -> &[Plan] {
        &self.plans
    }

    /// The same set with `plans`, whose numbers its policies have.
    #[cfg(feature = "spec")]
    pub(crate) fn with_plans(self, specs: &[crate::spec::PlanSpec]) -> Self {
        let plan = |spec: &crate::spec::PlanSpec| Plan {
            name: spec.name.clone(),
            subjects: spec.subjects.clone(),
        };
        Self { plans: specs.iter().map(plan).collect(), plan_specs: specs.into(), ..self }
    }

    /// The same set with `more` policies behind its own, and its plans.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if two have the same name.
    #[cfg(feature = "spec")]
    pub fn with_policies(&self, more: impl IntoIterator<Item = Policy>) -> Result<Self, Error> {
        let all = Self::new(self.iter().cloned().chain(more))?;
        crate::spec::with_plans(&all, &self.plan_specs)
            .map_err(|(_, fault)| Error::new(ErrorKind::Invalid, fault.to_string()))
    }

    /// The same set with the subjects in `moves` on the plans there, by name, instead of on those of [`plans`](Self::plans). Returns
    /// the subjects that cannot be moved, too, each with the reason.
    #[must_use]
    pub fn with_subjects_on_plans(
        &self,
        moves: &BTreeMap<String, String>,
    ) -> (Self, Vec<(String, String)>) {
        let mut refused = Vec::new();
        let mut moved: Vec<(&str, usize)> = Vec::new();
        for (subject, plan) in moves {
            match self.plan_index(plan) {
                Ok(index) => moved.push((subject, index)),
                Err(error) => refused.push((subject.clone(), error.to_string())),
            }
        }
        let mut stay: Vec<(&str, usize)> = Vec::new();
        for (index, plan) in self.plans.iter().enumerate() {
            let subjects = plan.subjects.iter().map(|subject| (&**subject, index));
            stay.extend(subjects.filter(|(subject, _)| {
                moved.binary_search_by_key(subject, |(moved, _)| *moved).is_err()
            }));
        }
        loop {
            let all = stay.iter().chain(&moved);
            let Err(clash) = check_subjects(all.map(|(subject, _)| *subject)) else { break };
            // Those of the plans do not clash, and come first.
            let Some(index) = clash.index.checked_sub(stay.len()) else { break };
            refused.push((moved.remove(index).0.to_owned(), clash.to_string()));
        }
        match PlanSubjects::new(stay.into_iter().chain(moved)) {
            Ok(subjects) => {
                let subjects = Arc::new(subjects);
                (self.map(|policy| Some(policy.with_plan_subjects(&subjects))), refused)
            }
            Err(error) => {
                let why = error.to_string();
                let refused = moves.keys().map(|subject| (subject.clone(), why.clone()));
                (self.clone(), refused.collect())
            }
        }
    }

    /// The index of the plan called `name`, for [`Policy::claiming`].
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if there is no such plan, with the names there are.
    pub fn plan_index(&self, name: &str) -> Result<usize, Error> {
        let names = || self.plans.iter().map(|plan| &*plan.name);
        names().position(|known| known == name).ok_or_else(|| {
            let likely = nearest(name, names()).map(|name| format!("did you mean {name}? "));
            let known = names().take(NAMES_SHOWN_MAX).collect::<Vec<_>>().join(", ");
            let known = if known.is_empty() { "none" } else { &*known };
            let likely = likely.unwrap_or_default();
            let text = format!("no plan is called {name:?}; {likely}known: {known}");
            Error::new(ErrorKind::Invalid, text)
        })
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
