//! Plans: named sets of numbers for the limits of policies, and the subjects that are on them.
//!
//! Every subject of a plan shares one policy, so the numbers are built once for each plan, and the subjects are one map that all
//! policies share.

use std::sync::Arc;

use super::builder::PolicyBuilder;
use super::subjects::{Specificity, SubjectMap};
use super::{Override, Policy};
use crate::bounds::PLAN_SUBJECTS_MAX;
use crate::error::Error;

/// The plan of each subject, by its index. A `*` in a subject matches any text; the most specific counts.
#[derive(Debug, Default, PartialEq)]
pub struct PlanSubjects(SubjectMap<usize>);

impl PlanSubjects {
    /// Creates the map of `subjects` to the indexes of their plans.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for too many of them, an invalid or repeated subject, or two patterns
    /// that are equally specific for some subject.
    pub fn new<'a>(subjects: impl IntoIterator<Item = (&'a str, usize)>) -> Result<Self, Error> {
        let subjects: Vec<(Box<str>, usize)> =
            subjects.into_iter().map(|(subject, plan)| (subject.into(), plan)).collect();
        if PLAN_SUBJECTS_MAX < subjects.len() {
            let text = format!("plans have more than {PLAN_SUBJECTS_MAX} subjects");
            return Err(Error::invalid(text));
        }
        SubjectMap::new(subjects).map(Self)
    }

    /// Returns the plan of `subject`.
    #[must_use]
    pub fn plan_of(&self, subject: &str) -> Option<usize> {
        self.0.find(subject).map(|(_, plan)| *plan)
    }

    /// Returns the number of subjects and patterns.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether no subject is on a plan.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The plans of a policy.
#[derive(Clone, PartialEq)]
pub(super) struct Plans {
    subjects: Arc<PlanSubjects>,
    /// The policy of each plan; nothing where the plan has the numbers of the policy.
    numbers: Arc<[Option<Policy>]>,
    /// The plan of subjects that are not on one by their own name.
    claimed: Option<usize>,
}

impl Plans {
    /// Returns the policy of the plan of `subject`, if it is on one; nothing in it if the plan has the numbers of the policy.
    pub(super) fn find(&self, subject: &str) -> Option<(Specificity, Option<&Policy>)> {
        let mapped = self.subjects.0.find(subject).map(|(specificity, plan)| (specificity, *plan));
        let claimed = self.claimed.map(|plan| (Specificity::CLAIM, plan));
        let (specificity, plan) = mapped.max(claimed)?;
        Some((specificity, self.numbers.get(plan)?.as_ref()))
    }
}

impl Policy {
    /// Returns this policy with the plans of `subjects`. The numbers of each are in `numbers`, in order of their index: a name
    /// for errors, and what differs from the policy, if anything does.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) as for an override.
    pub fn with_plans<'a>(
        &self,
        subjects: &Arc<PlanSubjects>,
        numbers: impl IntoIterator<Item = (&'a str, Option<Override>)>,
    ) -> Result<Self, Error> {
        let builder = PolicyBuilder::from_policy(self);
        let numbers = numbers.into_iter().map(|(name, own)| {
            own.map(|own| builder.build_variant(&format!("plan {name:?}"), &own)).transpose()
        });
        let numbers = numbers.collect::<Result<Arc<[_]>, _>>().map_err(|error| {
            Error::new(error.kind(), format!("policy {:?}: {error}", self.name()))
        })?;
        let subjects = Arc::clone(subjects);
        Ok(self.with(Plans { subjects, numbers, claimed: None }))
    }

    /// Returns this policy with other subjects on its plans.
    #[must_use]
    pub fn with_plan_subjects(&self, subjects: &Arc<PlanSubjects>) -> Self {
        match &self.0.plans {
            Some(plans) => self.with(Plans { subjects: Arc::clone(subjects), ..plans.clone() }),
            None => self.clone(),
        }
    }

    /// Returns the policy of each plan, in order; nothing where the plan has the numbers of this policy.
    pub fn plans(&self) -> impl Iterator<Item = Option<&Self>> {
        self.0.plans.iter().flat_map(|plans| plans.numbers.iter().map(Option::as_ref))
    }

