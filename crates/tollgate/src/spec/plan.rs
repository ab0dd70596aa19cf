//! A plan as written: the numbers that its subjects have under each policy.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tollgate_core::{PlanSubjects, check_subject, check_subjects};

use super::fault::{Fault, Step};
use super::limit::LimitSpec;
use super::policy::{OverrideSpec, PolicySpec, check_weight, check_whole};
use crate::internal::nearest;
use crate::policy::Policies;

/// The longest name of a plan, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// A plan as written in `tollgate.toml`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanSpec {
    /// The name.
    #[serde(default)]
    pub name: String,
    /// The subjects on the plan; each `*` in one matches any text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subjects: Vec<String>,
    /// By policy and limit, what differs from the policy.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, BTreeMap<String, PlanLimit>>,
    /// 0 to block the subjects under every policy that `limits` does not name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Whether nothing is refused under the policies that `limits` does not name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unlimited: bool,
    /// How often the subjects are served while they wait for a limit that they share; that of the policy by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u64>,
}

/// What a plan changes of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanLimit {
    /// The limit, or the capacity of a bucket.
    Number(u64),
    /// The fields that change.
    Fields(Box<LimitSpec>),
}

impl Serialize for PlanLimit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_u64(*number),
            Self::Fields(fields) => fields.serialize(serializer),
        }
    }
}

/// Written by hand, because the errors of an untagged enumeration do not name the field.
impl<'de> Deserialize<'de> for PlanLimit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = PlanLimit;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, or a table of the fields that change")
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<PlanLimit, E> {
                Ok(PlanLimit::Number(number))
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<PlanLimit, E> {
                let unexpected = serde::de::Unexpected::Signed(number);
                let number =
                    u64::try_from(number).map_err(|_| E::invalid_value(unexpected, &self))?;
                Ok(PlanLimit::Number(number))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<PlanLimit, A::Error> {
                let fields = LimitSpec::deserialize(MapAccessDeserializer::new(map))?;
                Ok(PlanLimit::Fields(Box::new(fields)))
            }
        }

        deserializer.deserialize_any(Either)
    }
}

/// Returns `policies` with `plans`.
///
/// # Errors
/// The index of the first plan with a [`Fault`], and the fault with its path in that plan.
#[doc(hidden)]
pub fn with_plans(policies: &Policies, plans: &[PlanSpec]) -> Result<Policies, (usize, Fault)> {
    if plans.is_empty() {
        return Ok(policies.clone());
    }
    let mut indexes: BTreeMap<&str, usize> = BTreeMap::new();
    let names: Vec<_> = policies.iter().map(tollgate_core::Policy::name).collect();
    for (index, plan) in plans.iter().enumerate() {
        plan.check(&names).map_err(|fault| (index, fault))?;
        if indexes.insert(&plan.name, index).is_some() {
            let text = format!("two plans are called {:?}; give each its own name", plan.name);
            return Err((index, Fault::at("name", text)));
        }
    }
    let subjects = Arc::new(subjects_of(plans)?);
    let mut all = Vec::with_capacity(policies.iter().len());
    for policy in policies.iter() {
        let spec = PolicySpec::without_overrides(policy);
        let mut numbers = Vec::with_capacity(plans.len());
        for (index, plan) in plans.iter().enumerate() {
            let own = spec.resolve_plan(plan).map_err(|fault| (index, fault))?;
            numbers.push((&*plan.name, own));
        }
        let with_plans = policy.with_plans(&subjects, numbers);
        // Each limit was checked alone.
        all.push(with_plans.map_err(|error| (0, Fault::new(error.to_string())))?);
    }
    let all = Policies::new(all).map_err(|error| (0, Fault::new(error.to_string())))?;
    Ok(all.with_plans(plans))
}

