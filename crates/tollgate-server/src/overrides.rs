//! Overrides that are made while the server runs: what the document in the store says, and what it makes of policies.
//!
//! A file says what is in force for good; an override by API is on top of it and wins over one in the file. Where the file
//! changes and an override does not fit any more, the subject gets the policy's own numbers, and the override is shown
//! with the reason until it fits again or is removed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tollgate::overrides::{DOCUMENT_BYTES_MAX, Document, OverrideStore};
use tollgate::spec::{LimitSpec, OverrideSpec, PolicySpec};
use tollgate::{Error, ErrorKind, Limit, Policies, Policy, Timestamp};

use crate::bounds::{OVERRIDE_TRIES_MAX, OVERRIDES_MAX};
use crate::wire::{FROM_API, OverrideDescription, PoliciesResponse};
use tollgate::core::check_subject;

/// The form of the documents that this program writes, and the newest that it reads.
const FORM: u32 = 1;

/// Every override of a store, by policy and subject.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    version: u64,
    all: BTreeMap<(String, String), Vec<LimitSpec>>,
}

/// An override that the policies have no place for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// The policy it is for.
    pub policy: String,
    /// The subject it is for.
    pub subject: String,
    /// What is wrong with it.
    pub why: String,
}

#[derive(Serialize, Deserialize)]
struct Form {
    form: u32,
    #[serde(default)]
    overrides: Vec<Line>,
}

#[derive(Serialize, Deserialize)]
struct Line {
    policy: String,
    subject: String,
    limits: Vec<LimitSpec>,
}

impl Overrides {
    /// What `store` has.
    ///
    /// # Errors
    /// If it cannot be read, or if it was written by a newer program.
    pub async fn read(store: &dyn OverrideStore) -> Result<Self, Error> {
        Ok(Self::default().newer(store).await?.unwrap_or_default())
    }