    /// Returns this policy for callers that prove to be on `plan`, an index: it goes before patterns of subjects, not before
    /// a subject that is on a plan or has an override by its own name.
    #[must_use]
    pub fn claiming(&self, plan: usize) -> Self {
        match &self.0.plans {
            Some(plans) => self.with(Plans { claimed: Some(plan), ..plans.clone() }),
            None => self.clone(),
        }
    }

    fn with(&self, plans: Plans) -> Self {
        let mut inner = (*self.0).clone();
        inner.plans = Some(plans);
        Self(Arc::new(inner))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::policy::Limit;
    use crate::rule::TokenBucket;

    fn burst(capacity: u64) -> Vec<Limit> {
        vec![Limit::new("burst", "requests", TokenBucket::per_second(10).burst(capacity))]
    }

    fn address(policy: &Policy) -> *const super::super::Inner {
        Arc::as_ptr(&policy.0)
    }

    /// Bounds the work of a reload: the numbers are built once for each plan, however many subjects it has, and a change of
    /// one override builds that one.
    #[test]
    fn a_hundred_thousand_subjects_share_the_policies_of_their_plans() {
        let names: Vec<String> = (0..100_000).map(|number| format!("tenant-{number:06}")).collect();
        let texts: Vec<String> = names.iter().map(|name| format!("{name}/*")).collect();
        let mapped = names.iter().chain(&texts).enumerate();
        let subjects = PlanSubjects::new(mapped.map(|(index, text)| (&**text, index % 2))).unwrap();
        let base = Policy::new("api", burst(20)).unwrap();
        let numbers = [("free", Some(burst(5).into())), ("pro", Some(burst(100).into()))];
        let policy = base.with_plans(&Arc::new(subjects), numbers).unwrap();
        let changed = policy.with_override("vip", Some(burst(7))).unwrap();
        for policy in [&policy, &changed] {
            let found: HashSet<_> = names
                .iter()
                .flat_map(|name| [name.clone(), format!("{name}/x")])
                .map(|subject| address(policy.for_subject(&subject)))
                .collect();
            assert_eq!(found.len(), 2, "one policy for each plan");
        }
        let first = |policy: &Policy| address(policy.for_subject("tenant-000000"));
        assert_eq!(first(&policy), first(&changed), "the plans are not built again");
        assert_eq!(changed.for_subject("vip").effective().next(), Some(7));

        let many = names.iter().map(|name| (&**name, Some(burst(3).into())));
        let many = base.with_overrides(many).unwrap();
        let changed = many.with_override("tenant-000001", Some(burst(9))).unwrap();
        let kept = names
            .iter()
            .filter(|name| address(many.for_subject(name)) == address(changed.for_subject(name)));
        assert_eq!(kept.count(), names.len() - 1, "the others are not built again");
    }

    #[test]
    fn the_more_specific_of_override_plan_and_claim_counts() {
        let plans = [("mapped", 0), ("team-*", 0), ("team-a-*", 1)];
        let numbers =
            [("one", Some(burst(1).into())), ("two", Some(burst(2).into())), ("own", None)];
        let policy = Policy::builder("api")
            .limits(burst(20))
            .override_for("team-*", burst(3))
            .override_for("team-a-b*", burst(4))
            .override_for("vip", burst(5))
            .build()
            .unwrap()
            .with_plans(&Arc::new(PlanSubjects::new(plans).unwrap()), numbers)
            .unwrap();
        let rows = [
            ("mapped", [1, 1, 1]),
            ("team-x", [3, 2, 20]),
            ("team-a-x", [2, 2, 20]),
            ("team-a-bc", [4, 2, 20]),
            ("vip", [5, 5, 5]),
            ("other", [20, 2, 20]),
        ];
        for (subject, expected) in rows {
            let all = [policy.clone(), policy.claiming(1), policy.claiming(2)];
            let all = all.map(|policy| policy.for_subject(subject).effective().next().unwrap());
            assert_eq!(all, expected, "{subject}");
        }
    }
}