/// Returns the plan of each subject.
fn subjects_of(plans: &[PlanSpec]) -> Result<PlanSubjects, (usize, Fault)> {
    let indexes = |(plan, spec): (usize, &PlanSpec)| {
        (0..spec.subjects.len()).map(move |subject| (plan, subject))
    };
    let all: Vec<(usize, usize)> = plans.iter().enumerate().flat_map(indexes).collect();
    let text = |(plan, subject): &(usize, usize)| &*plans[*plan].subjects[*subject];
    check_subjects(all.iter().map(text)).map_err(|clash| {
        let (plan, subject) = all[clash.index];
        let path = vec![Step::Field("subjects"), Step::Element(subject)];
        let other = &plans[all[clash.other].0].name;
        let fault = Fault::new(format!("{clash}; the other is in plan {other:?}"));
        (plan, fault.in_table("plan", &plans[plan].name).relocated(path))
    })?;
    PlanSubjects::new(all.iter().map(|at| (text(at), at.0)))
        .map_err(|error| (plans.len() - 1, Fault::at("subjects", error.to_string())))
}

impl PlanSpec {
    /// Checks what does not depend on a policy, and that each policy it names is one of `policies`.
    ///
    /// # Errors
    /// The first [`Fault`] with its path.
    #[doc(hidden)]
    pub fn check(&self, policies: &[&str]) -> Result<(), Fault> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if self.name.is_empty() {
            return Err(Fault::new("a plan needs name, as in name = \"pro\""));
        }
        if NAME_BYTES_MAX < self.name.len() || !self.name.chars().all(allowed) {
            let text = format!(
                "plan name {:?} must be 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' or '.'",
                self.name
            );
            return Err(Fault::at("name", text));
        }
        let named = |fault: Fault| fault.in_table("plan", &self.name);
        check_weight(self.weight).map_err(named)?;
        check_whole(self.limit, self.unlimited).map_err(named)?;
        let at = |index| vec![Step::Field("subjects"), Step::Element(index)];
        for (index, subject) in self.subjects.iter().enumerate() {
            check_subject(subject)
                .map_err(|error| named(Fault::new(error.to_string()).relocated(at(index))))?;
        }
        check_subjects(self.subjects.iter().map(String::as_str))
            .map_err(|clash| named(Fault::new(clash.to_string()).relocated(at(clash.index))))?;
        for policy in self.limits.keys() {
            if !policies.contains(&policy.as_str()) {
                let likely = nearest(policy, policies.iter().copied());
                let likely =
                    likely.map(|name| format!("; did you mean {name}?")).unwrap_or_default();
                let path = vec![Step::Field("limits"), Step::Key(policy.clone())];
                let text = format!("there is no policy {policy:?}{likely}");
                return Err(named(Fault::new(text).relocated(path)));
            }
        }
        Ok(())
    }

    /// Returns what the plan changes of `policy`, as an override; nothing if it leaves the policy as it is.
    pub(super) fn changes(&self, policy: &PolicySpec) -> Option<OverrideSpec> {
        let own = OverrideSpec {
            subject: self.name.clone(),
            weight: self.weight,
            ..OverrideSpec::default()
        };
        let own = match self.limits.get(&policy.name) {
            Some(limits) => {
                let change = |(name, change): (&String, &PlanLimit)| match change {
                    PlanLimit::Number(number) => {
                        let base = policy.limits.iter().find(|limit| limit.name == *name);
                        let of = LimitSpec { name: name.clone(), ..LimitSpec::default() };
                        base.unwrap_or(&of).with_number(*number)
                    }
                    PlanLimit::Fields(fields) => {
                        LimitSpec { name: name.clone(), ..(**fields).clone() }
                    }
                };
                OverrideSpec { limits: limits.iter().map(change).collect(), ..own }
            }
            None => OverrideSpec { limit: self.limit, unlimited: self.unlimited, ..own },
        };
        Some(own).filter(|own| !own.is_empty())
    }

    /// Returns the path in the plan of a fault at `path` in [`changes`](Self::changes), whose limits have these `names`.
    pub(super) fn path_of(&self, policy: &str, names: &[String], path: &[Step]) -> Vec<Step> {
        let [Step::Field("limits"), Step::Element(index), rest @ ..] = path else {
            return path.to_vec();
        };
        let name = names.get(*index).cloned().unwrap_or_default();
        let mut own =
            vec![Step::Field("limits"), Step::Key(policy.to_owned()), Step::Key(name.clone())];
        // The name of a limit is its key, and a number has no fields.
        let limit = self.limits.get(policy).and_then(|limits| limits.get(&name));
        if matches!(limit, Some(PlanLimit::Fields(_))) && rest != [Step::Field("name")] {
            own.extend_from_slice(rest);
        }
        own
    }
}
