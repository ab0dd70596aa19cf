//! `[[gateway.key]]`: the keys of the gateway's callers.

use serde::Deserialize;
use tollgate::core::bounds::SUBJECT_BYTES_MAX;
use tollgate::internal::Step;
use tollgate::{Error, ErrorKind, Timestamp};
use tollgate_config::{Diagnostic, Document, Secret};
use tollgate_gateway::{GatewayKey, Route};
use tollgate_server::keys::KeyHash;

use super::unknown;

/// The section as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GatewayKeyTable {
    name: String,
    hash: Option<String>,
    hash_env: Option<String>,
    hash_file: Option<String>,
    subject: Option<String>,
    team: Option<String>,
    #[serde(default)]
    routes: Vec<String>,
    #[serde(default)]
    trusted: bool,
    expires: Option<String>,
}

/// The most keys of a gateway.
const KEYS_MAX: usize = 10_000;

/// A key whose hash may have to be read from elsewhere.
#[derive(Clone, Debug)]
pub(super) struct GatewayKeyConfig {
    pub(super) name: String,
    pub(super) hash: Secret,
    subject: String,
    pub(super) team: Option<String>,
    pub(super) routes: Vec<String>,
    pub(super) trusted: bool,
    expires: Option<Timestamp>,
}

fn error(document: &Document, index: usize, field: &'static str, message: String) -> Diagnostic {
    let path = [Step::Field("key"), Step::Element(index), Step::Field(field)];
    document.nested_error("gateway", &path, message)
}

pub(super) fn resolve_all(
    document: &Document,
    tables: &[GatewayKeyTable],
) -> Result<Vec<GatewayKeyConfig>, Diagnostic> {
    if tables.is_empty() {
        let message = "a gateway needs a [[gateway.key]] for its callers; make one with tollgate keys new NAME --gateway";
        return Err(document.error(&["gateway"], message));
    }
    if KEYS_MAX < tables.len() {
        let message = format!("has {} keys; at most {KEYS_MAX} are possible", tables.len());
        return Err(document.error(&["gateway", "key"], message));
    }
    let mut keys: Vec<GatewayKeyConfig> = Vec::with_capacity(tables.len());
    for (index, table) in tables.iter().enumerate() {
        let blame = |field, message| error(document, index, field, message);
        keys.push(
            resolve(document, table, &keys).map_err(|(field, message)| blame(field, message))?,
        );
    }
    Ok(keys)
}

fn resolve(
    document: &Document,
    table: &GatewayKeyTable,
    earlier: &[GatewayKeyConfig],
) -> Result<GatewayKeyConfig, (&'static str, String)> {
    let name = &table.name;
    if name.is_empty() || name.contains(|sign: char| sign.is_control()) {
        return Err(("name", "the name of a key is one line of text".to_owned()));
    }
    if earlier.iter().any(|key| key.name == *name) {
        return Err(("name", format!("two keys are called {name:?}; give each its own name")));
    }
    let subject = table.subject.clone().unwrap_or_else(|| name.clone());
    let given = [("subject", Some(&subject)), ("team", table.team.as_ref())];
    for (field, text) in given.into_iter().filter_map(|(field, text)| Some((field, text?))) {
        if !(1..=SUBJECT_BYTES_MAX).contains(&text.len()) {
            let message =
                format!("{field} must be 1 to {SUBJECT_BYTES_MAX} bytes long, not {}", text.len());
            return Err((field, message));
        }
    }
    let hash = [&table.hash, &table.hash_env, &table.hash_file].map(Option::as_deref);
    let hash = Secret::resolve(document, "a key", "hash", hash).map_err(|message| {
        ("name", format!("{message}; tollgate keys new {name} --gateway makes one"))
    })?;
    if let Some(hash) = &table.hash {
        hash.parse::<KeyHash>().map_err(|error| ("hash", format!("hash {error} --gateway")))?;
    }
    if let Some(other) = earlier.iter().find(|key| key.hash == hash) {
        let message = format!(
            "this is the key {:?} already; make another with tollgate keys new --gateway",
            other.name
        );
        return Err(("name", message));
    }
    let expires = table.expires.as_deref().map(str::parse::<Timestamp>).transpose();
    Ok(GatewayKeyConfig {
        name: name.clone(),
        hash,
        subject,
        team: table.team.clone(),
        routes: table.routes.clone(),
        trusted: table.trusted,
        expires: expires.map_err(|error| ("expires", error.to_string()))?,
    })
}

/// Checks that the routes that keys are bound to exist.
pub(super) fn check_routes(
    document: &Document,
    keys: &[GatewayKeyConfig],
    routes: &[Route],
) -> Result<(), Diagnostic> {
    let known = routes.iter().map(|route| route.name.as_str());
    for (index, key) in keys.iter().enumerate() {
        if let Some(name) =
            key.routes.iter().find(|name| !known.clone().any(|known| known == *name))
        {
            let message = unknown("route", name, known.clone());
            return Err(error(document, index, "routes", message));
        }
    }
    Ok(())
}

impl GatewayKeyConfig {
    /// Returns whether it may use the route called `name`.
    pub(super) fn may_use(&self, name: &str) -> bool {
        self.routes.is_empty() || self.routes.iter().any(|route| route == name)
    }

    /// Reads the hash and returns the key.
    pub(super) fn read(&self) -> Result<GatewayKey, Error> {
        let hash = self.hash.read()?.trim().parse().map_err(|error: Error| {
            let text = format!("the hash of the gateway's key {:?} {error} --gateway", self.name);
            Error::new(ErrorKind::Invalid, text)
        })?;
        Ok(GatewayKey {
            name: self.name.clone(),
            hash,
            subject: self.subject.clone(),
            team: self.team.clone(),
            routes: self.routes.clone(),
            trusted: self.trusted,
            expires: self.expires,
        })
    }
}
