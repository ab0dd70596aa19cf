//! A policy as written: its limits, its settings and its overrides.

use serde::{Deserialize, Serialize};
use tollgate_core::{Limit, OnStoreFailure, Override, Policy, Span, check_subjects};

use super::fault::Fault;
use super::limit::LimitSpec;
use super::plan::PlanSpec;
use crate::error::Error;
use crate::internal::nearest;

/// The largest weight: beyond it, one request of a small limit would count as nothing.
const WEIGHT_MAX: u64 = 1_000;

/// A policy as written in `tollgate.toml` or an HTTP body.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicySpec {
    /// The name that asks give.
    #[serde(default)]
    pub name: String,
    /// The limits, decided together.
    #[serde(default)]
    pub limits: Vec<LimitSpec>,
    /// Whether to decide and count but never refuse.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shadow: bool,
    /// The behaviour if the store cannot answer: `closed` (default), `open` or `fallback`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_store_failure: Option<String>,
    /// How long a block of tokens taken in advance may be spent, as in `1s`; none by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_ttl: Option<String>,
    /// The most subjects that a store in memory keeps entries for; a share of the store by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subjects_max: Option<u64>,
    /// How often its subjects are served while they wait for a limit that they share with those of other policies; 1 by
    /// default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u64>,
    /// Other numbers for single subjects, or for patterns of subjects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<OverrideSpec>,
}

/// The override of one subject, or of every subject that a pattern matches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OverrideSpec {
    /// The subject; each `*` in it matches any text.
    #[serde(default)]
    pub subject: String,
    /// The limits that differ: the name, and the fields that change. Unit and rule stay. A limit or capacity of 0 refuses
    /// everything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<LimitSpec>,
    /// 0 to block the subject: every limit is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Whether nothing is refused. Usage still counts, up to the limits.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unlimited: bool,
    /// How often it is served while it waits for a limit that it shares; that of the policy by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u64>,
}

impl PolicySpec {
    /// Returns the spec of `policy`, without settings at their default, overrides in order of their subjects.
    #[must_use]
    pub fn from_policy(policy: &Policy) -> Self {
        let limits: Vec<LimitSpec> = policy.limits().map(LimitSpec::from_limit).collect();
        let failure = Some(policy.on_store_failure()).filter(|it| *it != OnStoreFailure::default());
        let block_ttl = Some(policy.block_ttl()).filter(|ttl| !ttl.is_zero());
        let mut overrides: Vec<OverrideSpec> = policy
            .overrides()
            .map(|(subject, other)| OverrideSpec::from_policy(subject, other, policy, &limits))
            .collect();
        overrides.sort_by(|a, b| a.subject.cmp(&b.subject));
        Self {
            name: policy.name().to_owned(),
            limits,
            shadow: policy.is_shadow(),
            on_store_failure: failure.map(|action| action.to_string()),
            block_ttl: block_ttl.map(|ttl| ttl.to_string()),
            subjects_max: policy.subjects_max(),
            weight: Some(policy.weight()).filter(|weight| *weight != 1),
            overrides,
        }
    }

    /// Returns the spec of `policy` without its overrides.
    #[must_use]
    pub fn without_overrides(policy: &Policy) -> Self {
        let plain = policy.with_overrides(policy.overrides().map(|(subject, _)| (subject, None)));
        Self::from_policy(plain.as_ref().unwrap_or(policy))
    }

    /// Builds the policy of this spec.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid), naming the policy, the limit, the mistake and the expected value.
    pub fn build(&self) -> Result<Policy, Error> {
        self.resolve().map_err(|fault| {
            Error::new(crate::ErrorKind::Invalid, format!("policy {:?}: {fault}", self.name))
        })
    }

    /// Returns the policy of this spec, or the first [`Fault`] from top to bottom with its path.
    #[doc(hidden)]
    pub fn resolve(&self) -> Result<Policy, Fault> {
        if self.name.is_empty() {
            return Err(Fault::new("a policy needs name, as in name = \"api\""));
        }
        if self.limits.is_empty() {
            return Err(Fault::new(format!(
                "policy {:?} needs limits, as in limits = [{{ name = \"rpm\", unit = \"requests\", \
                 rule = \"rolling-window\", limit = 5, window = \"1m\" }}]",
                self.name
            )));
        }
        if self.subjects_max == Some(0) {
            return Err(Fault::at("subjects_max", "subjects_max must be at least 1"));
        }
        check_weight(self.weight)?;
        let block_ttl = self.resolve_block_ttl()?;
        let mut builder = Policy::builder(&self.name)
            .shadow(self.shadow)
            .subjects_max(self.subjects_max)
            .weight(self.weight.unwrap_or(1))
            .on_store_failure(self.resolve_failure()?)
            .block_ttl(block_ttl)
            .limits(self.resolve_limits(&self.limits, block_ttl, false, &|index| {
                limit_label(&self.limits, index)
            })?);
        for (index, other) in self.overrides.iter().enumerate() {
            let label = format!("override for {:?}", other.subject);
            let own = self
                .resolve_override(other, block_ttl)
                .map_err(|fault| fault.in_element("overrides", index, &label))?;
            builder = builder.override_for(&other.subject, own);
        }
        check_subjects(self.overrides.iter().map(|other| &*other.subject)).map_err(|clash| {
            let label = format!("override for {:?}", self.overrides[clash.index].subject);
            let fault = Fault::at("subject", clash.to_string());
            fault.in_element("overrides", clash.index, &label)
        })?;
        builder.build().map_err(|error| Fault::new(self.unprefixed(&error)))
    }

