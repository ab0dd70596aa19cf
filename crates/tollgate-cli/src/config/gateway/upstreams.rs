//! `[[upstream]]`: one credential at one provider.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hyper::Uri;
use serde::Deserialize;
use tollgate::internal::Step;
use tollgate::{Error, ErrorKind};
use tollgate_config::{Diagnostic, Document, Secret};
use tollgate_gateway::Upstream;
use tollgate_providers::{Dialect, INPUT_TOKENS, OUTPUT_TOKENS, TOKENS, UsageMap};

use super::super::is_plain_beyond_loopback;
use super::{check_name, secret_file};

/// The section as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct UpstreamTable {
    name: String,
    dialect: String,
    url: Option<String>,
    key: Option<String>,
    key_env: Option<String>,
    key_file: Option<String>,
    usage: Option<BTreeMap<String, String>>,
    inject_usage: Option<bool>,
    #[serde(default)]
    models: BTreeMap<String, String>,
    authority_file: Option<String>,
}

/// The most upstreams of a gateway.
const UPSTREAMS_MAX: usize = 256;

/// The units that usage is mapped to.
const UNITS: [&str; 3] = [TOKENS, INPUT_TOKENS, OUTPUT_TOKENS];

/// An upstream whose key is not read yet.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamConfig {
    pub(crate) name: String,
    pub(crate) dialect: Dialect,
    pub(crate) url: String,
    pub(crate) key: Secret,
    pub(super) usage: UsageMap,
    inject_usage: bool,
    models: BTreeMap<String, String>,
    /// The authorities to trust instead of the system's.
    pub(crate) authority: Option<PathBuf>,
}

pub(super) fn resolve_all(
    document: &Document,
    warnings: &mut Vec<String>,
) -> Result<Vec<UpstreamConfig>, Diagnostic> {
    let tables: Vec<UpstreamTable> = document.section("upstream")?.unwrap_or_default();
    if tables.is_empty() {
        let message = "a gateway needs an [[upstream]] with name, dialect and key_env, as in name = \"openai-main\", \
                       dialect = \"openai\", key_env = \"OPENAI_API_KEY\"";
        return Err(document.error(&["gateway"], message));
    }
    if UPSTREAMS_MAX < tables.len() {
        let message =
            format!("has {} upstreams; at most {UPSTREAMS_MAX} are possible", tables.len());
        return Err(document.whole_error(message));
    }
    let mut upstreams: Vec<UpstreamConfig> = Vec::with_capacity(tables.len());
    for (index, table) in tables.iter().enumerate() {
        let blame = |(field, message): (&'static str, String)| {
            document.element_error("upstream", index, &[Step::Field(field)], message)
        };
        let upstream = resolve(document, table, &upstreams).map_err(blame)?;
        if is_plain_beyond_loopback(&upstream.url) {
            let (name, url) = (&upstream.name, &upstream.url);
            let message = format!(
                "the upstream {name:?} is called over plain http, so its key and every prompt travel unencrypted to {url}; use https"
            );
            warnings.push(blame(("url", message)).to_string());
        }
        upstreams.push(upstream);
    }
    Ok(upstreams)
}

