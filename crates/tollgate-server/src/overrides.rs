//! Overrides and plans of subjects made by API: their document in the store, and their effect on policies.
//!
//! An override by API takes precedence over one in the configuration. If it no longer fits a changed configuration, the
//! subject gets the policy's own numbers, and the override is listed with the reason until it fits again or is removed.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tollgate::core::bounds::NAME_BYTES_MAX;
use tollgate::core::{check_subject, check_subjects, is_pattern};
use tollgate::overrides::{DOCUMENT_BYTES_MAX, Document, OverrideStore};
use tollgate::policy::{Override, Policies};
use tollgate::spec::{LimitSpec, OverrideSpec, PolicySpec};
use tollgate::{Error, ErrorKind, Policy, Timestamp};
use tollgate_protocol::json::{FROM_API, OverrideDescription, PlanSubject, PoliciesResponse};

use crate::bounds::{ASSIGNED_MAX, OVERRIDE_TRIES_MAX, OVERRIDES_MAX, POLICIES_MAX};
use crate::live_policies::check_policy_name;

/// The format version that is written, and the newest that is read.
const FORM: u32 = 2;

/// The format version before patterns, blocked and unlimited subjects. It is written as long as there are none, so that
/// older programs read it.
const PLAIN_FORM: u32 = 1;

/// The overrides of a store, by policy and subject, and the plans that subjects were put on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    version: u64,
    all: BTreeMap<(String, String), OverrideSpec>,
    plans: BTreeMap<String, String>,
    /// By name.
    policies: BTreeMap<String, PolicySpec>,
}

/// Checks whether a policy fits the store and the strategy of this server.
pub type PolicyCheck<'a> = &'a dyn Fn(&Policy) -> Result<(), Error>;

/// An override that does not fit its policy, or a subject on a plan that it cannot be on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// The policy; empty for the plan of a subject.
    pub policy: String,
    /// The subject; empty for a policy.
    pub subject: String,
    /// The reason.
    pub why: String,
}

#[derive(Serialize, Deserialize)]
struct StoredDocument {
    form: u32,
    #[serde(default)]
    overrides: Vec<StoredOverride>,
    /// The name of the plan by subject.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    plans: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    policies: Vec<PolicySpec>,
}

#[derive(Serialize, Deserialize)]
struct StoredOverride {
    policy: String,
    subject: String,
    limits: Vec<LimitSpec>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limit: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    unlimited: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    weight: Option<u64>,
}

impl From<StoredOverride> for ((String, String), OverrideSpec) {
    fn from(stored: StoredOverride) -> Self {
        let StoredOverride { policy, subject, limits, limit, unlimited, weight } = stored;
        let spec = OverrideSpec { subject: subject.clone(), limits, limit, unlimited, weight };
        ((policy, subject), spec)
    }
}

impl Overrides {
    /// Reads the overrides of `store`.
    ///
    /// # Errors
    /// If they cannot be read, or were written by a newer version.
    pub async fn read(store: &dyn OverrideStore) -> Result<Self, Error> {
        Ok(Self::default().newer(store).await?.unwrap_or_default())
    }