    fn resolve_failure(&self) -> Result<OnStoreFailure, Fault> {
        let Some(text) = &self.on_store_failure else { return Ok(OnStoreFailure::default()) };
        text.parse()
            .map_err(|error| Fault::at("on_store_failure", format!("on_store_failure {error}")))
    }

    fn resolve_block_ttl(&self) -> Result<Span, Fault> {
        let Some(text) = &self.block_ttl else { return Ok(Span::ZERO) };
        text.parse().map_err(|error| Fault::at("block_ttl", format!("block_ttl {error}")))
    }

    /// Resolves and checks each of `specs` alone, so that a number out of bounds is reported with its path.
    fn resolve_limits(
        &self,
        specs: &[LimitSpec],
        block_ttl: Span,
        may_block: bool,
        label: &dyn Fn(usize) -> String,
    ) -> Result<Vec<Limit>, Fault> {
        let mut limits: Vec<Limit> = Vec::with_capacity(specs.len());
        for (index, spec) in specs.iter().enumerate() {
            let limit =
                spec.resolve().map_err(|fault| fault.in_element("limits", index, &label(index)))?;
            if limits.iter().any(|other| other.name() == limit.name()) {
                let text = "the name is taken; give each limit of a policy its own";
                return Err(Fault::at("name", text).in_element("limits", index, &label(index)));
            }
            let alone = Policy::builder(&self.name).block_ttl(block_ttl).limit(limit.clone());
            let alone = if may_block { alone.may_block() } else { alone };
            if let Err(error) = alone.build() {
                let text = self.unprefixed(&error);
                let prefix = format!("limit {:?}: ", limit.name());
                return Err(match text.strip_prefix(&prefix) {
                    Some(text) => Fault::new(text).in_element("limits", index, &label(index)),
                    None => Fault::at("name", text),
                });
            }
            limits.push(limit);
        }
        Ok(limits)
    }

    fn resolve_override(&self, other: &OverrideSpec, block_ttl: Span) -> Result<Override, Fault> {
        if other.subject.is_empty() {
            return Err(Fault::new("needs subject, as in subject = \"alice\""));
        }
        self.resolve_changes(other, block_ttl)
    }

    /// Returns what `other` makes of this policy, whatever its subject.
    fn resolve_changes(&self, other: &OverrideSpec, block_ttl: Span) -> Result<Override, Fault> {
        check_weight(other.weight)?;
        check_whole(other.limit, other.unlimited)?;
        if let Some(field) = other.whole_field() {
            if !other.limits.is_empty() {
                let text = format!("{field} is about every limit; remove it, or limits");
                return Err(Fault::at(field, text));
            }
            let limit = |spec: &LimitSpec| match other.unlimited {
                true => spec.resolve(),
                false => spec.blocked().resolve(),
            };
            let limits = self.limits.iter().map(limit).collect::<Result<_, _>>()?;
            return Ok(Override { limits, weight: other.weight, unlimited: other.unlimited });
        }
        let mut specs = self.limits.clone();
        let mut changed_by: Vec<Option<usize>> = vec![None; specs.len()];
        for (index, changes) in other.limits.iter().enumerate() {
            let label = limit_label(&other.limits, index);
            let fault = |fault: Fault| fault.in_element("limits", index, &label);
            let Some(changed) = specs.iter().position(|limit| limit.name == changes.name) else {
                let names: Vec<&str> =
                    self.limits.iter().map(|limit| limit.name.as_str()).collect();
                let likely = nearest(&changes.name, names.iter().copied());
                let likely =
                    likely.map(|name| format!("did you mean {name}? ")).unwrap_or_default();
                let text =
                    format!("the policy has no such limit; {likely}known: {}", names.join(", "));
                return Err(fault(Fault::at("name", text)));
            };
            for (field, given) in [("unit", &changes.unit), ("rule", &changes.rule)] {
                if given.is_some() {
                    let text =
                        format!("an override keeps the {field} of the policy; remove {field}");
                    return Err(fault(Fault::at(field, text)));
                }
            }
            if changed_by[changed].is_some() {
                let text = "the override changes this limit already; keep one of the two";
                return Err(fault(Fault::at("name", text)));
            }
            if *changes == (LimitSpec { name: changes.name.clone(), ..LimitSpec::default() }) {
                let text = "nothing changes; give a field of the limit, or remove this";
                return Err(fault(Fault::at("name", text)));
            }
            specs[changed] = specs[changed].changed_by(changes);
            changed_by[changed] = Some(index);
        }
        // Only a limit that the override changes can be wrong here, and it is reported where it is changed.
        for (spec, index) in specs.iter().zip(&changed_by) {
            if let Some(index) = index {
                let relocate = |fault: Fault| fault.moved("limits", *index);
                let label = |_| limit_label(&other.limits, *index);
                self.resolve_limits(std::slice::from_ref(spec), block_ttl, true, &label)
                    .map_err(relocate)?;
            }
        }
        let limits = specs.iter().map(LimitSpec::resolve).collect::<Result<_, _>>()?;
        Ok(Override { limits, weight: other.weight, unlimited: false })
    }