    /// What `store` has, if it is another than this.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn newer(&self, store: &dyn OverrideStore) -> Result<Option<Self>, Error> {
        store.read(self.version).await?.map(|document| Self::parse(&document)).transpose()
    }

    /// Changes what `store` has by `change`, which says whether it changed anything, at the time `now`. Says what is
    /// there afterwards, and whether that is due to this.
    ///
    /// # Errors
    /// Whatever `change` says; otherwise as [`read`](Self::read), [`Invalid`](ErrorKind::Invalid) beyond a bound, and
    /// [`Contended`](ErrorKind::Contended) if others are always faster.
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
            // By the clock, so that a server that lost a write never sees two documents of one version.
            next.version = (found.version + 1).max(now.as_micros());
            if store.replace(found.version, &next.document()?).await? {
                return Ok((next, true));
            }
        }
        let text = "others change the overrides all the time; ask again";
        Err(Error::new(ErrorKind::Contended, text))
    }

    /// Sets the override that `spec` is on `policy`, as its file says it is. Says whether that is another than before.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if it does not fit the policy, or if there are too many.
    pub fn put(&mut self, policy: &Policy, spec: &OverrideSpec) -> Result<bool, Error> {
        if spec.limits.is_empty() {
            let text = "limits must name at least one limit and what changes; to give a subject the policy's own \
                        numbers again, remove its override";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        fit(&bare(policy), spec).map_err(|why| {
            Error::new(ErrorKind::Invalid, format!("policy {:?}: {why}", policy.name()))
        })?;
        let key = (policy.name().to_owned(), spec.subject.clone());
        if OVERRIDES_MAX <= self.all.len() && !self.all.contains_key(&key) {
            let text = format!(
                "there are {OVERRIDES_MAX} overrides already; remove some, or write them into the configuration"
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let before = self.all.insert(key, spec.limits.clone());
        Ok(before.as_ref() != Some(&spec.limits))
    }

    /// Removes an override. Says whether there was one.
    ///
    /// # Errors
    /// If nobody can be called `subject`.
    pub fn remove(&mut self, policy: &str, subject: &str) -> Result<bool, Error> {
        check_subject(subject)?;
        Ok(self.all.remove(&(policy.to_owned(), subject.to_owned())).is_some())
    }

    /// Takes over what `other` has. Where both have one for a policy and subject, `overwrite` says whether this one is
    /// replaced. Returns how many were taken over.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if there would be too many.
    pub fn merge(&mut self, other: &Self, overwrite: bool) -> Result<usize, Error> {
        let mut taken = 0;
        for (key, limits) in &other.all {
            let own = self.all.get(key);
            if own.is_none() || (overwrite && own != Some(limits)) {
                self.all.insert(key.clone(), limits.clone());
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

    /// Forgets all but those of `policy`.
    pub fn keep_policy(&mut self, policy: &str) {
        self.all.retain(|(name, _), _| name == policy);
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether `subject` has one under `policy`.
    #[must_use]
    pub fn has(&self, policy: &str, subject: &str) -> bool {
        self.all.contains_key(&(policy.to_owned(), subject.to_owned()))
    }

    /// `file` with these on top of it, and those that do not fit.
    #[must_use]
    pub fn over(&self, file: &Policies) -> (Policies, Vec<Unfit>) {
        let mut unfit = Vec::new();
        let mut changes: BTreeMap<&str, Vec<(&str, Vec<Limit>)>> = BTreeMap::new();
        let mut bares: BTreeMap<&str, PolicySpec> = BTreeMap::new();
        for ((policy, subject), limits) in &self.all {
            let spec = OverrideSpec { subject: subject.clone(), limits: limits.clone() };
            let fitted = file
                .get(policy)
                .map_err(|error| error.to_string())
                .and_then(|found| fit(bares.entry(policy).or_insert_with(|| bare(found)), &spec));
            match fitted {
                Ok(limits) => changes.entry(policy).or_default().push((subject, limits)),
                Err(why) => {
                    let (policy, subject) = (policy.clone(), subject.clone());
                    unfit.push(Unfit { policy, subject, why });
                }
            }
        }
        let policies = file.map(|policy| {
            let changes = changes.remove(policy.name())?;
            let subjects: Vec<String> = changes.iter().map(|(to, _)| (*to).to_owned()).collect();
            let changes = changes.into_iter().map(|(to, limits)| (to, Some(limits)));
            // Each fits alone, so what is wrong with all of them is that they are too many.
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

    /// `in_force` as it is listed, where these are on top of a file and `unfit` are not.
    #[must_use]
    pub fn describe(&self, in_force: &Policies, unfit: &[Unfit]) -> PoliciesResponse {
        let mut listed: PoliciesResponse = in_force.iter().collect();
        for policy in &mut listed.policies {
            let is_unfit = |subject: &str| {
                let mut unfit = unfit.iter();
                unfit.any(|unfit| unfit.policy == policy.name && unfit.subject == subject)
            };
            for of in &mut policy.overridden {
                if self.has(&policy.name, &of.subject) && !is_unfit(&of.subject) {
                    FROM_API.clone_into(&mut of.source);
                }
            }
            let without_effect = unfit.iter().filter(|unfit| unfit.policy == policy.name);
            policy.overridden.extend(without_effect.map(|unfit| OverrideDescription {
                subject: unfit.subject.clone(),
                source: FROM_API.to_owned(),
                limits: Vec::new(),
                unfit: Some(unfit.why.clone()),
            }));
        }
        listed
    }

    /// Reads a document.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) if it is none, [`Invalid`](ErrorKind::Invalid) if a newer program wrote it.
    pub fn parse(document: &Document) -> Result<Self, Error> {
        let version = document.version;
        if document.text.is_empty() {
            return Ok(Self { version, ..Self::default() });
        }
        let broken = |error: serde_json::Error| {
            Error::new(ErrorKind::Corrupt, "the overrides in the store are unreadable")
                .caused_by(error)
        };
        let form: Form = serde_json::from_str(&document.text).map_err(broken)?;
        if FORM < form.form {
            let text = format!(
                "the overrides in the store have form {} and this program reads up to {FORM}; use the newer program that \
                 wrote them",
                form.form
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let lines = form.overrides.into_iter();
        let all = lines.map(|line| ((line.policy, line.subject), line.limits)).collect();
        Ok(Self { version, all })
    }

    /// The document to store.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if it is too large.
    pub fn document(&self) -> Result<Document, Error> {
        let lines = self.all.iter().map(|((policy, subject), limits)| Line {
            policy: policy.clone(),
            subject: subject.clone(),
            limits: limits.clone(),
        });
        let form = Form { form: FORM, overrides: lines.collect() };
        let text = serde_json::to_string(&form).map_err(|error| {
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

/// `policy` as written, without anybody's override.
fn bare(policy: &Policy) -> PolicySpec {
    let plain = policy.with_overrides(policy.overrides().map(|(subject, _)| (subject, None)));
    PolicySpec::of(plain.as_ref().unwrap_or(policy))
}

/// The limits that `spec` gives its subject under `policy`, or what is wrong with it.
fn fit(policy: &PolicySpec, spec: &OverrideSpec) -> Result<Vec<Limit>, String> {
    let alone = PolicySpec { overrides: vec![spec.clone()], ..policy.clone() };
    let policy = alone.resolve().map_err(|fault| fault.to_string())?;
    Ok(policy.for_subject(&spec.subject).limits().cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A form that this program does not know may mean something else, so nothing of it is read.
    #[test]
    fn overrides_of_a_newer_program_are_refused() {
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
