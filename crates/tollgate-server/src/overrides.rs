//! Overrides made by API: their document in the store, and their effect on policies.
//!
//! An override by API takes precedence over one in the configuration. If it no longer fits a changed configuration, the
//! subject gets the policy's own numbers, and the override is listed with the reason until it fits again or is removed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tollgate::core::check_subject;
use tollgate::overrides::{DOCUMENT_BYTES_MAX, Document, OverrideStore};
use tollgate::policy::{Override, Policies};
use tollgate::spec::{LimitSpec, OverrideSpec, PolicySpec};
use tollgate::{Error, ErrorKind, Policy, Timestamp};
use tollgate_protocol::json::{FROM_API, OverrideDescription, PoliciesResponse};

use crate::bounds::{OVERRIDE_TRIES_MAX, OVERRIDES_MAX};

/// The format version that is written, and the newest that is read.
const FORM: u32 = 1;

/// The overrides of a store, by policy and subject.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    version: u64,
    all: BTreeMap<(String, String), Numbers>,
}

/// What an override changes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Numbers {
    limits: Vec<LimitSpec>,
    weight: Option<u64>,
}

/// An override that does not fit its policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// The policy.
    pub policy: String,
    /// The subject.
    pub subject: String,
    /// The reason.
    pub why: String,
}

#[derive(Serialize, Deserialize)]
struct StoredDocument {
    form: u32,
    #[serde(default)]
    overrides: Vec<StoredOverride>,
}

#[derive(Serialize, Deserialize)]
struct StoredOverride {
    policy: String,
    subject: String,
    limits: Vec<LimitSpec>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    weight: Option<u64>,
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
        if spec.limits.is_empty() && spec.weight.is_none() {
            let text = "limits must name at least one limit and what changes, unless weight does; to give a subject the \
                        policy's own numbers again, remove its override";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        fit(&without_overrides(policy), spec).map_err(|why| {
            Error::new(ErrorKind::Invalid, format!("policy {:?}: {why}", policy.name()))
        })?;
        let key = (policy.name().to_owned(), spec.subject.clone());
        if OVERRIDES_MAX <= self.all.len() && !self.all.contains_key(&key) {
            let text = format!(
                "there are {OVERRIDES_MAX} overrides already; remove some, or write them into the configuration"
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let numbers = Numbers { limits: spec.limits.clone(), weight: spec.weight };
        Ok(self.all.insert(key, numbers.clone()) != Some(numbers))
    }

    /// Removes an override. Returns whether there was one.
    ///
    /// # Errors
    /// If `subject` is not a valid subject.
    pub fn remove(&mut self, policy: &str, subject: &str) -> Result<bool, Error> {
        check_subject(subject)?;
        Ok(self.all.remove(&(policy.to_owned(), subject.to_owned())).is_some())
    }

    /// Adds the overrides of `other`; with `overwrite` they replace existing ones. Returns how many were added.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if there would be too many.
    pub fn merge(&mut self, other: &Self, overwrite: bool) -> Result<usize, Error> {
        let mut taken = 0;
        for (key, numbers) in &other.all {
            let own = self.all.get(key);
            if own.is_none() || (overwrite && own != Some(numbers)) {
                self.all.insert(key.clone(), numbers.clone());
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

    /// Removes all but those of `policy`.
    pub fn keep_policy(&mut self, policy: &str) {
        self.all.retain(|(name, _), _| name == policy);
    }

    /// Returns the number of overrides.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns whether there are no overrides.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns whether `subject` has an override of `policy`.
    #[must_use]
    pub fn has(&self, policy: &str, subject: &str) -> bool {
        self.all.contains_key(&(policy.to_owned(), subject.to_owned()))
    }

    /// Applies the overrides to `file`. Returns those that do not fit, too.
    #[must_use]
    pub fn apply(&self, file: &Policies) -> (Policies, Vec<Unfit>) {
        let mut unfit = Vec::new();
        let mut changes: BTreeMap<&str, Vec<(&str, Override)>> = BTreeMap::new();
        let mut plain: BTreeMap<&str, PolicySpec> = BTreeMap::new();
        for ((policy, subject), Numbers { limits, weight }) in &self.all {
            let (limits, weight) = (limits.clone(), *weight);
            let spec = OverrideSpec { subject: subject.clone(), limits, weight };
            let fitted = file.get(policy).map_err(|error| error.to_string()).and_then(|found| {
                fit(plain.entry(policy).or_insert_with(|| without_overrides(found)), &spec)
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
            let changes = changes.remove(policy.name())?;
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

    /// Describes the policies in force, with `unfit` overrides.
    #[must_use]
    pub fn describe(&self, in_force: &Policies, unfit: &[Unfit]) -> PoliciesResponse {
        let mut listed: PoliciesResponse = in_force.iter().collect();
        for policy in &mut listed.policies {
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
            let without_effect = unfit.iter().filter(|unfit| unfit.policy == policy.name);
            policy.overridden.extend(without_effect.map(|unfit| OverrideDescription {
                subject: unfit.subject.clone(),
                source: FROM_API.to_owned(),
                limits: Vec::new(),
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
        let overrides = stored.overrides.into_iter();
        let numbers = |limits, weight| Numbers { limits, weight };
        let all = overrides
            .map(|one| ((one.policy, one.subject), numbers(one.limits, one.weight)))
            .collect();
        Ok(Self { version, all })
    }

    /// Serializes the document.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if it is too large.
    pub fn document(&self) -> Result<Document, Error> {
        let overrides = self.all.iter().map(|((policy, subject), numbers)| StoredOverride {
            policy: policy.clone(),
            subject: subject.clone(),
            limits: numbers.limits.clone(),
            weight: numbers.weight,
        });
        let stored = StoredDocument { form: FORM, overrides: overrides.collect() };
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

/// Returns `policy` without overrides.
fn without_overrides(policy: &Policy) -> PolicySpec {
    let plain = policy.with_overrides(policy.overrides().map(|(subject, _)| (subject, None)));
    PolicySpec::from_policy(plain.as_ref().unwrap_or(policy))
}

/// Returns what the subject of `spec` has of its own under `policy`, or the reason why `spec` does not fit.
fn fit(policy: &PolicySpec, spec: &OverrideSpec) -> Result<Override, String> {
    let alone = PolicySpec { overrides: vec![spec.clone()], ..policy.clone() };
    let policy = alone.resolve().map_err(|fault| fault.to_string())?;
    Ok(policy.for_subject(&spec.subject).as_override_of(&policy))
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
