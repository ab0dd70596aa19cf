//! The tables `[[key]]`: who may ask, look and change.

use std::path::Path;

use tollgate::spec::Step;
use tollgate::{Error, ErrorKind, Policies, Timestamp};
use tollgate_server::THROTTLE_POLICY;
use tollgate_server::keys::{Key, KeyHash, Scope, Scopes};

use super::place::Text;
use super::{Blame, Secret, file};

/// The most keys of one file: each request is compared with every one.
const KEYS_MAX: usize = 1_000;

/// A key whose hash may still have to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyConfig {
    name: String,
    scopes: Scopes,
    hash: Secret,
    expires: Option<Timestamp>,
    policies: Vec<String>,
    subjects: Vec<String>,
}

/// The most policies, and the most patterns of subjects, that a key is bound to.
const BINDINGS_MAX: usize = 100;

impl KeyConfig {
    pub(super) fn resolve_all(
        text: &Text<'_>,
        tables: &[file::KeyTable],
        folder: &Path,
        known: &Policies,
    ) -> Result<Vec<Self>, Blame> {
        if KEYS_MAX < tables.len() {
            let what = format!("has {} keys; at most {KEYS_MAX} are possible", tables.len());
            return Err(Blame::whole(text.file(), what));
        }
        let mut keys: Vec<Self> = Vec::with_capacity(tables.len());
        for (index, table) in tables.iter().enumerate() {
            let blame =
                |field, what: String| text.blame_element("key", index, &[Step::Field(field)], what);
            if keys.iter().any(|key| key.name == table.name) {
                let what = format!("two keys are called {:?}; give each its own name", table.name);
                return Err(blame("name", what));
            }
            let scopes = table.scopes.iter().map(|scope| scope.parse());
            let scopes = scopes.collect::<Result<Vec<Scope>, Error>>();
            let scopes = scopes.map_err(|error| blame("scopes", error.to_string()))?;
            if scopes.is_empty() {
                let what = "a key needs a scope: \"acquire\", \"inspect\" or \"administer\"";
                return Err(blame("scopes", what.to_owned()));
            }
            for name in table.policies.iter().filter(|name| **name != THROTTLE_POLICY) {
                known.get(name).map_err(|error| blame("policies", error.to_string()))?;
            }
            for (field, list) in [("policies", &table.policies), ("subjects", &table.subjects)] {
                if BINDINGS_MAX < list.len() {
                    let what =
                        format!("has {} {field}; at most {BINDINGS_MAX} are possible", list.len());
                    return Err(blame(field, what));
                }
            }
            let expires = table.expires.as_deref().map(str::parse::<Timestamp>).transpose();
            let expires = expires.map_err(|error| blame("expires", error.to_string()))?;
            let hash = [&table.hash, &table.hash_env, &table.hash_file].map(Option::as_deref);
            let hash = Secret::resolve("a key", "hash", hash, folder)
                .map_err(|what| blame("name", what))?;
            if let Some(text) = &table.hash {
                let parsed = text.parse::<KeyHash>();
                parsed.map_err(|error| blame("hash", format!("hash {error}")))?;
            }
            if let Some(other) = keys.iter().find(|key| key.hash == hash) {
                let what = format!(
                    "this is the key {:?} already; make another with tollgate keys new",
                    other.name
                );
                return Err(blame("name", what));
            }
            keys.push(Self {
                name: table.name.clone(),
                scopes: scopes.into_iter().collect(),
                hash,
                expires,
                policies: table.policies.clone(),
                subjects: table.subjects.clone(),
            });
        }
        Ok(keys)
    }

    /// The file that its hash is in, if it is in one.
    pub(crate) fn file(&self) -> Option<&Path> {
        match &self.hash {
            Secret::File(path) => Some(path),
            Secret::Here(_) | Secret::Environment(_) => None,
        }
    }

    /// The key, with its hash read from where it is.
    pub(crate) fn read(&self) -> Result<Key, Error> {
        let hash = self.hash.read()?.trim().parse().map_err(|error: Error| {
            Error::new(ErrorKind::Invalid, format!("the hash of the key {:?} {error}", self.name))
        })?;
        Ok(Key {
            name: self.name.clone(),
            hash,
            scopes: self.scopes,
            expires: self.expires,
            policies: self.policies.clone(),
            subjects: self.subjects.clone(),
        })
    }
}