fn resolve(
    document: &Document,
    table: &UpstreamTable,
    earlier: &[UpstreamConfig],
) -> Result<UpstreamConfig, (&'static str, String)> {
    let name = &table.name;
    check_name("the name of an upstream", name).map_err(|message| ("name", message))?;
    if earlier.iter().any(|upstream| upstream.name == *name) {
        return Err(("name", format!("two upstreams are called {name:?}; give each its own name")));
    }
    let dialect: Dialect = table
        .dialect
        .parse()
        .map_err(|error: tollgate_providers::Error| ("dialect", error.to_string()))?;
    let key = [&table.key, &table.key_env, &table.key_file].map(Option::as_deref);
    let key = Secret::resolve(document, "an upstream", "key", key).map_err(|message| {
        let variable = dialect.key_variables().first().copied().unwrap_or_default();
        ("name", format!("{message}, as in key_env = \"{variable}\""))
    })?;
    let usage = match &table.usage {
        None => dialect.usage_map(),
        Some(given) => usage_map(given).map_err(|message| ("usage", message))?,
    };
    for (client, upstream) in &table.models {
        if client.is_empty() || upstream.is_empty() || client.contains('*') {
            let message = format!(
                "models {client:?} = {upstream:?} must be two names of models, without *, as in {{ fast = \"gpt-4o-mini\" }}"
            );
            return Err(("models", message));
        }
    }
    Ok(UpstreamConfig {
        name: name.clone(),
        dialect,
        url: base_url(table.url.as_deref().unwrap_or(dialect.url()))
            .map_err(|message| ("url", message))?,
        key,
        usage,
        inject_usage: table.inject_usage.unwrap_or(true),
        models: table.models.clone(),
        authority: table.authority_file.as_ref().map(|path| document.folder().join(path)),
    })
}

fn usage_map(given: &BTreeMap<String, String>) -> Result<UsageMap, String> {
    if let Some(unit) = given.keys().find(|unit| !UNITS.contains(&unit.as_str())) {
        let hint = tollgate::internal::nearest(unit, UNITS);
        let hint = hint.map(|unit| format!(" did you mean {unit}?")).unwrap_or_default();
        return Err(format!("usage has no unit {unit:?};{hint} known: {}", UNITS.join(", ")));
    }
    let entries = given.iter().map(|(unit, fields)| (unit.as_str(), fields.as_str()));
    UsageMap::parse(entries).map_err(|error| error.to_string())
}

/// Checks the URL, and removes its trailing slash.
fn base_url(url: &str) -> Result<String, String> {
    const RIGHT: &str = "write it as in \"https://api.openai.com\"";
    let uri: Uri =
        url.parse().map_err(|error| format!("url {url:?} is not a URL ({error}); {RIGHT}"))?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    let has_user = uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
    if !is_http || uri.host().is_none_or(str::is_empty) || uri.query().is_some() || has_user {
        return Err(format!(
            "url {url:?} must have http or https, a host, no user and no query; {RIGHT}"
        ));
    }
    let url = url.trim_end_matches('/');
    for version in ["/v1", "/v1beta"] {
        if let Some(base) = url.strip_suffix(version) {
            return Err(format!(
                "url {url:?} ends with the version of the API, which is part of the path of every call; write \"{base}\""
            ));
        }
    }
    Ok(url.to_owned())
}

impl UpstreamConfig {
    /// Returns the files that it names.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        secret_file(&self.key).into_iter().chain(self.authority.as_deref())
    }

    /// Returns the name at this upstream of the model that clients call `model`.
    pub(crate) fn model_there<'a>(&'a self, model: &'a str) -> &'a str {
        self.models.get(model).map_or(model, String::as_str)
    }

    /// Reads the key.
    pub(crate) fn read_key(&self) -> Result<String, Error> {
        let key = self.key.read()?;
        let key = key.trim();
        if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            let text = format!(
                "the key of the upstream {:?} is not one word of ASCII; check that it was copied whole",
                self.name
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(key.to_owned())
    }

    /// Reads the certificates to trust instead of the system's.
    pub(crate) fn read_authority(&self) -> Result<Option<Vec<u8>>, Error> {
        let authority = self.authority.as_deref().map(std::fs::read).transpose();
        authority.map_err(|error| {
            let text = format!(
                "the authority_file of the upstream {:?} cannot be read: {error}",
                self.name
            );
            Error::new(ErrorKind::Invalid, text)
        })
    }

    /// Reads the key and the authorities.
    pub(crate) fn read(&self) -> Result<Upstream, Error> {
        Ok(Upstream {
            url: self.url.clone(),
            usage: self.usage.clone(),
            inject_usage: self.inject_usage,
            models: self.models.clone(),
            authority: self.read_authority()?,
            ..Upstream::new(self.name.as_str(), self.dialect, self.read_key()?)
        })
    }
}
