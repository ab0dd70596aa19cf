//! `[[key]]`: the API keys and their scopes.

use std::path::Path;

use serde::Deserialize;
use tollgate::internal::Step;
use tollgate::policy::Policies;
use tollgate::{Error, ErrorKind, Timestamp};
use tollgate_config::{Diagnostic, Document, Secret};
use tollgate_server::THROTTLE_POLICY;
use tollgate_server::keys::{Key, KeyHash, Scope, Scopes};

/// The section as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyTable {
    name: String,
    scopes: Vec<String>,
    hash: Option<String>,
    hash_env: Option<String>,
    hash_file: Option<String>,
    expires: Option<String>,
    #[serde(default)]
    policies: Vec<String>,
    #[serde(default)]
    subjects: Vec<String>,
    #[serde(default)]
    tenants: Vec<String>,
}

/// The most keys of one file: each request is compared with all of them.
const KEYS_MAX: usize = 1_000;

/// A key whose hash may have to be read from elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyConfig {
    name: String,
    scopes: Scopes,
    hash: Secret,
    expires: Option<Timestamp>,
    policies: Vec<String>,
    subjects: Vec<String>,
    tenants: Vec<String>,
}

/// The most policies, and the most patterns of subjects and of tenants, that a key has.
const BINDINGS_MAX: usize = 100;

impl KeyConfig {
    pub(super) fn resolve_all(
        document: &Document,
        known: &Policies,
    ) -> Result<Vec<Self>, Diagnostic> {
        let tables: Vec<KeyTable> = document.section("key")?.unwrap_or_default();
        if KEYS_MAX < tables.len() {
            let message = format!("has {} keys; at most {KEYS_MAX} are possible", tables.len());
            return Err(document.whole_error(message));
        }
        let mut keys: Vec<Self> = Vec::with_capacity(tables.len());
        for (index, table) in tables.iter().enumerate() {
            let blame = |field, message: String| {
                document.element_error("key", index, &[Step::Field(field)], message)
            };
            if keys.iter().any(|key| key.name == table.name) {
                let message =
                    format!("two keys are called {:?}; give each its own name", table.name);
                return Err(blame("name", message));
            }
            let scopes = table.scopes.iter().map(|scope| scope.parse());
            let scopes = scopes.collect::<Result<Vec<Scope>, Error>>();
            let scopes = scopes.map_err(|error| blame("scopes", error.to_string()))?;
            if scopes.is_empty() {
                let message = "a key needs a scope: \"acquire\", \"inspect\" or \"administer\"";
                return Err(blame("scopes", message.to_owned()));
            }
            for name in table.policies.iter().filter(|name| **name != THROTTLE_POLICY) {
                known.get(name).map_err(|error| blame("policies", error.to_string()))?;
            }
            let lists = [
                ("policies", &table.policies),
                ("subjects", &table.subjects),
                ("tenants", &table.tenants),
            ];
            for (field, list) in lists {
                if BINDINGS_MAX < list.len() {
                    let message =
                        format!("has {} {field}; at most {BINDINGS_MAX} are possible", list.len());
                    return Err(blame(field, message));
                }
            }
            let expires = table.expires.as_deref().map(str::parse::<Timestamp>).transpose();
            let expires = expires.map_err(|error| blame("expires", error.to_string()))?;
            let hash = [&table.hash, &table.hash_env, &table.hash_file].map(Option::as_deref);
            let hash = Secret::resolve(document, "a key", "hash", hash)
                .map_err(|message| blame("name", message))?;
            if let Some(hash) = &table.hash {
                let parsed = hash.parse::<KeyHash>();
                parsed.map_err(|error| blame("hash", format!("hash {error}")))?;
            }
            if let Some(other) = keys.iter().find(|key| key.hash == hash) {
                let message = format!(
                    "this is the key {:?} already; make another with tollgate keys new",
                    other.name
                );
                return Err(blame("name", message));
            }
            keys.push(Self {
                name: table.name.clone(),
                scopes: scopes.into_iter().collect(),
                hash,
                expires,
                policies: table.policies.clone(),
                subjects: table.subjects.clone(),
                tenants: table.tenants.clone(),
            });
        }
        Ok(keys)
    }

    /// Returns the file with the hash, if it is in a file.
    pub(crate) fn file(&self) -> Option<&Path> {
        match &self.hash {
            Secret::File(path) => Some(path),
            Secret::Inline(_) | Secret::Environment(_) => None,
        }
    }

    /// Reads the hash and returns the key.
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
            tenants: self.tenants.clone(),
        })
    }
}