    /// Reads the overrides of `store`; `None` if they are unchanged.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn newer(&self, store: &dyn OverrideStore) -> Result<Option<Self>, Error> {
        store.read(self.version).await?.map(|document| Self::parse(&document)).transpose()
    }

    /// Applies `change` to the overrides of `store` by compare-and-swap; `change` returns whether it changed anything.
    /// Returns the resulting overrides, and whether they changed.
    ///
    /// # Errors
    /// Those of `change` and of [`read`](Self::read), [`Invalid`](ErrorKind::Invalid) beyond a bound, and
    /// [`Contended`](ErrorKind::Contended) after [`OVERRIDE_TRIES_MAX`] lost races.
    pub async fn change(
        store: &dyn OverrideStore,
        now: Timestamp,
        change: impl Fn(&mut Self) -> Result<bool, Error>,
    ) -> Result<(Self, bool), Error> {
        for _ in 0..OVERRIDE_TRIES_MAX {
            let found = Self::read(store).await?;
            let mut next = found.clone();
            if !change(&mut next)? {
                return Ok((found, false));
            }
            // From the clock, so that no two documents have the same version, even after a lost write.
            next.version = (found.version + 1).max(now.as_micros());
            if store.replace(found.version, &next.document()?).await? {
                return Ok((next, true));
            }
        }
        let text = "other servers keep changing the overrides; try again";
        Err(Error::new(ErrorKind::Contended, text))
    }

    /// Sets an override of `policy`, as configured. Returns whether it changed.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if it does not fit the policy, or if there are too many.
    pub fn put(&mut self, policy: &Policy, spec: &OverrideSpec) -> Result<bool, Error> {
        if spec.is_empty() {
            let text = "limits must name at least one limit and what changes, unless weight, limit = 0 or unlimited is \
                        there; to give a subject the policy's own numbers again, remove its override";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        fit(&PolicySpec::without_overrides(policy), spec).map_err(|why| {
            Error::new(ErrorKind::Invalid, format!("policy {:?}: {why}", policy.name()))
        })?;
        self.check_specificity(policy, &spec.subject)?;
        let key = (policy.name().to_owned(), spec.subject.clone());
        if OVERRIDES_MAX <= self.all.len() && !self.all.contains_key(&key) {
            let text = format!(
                "there are {OVERRIDES_MAX} overrides already; remove some, or write them into the configuration"
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(self.all.insert(key, spec.clone()).as_ref() != Some(spec))
    }

    /// Checks that no other pattern for `policy`, here or in the configuration, is as specific as `subject`.
    fn check_specificity(&self, policy: &Policy, subject: &str) -> Result<(), Error> {
        if !is_pattern(subject) {
            return Ok(());
        }
        let own = self.all.keys().filter(|(name, _)| name == policy.name());
        let others = policy.overrides().map(|(other, _)| other);
        let others: BTreeSet<&str> = others.chain(own.map(|(_, other)| &**other)).collect();
        let others = others.into_iter().filter(|other| *other != subject && is_pattern(other));
        check_subjects(others.chain([subject])).map_err(|clash| {
            let text = format!("policy {:?}: overrides: {clash}", policy.name());
            Error::new(ErrorKind::Invalid, text)
        })
    }

    /// Removes an override. Returns whether there was one.
    ///
    /// # Errors
    /// If `subject` is not a valid subject.
    pub fn remove(&mut self, policy: &str, subject: &str) -> Result<bool, Error> {
        check_subject(subject)?;
        Ok(self.all.remove(&(policy.to_owned(), subject.to_owned())).is_some())
    }

    /// Defines the policy of `spec`, which `file` does not have. Returns whether that changed anything.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if it is in the configuration, [`Invalid`](ErrorKind::Invalid) if the configuration could
    /// not have it either, or there are too many.
    pub fn define(
        &mut self,
        file: &Policies,
        spec: &PolicySpec,
        check: PolicyCheck<'_>,
    ) -> Result<bool, Error> {
        let policy = spec.build()?;
        if file.get(&spec.name).is_ok() {
            return Err(in_configuration(&spec.name));
        }
        check_policy_name(&spec.name)?;
        check(&policy)?;
        if POLICIES_MAX <= self.policies.len() && !self.policies.contains_key(&spec.name) {
            let text = format!(
                "{POLICIES_MAX} policies were made by API already; remove some, or write them into the configuration"
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let known = self.policies.insert(spec.name.clone(), spec.clone());
        Ok(known.as_ref() != Some(spec))
    }

    /// Removes a policy that was made by API, and its overrides. Returns whether there was one.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if it is in the configuration, [`Invalid`](ErrorKind::Invalid) if no policy can have the
    /// name.
    pub fn undefine(&mut self, file: &Policies, name: &str) -> Result<bool, Error> {
        if NAME_BYTES_MAX < name.len() {
            let text = format!(
                "a policy name must be at most {NAME_BYTES_MAX} bytes long, not {}",
                name.len()
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let is_removed = self.policies.remove(name).is_some();
        if !is_removed && file.get(name).is_ok() {
            return Err(in_configuration(name));
        }
        if is_removed && file.get(name).is_err() {
            self.all.retain(|(policy, _), _| policy != name);
        }
        Ok(is_removed)
    }

    /// Returns `file` with the policies that were made by API, and those that do not fit. A policy in the configuration goes before one
    /// of the same name.
    #[must_use]
    pub fn with_policies(&self, file: &Policies, check: PolicyCheck<'_>) -> (Policies, Vec<Unfit>) {
        if self.policies.is_empty() {
            return (file.clone(), Vec::new());
        }
        let (mut more, mut unfit) = (Vec::new(), Vec::new());
        for (name, spec) in &self.policies {
            let fitted = match file.get(name) {
                Ok(_) => Err(in_configuration(name)),
                Err(_) => spec.build().and_then(|policy| check(&policy).map(|()| policy)),
            };
            match fitted {
                Ok(policy) => more.push(policy),
                Err(why) => unfit.push(unfit_policy(name, &why)),
            }
        }
        match file.with_policies(more) {
            Ok(policies) => (policies, unfit),
            Err(why) => {
                (file.clone(), self.policies.keys().map(|name| unfit_policy(name, &why)).collect())
            }
        }
    }

    /// Puts `subject` on the plan called `plan`, which `file` has. Returns whether that changed anything.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if there is no such plan, `subject` is as specific as another pattern on a plan, or there
    /// are too many.
    pub fn assign(&mut self, file: &Policies, subject: &str, plan: &str) -> Result<bool, Error> {
        check_subject(subject)?;
        if ASSIGNED_MAX <= self.plans.len() && !self.plans.contains_key(subject) {
            let text = format!(
                "{ASSIGNED_MAX} subjects were put on plans already; remove some, or write them into the configuration"
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let mut next = self.plans.clone();
        let is_changed = next.insert(subject.to_owned(), plan.to_owned()).as_deref() != Some(plan);
        let (_, refused) = file.with_subjects_on_plans(&next);
        if let Some((_, why)) = refused.into_iter().find(|(refused, _)| refused == subject) {
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        self.plans = next;
        Ok(is_changed)
    }

    /// Returns the plan that `subject` was put on, and forgets it.
    ///
    /// # Errors
    /// If `subject` is not a valid subject.
    pub fn unassign(&mut self, subject: &str) -> Result<Option<String>, Error> {
        check_subject(subject)?;
        Ok(self.plans.remove(subject))
    }

    /// Adds the overrides of `other`; with `overwrite` they replace existing ones. Returns how many were added.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if there would be too many.
    pub fn merge(&mut self, other: &Self, overwrite: bool) -> Result<usize, Error> {
        let mut taken = 0;
        for (key, spec) in &other.all {
            let own = self.all.get(key);
            if own.is_none() || (overwrite && own != Some(spec)) {
                self.all.insert(key.clone(), spec.clone());
                taken += 1;
            }
        }
        for (name, spec) in &other.policies {
            let own = self.policies.get(name);
            if own.is_none() || (overwrite && own != Some(spec)) {
                self.policies.insert(name.clone(), spec.clone());
                taken += 1;
            }
        }
        for (subject, plan) in &other.plans {
            let own = self.plans.get(subject);
            if own.is_none() || (overwrite && own != Some(plan)) {
                self.plans.insert(subject.clone(), plan.clone());
                taken += 1;
            }
        }
        if OVERRIDES_MAX < self.all.len() {
            let text = format!(
                "there would be {} overrides, and a store keeps at most {OVERRIDES_MAX}; remove some",
                self.all.len()
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(taken)
    }

    /// Removes all but the overrides of `policy`.
    pub fn keep_policy(&mut self, policy: &str) {
        self.plans.clear();
        self.policies.retain(|name, _| name == policy);
        self.all.retain(|(name, _), _| name == policy);
    }

    /// Returns the number of overrides, of subjects on plans and of policies.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len() + self.plans.len() + self.policies.len()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether `subject` has an override of `policy`.
    #[must_use]
    pub fn has(&self, policy: &str, subject: &str) -> bool {
        self.all.contains_key(&(policy.to_owned(), subject.to_owned()))
    }

    /// Applies the policies, the plans and the overrides to `file`. Returns those that do not fit, too.
    #[must_use]
    pub fn apply(&self, file: &Policies, check: PolicyCheck<'_>) -> (Policies, Vec<Unfit>) {
        let (file, unfit_policies) = self.with_policies(file, check);
        let (file, mut unfit) = self.apply_plans(&file);
        unfit.extend(unfit_policies);
        let mut changes: BTreeMap<&str, Vec<(&str, Override)>> = BTreeMap::new();
        let mut plain: BTreeMap<&str, PolicySpec> = BTreeMap::new();
        for ((policy, subject), spec) in &self.all {
            let fitted = file.get(policy).map_err(|error| error.to_string()).and_then(|found| {
                fit(
                    plain.entry(policy).or_insert_with(|| PolicySpec::without_overrides(found)),
                    spec,
                )
            });
            match fitted {
                Ok(own) => changes.entry(policy).or_default().push((subject, own)),
                Err(why) => {
                    let (policy, subject) = (policy.clone(), subject.clone());
                    unfit.push(Unfit { policy, subject, why });
                }
            }
        }
        let policies = file.map(|policy| {
            let mut changes = changes.remove(policy.name())?;
            remove_clashes(policy, &mut changes, &mut unfit);
            let subjects: Vec<String> = changes.iter().map(|(to, _)| (*to).to_owned()).collect();
            let changes = changes.into_iter().map(|(to, own)| (to, Some(own)));
            // Each fits alone, so together they are too many.
            let refused = |error: &tollgate::core::Error| {
                unfit.extend(subjects.into_iter().map(|subject| Unfit {
                    policy: policy.name().to_owned(),
                    subject,
                    why: error.to_string(),
                }));
            };
            policy.with_overrides(changes).inspect_err(refused).ok()
        });
        (policies, unfit)
    }

    /// Returns `file` with the subjects on their plans, and those that cannot be on them.
    fn apply_plans(&self, file: &Policies) -> (Policies, Vec<Unfit>) {
        if self.plans.is_empty() {
            return (file.clone(), Vec::new());
        }
        let (file, refused) = file.with_subjects_on_plans(&self.plans);
        let unfit = |(subject, why)| Unfit { policy: String::new(), subject, why };
        (file, refused.into_iter().map(unfit).collect())
    }

    /// Describes the policies in force, with `unfit` overrides.
    #[must_use]
    pub fn describe(&self, in_force: &Policies, unfit: &[Unfit]) -> PoliciesResponse {
        let mut listed = PoliciesResponse::from(in_force);
        for plan in &mut listed.plans {
            let own = self.plans.iter().filter(|(_, name)| **name == plan.name);
            plan.assigned = own.map(|(subject, _)| assigned(subject, unfit)).collect();
        }
        for policy in &mut listed.policies {
            let is_own = |unfit: &Unfit| unfit.policy == policy.name && unfit.subject.is_empty();
            if self.policies.contains_key(&policy.name) && !unfit.iter().any(is_own) {
                policy.source = Some(FROM_API.to_owned());
            }
            let is_unfit = |subject: &str| {
                let mut unfit = unfit.iter();
                unfit.any(|unfit| unfit.policy == policy.name && unfit.subject == subject)
            };
            for overridden in &mut policy.overridden {
                let subject = &overridden.subject;
                if self.has(&policy.name, subject) && !is_unfit(subject) {
                    FROM_API.clone_into(&mut overridden.source);
                }
            }
            let without_effect = unfit
                .iter()
                .filter(|unfit| unfit.policy == policy.name && !unfit.subject.is_empty());
            policy.overridden.extend(without_effect.map(|unfit| OverrideDescription {
                subject: unfit.subject.clone(),
                source: FROM_API.to_owned(),
                limits: Vec::new(),
                unlimited: false,
                weight: 1,
                unfit: Some(unfit.why.clone()),
            }));
        }
        listed
    }

    /// Parses a document.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) if it does not parse, [`Invalid`](ErrorKind::Invalid) if a newer version wrote it.
    pub fn parse(document: &Document) -> Result<Self, Error> {
        let version = document.version;
        if document.text.is_empty() {
            return Ok(Self { version, ..Self::default() });
        }
        let broken = |error: serde_json::Error| {
            Error::new(ErrorKind::Corrupt, "the overrides in the store are unreadable")
                .caused_by(error)
        };
        let stored: StoredDocument = serde_json::from_str(&document.text).map_err(broken)?;
        if FORM < stored.form {
            let text = format!(
                "the overrides in the store have form {} and this program reads up to {FORM}; use the newer program that \
                 wrote them",
                stored.form
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let all = stored.overrides.into_iter().map(Into::into).collect();
        let policies = stored.policies.into_iter().map(|spec| (spec.name.clone(), spec)).collect();
        Ok(Self { version, all, plans: stored.plans, policies })
    }

    /// Serializes the document.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if it is too large.
    pub fn document(&self) -> Result<Document, Error> {
        let overrides = self.all.iter().map(|((policy, subject), spec)| StoredOverride {
            policy: policy.clone(),
            subject: subject.clone(),
            limits: spec.limits.clone(),
            limit: spec.limit,
            unlimited: spec.unlimited,
            weight: spec.weight,
        });
        let is_plain = self.plans.is_empty()
            && self.policies.is_empty()
            && !self.all.values().any(is_new_kind);
        let form = if is_plain { PLAIN_FORM } else { FORM };
        let (overrides, plans) = (overrides.collect(), self.plans.clone());
        let policies = self.policies.values().cloned().collect();
        let stored = StoredDocument { form, overrides, plans, policies };
        let text = serde_json::to_string(&stored).map_err(|error| {
            Error::new(ErrorKind::Corrupt, "the overrides cannot be written").caused_by(error)
        })?;
        if DOCUMENT_BYTES_MAX < text.len() {
            let text = format!(
                "the overrides would have {} bytes, and a store keeps at most {DOCUMENT_BYTES_MAX}; remove some, or write \
                 them into the configuration",
                text.len()
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(Document { version: self.version, text })
    }
}

fn in_configuration(name: &str) -> Error {
    let text = format!("the policy {name:?} is in the configuration; change it there");
    Error::new(ErrorKind::Conflict, text)
}

fn unfit_policy(name: &str, why: &Error) -> Unfit {
    Unfit { policy: name.to_owned(), subject: String::new(), why: why.to_string() }
}

/// Describes `subject`, which was put on a plan.
fn assigned(subject: &str, unfit: &[Unfit]) -> PlanSubject {
    let mut unfit = unfit.iter().filter(|unfit| unfit.policy.is_empty());
    let unfit = unfit.find(|unfit| unfit.subject == subject).map(|unfit| unfit.why.clone());
    PlanSubject { subject: subject.to_owned(), unfit }
}

/// Returns whether programs from before patterns, blocked and unlimited subjects would misread `spec`.
fn is_new_kind(spec: &OverrideSpec) -> bool {
    let blocks = |limit: &LimitSpec| limit.limit == Some(0) || limit.capacity == Some(0);
    is_pattern(&spec.subject)
        || spec.limit.is_some()
        || spec.unlimited
        || spec.limits.iter().any(blocks)
}

/// Moves those of `changes` to `unfit` that are patterns as specific as another one of `policy`, which changed since.
fn remove_clashes(policy: &Policy, changes: &mut Vec<(&str, Override)>, unfit: &mut Vec<Unfit>) {
    let is_kept = |text: &str| !changes.iter().any(|(subject, _)| *subject == text);
    let patterns = policy.overrides().map(|(text, _)| text).filter(|text| is_pattern(text));
    let file: Vec<&str> = patterns.filter(|text| is_kept(text)).collect();
    loop {
        let subjects = changes.iter().map(|(subject, _)| *subject);
        let Err(clash) = check_subjects(file.iter().copied().chain(subjects)) else { return };
        // The configuration has no clash of its own, and its patterns come first.
        let Some(index) = clash.index.checked_sub(file.len()) else { return };
        let (subject, _) = changes.remove(index);
        let (policy, why) = (policy.name().to_owned(), clash.to_string());
        unfit.push(Unfit { policy, subject: subject.to_owned(), why });
    }
}

/// Returns what the subject of `spec` has of its own under `policy`, or the reason why `spec` does not fit.
fn fit(policy: &PolicySpec, spec: &OverrideSpec) -> Result<Override, String> {
    let alone = PolicySpec { overrides: vec![spec.clone()], ..policy.clone() };
    let policy = alone.resolve().map_err(|fault| fault.to_string())?;
    Ok(policy.override_of(&spec.subject).unwrap_or(&policy).as_override_of(&policy))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A newer format may have another meaning, so nothing of it is read.
    #[test]
    fn overrides_of_a_newer_version_are_refused() {
        let read = |form: u32| {
            let text = format!(r#"{{"form": {form}, "overrides": [], "since": "later"}}"#);
            Overrides::parse(&Document { version: 1, text })
        };
        assert!(read(FORM).is_ok());
        let error = read(FORM + 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let what =
            format!("have form {} and this program reads up to {FORM}; use the newer", FORM + 1);
        assert!(error.to_string().contains(&what), "{error}");
    }
}