    /// Returns what `plan` makes of this policy; nothing if the plan leaves it as it is.
    ///
    /// # Errors
    /// The first [`Fault`] of the plan, with its path in it.
    #[doc(hidden)]
    pub fn resolve_plan(&self, plan: &PlanSpec) -> Result<Option<Override>, Fault> {
        let Some(changes) = plan.changes(self) else { return Ok(None) };
        let names: Vec<String> = changes.limits.iter().map(|limit| limit.name.clone()).collect();
        let relocate = |fault: Fault| {
            let path = plan.path_of(&self.name, &names, fault.path());
            fault.in_table("policy", &self.name).in_table("plan", &plan.name).relocated(path)
        };
        let block_ttl = self.resolve_block_ttl().map_err(relocate)?;
        self.resolve_changes(&changes, block_ttl).map(Some).map_err(relocate)
    }

    /// Returns the text of a core error without the name of the policy, which the caller adds.
    fn unprefixed(&self, error: &tollgate_core::Error) -> String {
        let text = error.to_string();
        text.strip_prefix(&format!("policy {:?}: ", self.name)).map(str::to_owned).unwrap_or(text)
    }
}

impl OverrideSpec {
    fn from_policy(subject: &str, own: &Policy, base: &Policy, limits: &[LimitSpec]) -> Self {
        let Override { weight, unlimited, .. } = own.as_override_of(base);
        let subject = subject.to_owned();
        if own.limits().all(|limit| limit.rule().limit() == 0) {
            return Self { subject, limit: Some(0), weight, ..Self::default() };
        }
        let changes = own.limits().zip(limits);
        let changes =
            changes.filter_map(|(own, base)| LimitSpec::from_limit(own).changes_from(base));
        Self { subject, limits: changes.collect(), limit: None, unlimited, weight }
    }

    /// Returns whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.weight.is_none() && self.whole_field().is_none()
    }

    /// Returns the field that is about every limit, if it is given.
    const fn whole_field(&self) -> Option<&'static str> {
        match (self.limit, self.unlimited) {
            (Some(_), _) => Some("limit"),
            (None, true) => Some("unlimited"),
            (None, false) => None,
        }
    }
}

/// Checks the fields that are about every limit.
pub(super) fn check_whole(limit: Option<u64>, unlimited: bool) -> Result<(), Fault> {
    match limit {
        None => Ok(()),
        Some(0) if !unlimited => Ok(()),
        Some(0) => {
            Err(Fault::at("unlimited", "limit = 0 refuses everything; remove it, or unlimited"))
        }
        Some(_) => Err(Fault::at(
            "limit",
            "limit is 0, which refuses everything, or absent; to give a limit another number, name it in limits",
        )),
    }
}

pub(super) fn check_weight(weight: Option<u64>) -> Result<(), Fault> {
    match weight {
        Some(weight) if !(1..=WEIGHT_MAX).contains(&weight) => {
            Err(Fault::at("weight", format!("weight must be 1 to {WEIGHT_MAX}")))
        }
        _ => Ok(()),
    }
}

fn limit_label(limits: &[LimitSpec], index: usize) -> String {
    match limits.get(index) {
        Some(limit) if !limit.name.is_empty() => format!("limit {:?}", limit.name),
        _ => format!("limit number {}", index + 1),
    }
}
