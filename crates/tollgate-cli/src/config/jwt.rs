//! `[jwt]`: whose JSON Web Tokens are accepted, and which claims are the subject and the plan.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use tollgate::{Error, ErrorKind, Span};
use tollgate_config::{Diagnostic, Document};
use tollgate_server::jwt::{JwtOptions, KEY_SET_BYTES_MAX, KeySet};

use super::is_plain_beyond_loopback;

/// The longest leeway: beyond it an expired token would be useful for too long.
const LEEWAY_MAX: Span = Span::from_mins(5);

/// The section as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JwtTable {
    jwks_file: Option<String>,
    jwks_url: Option<String>,
    issuer: Option<String>,
    audience: Option<String>,
    subject_claim: Option<String>,
    plan_claim: Option<String>,
    leeway: Option<String>,
}

/// Where the key set of the issuer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeySetSource {
    /// A file, which is watched.
    File(PathBuf),
    /// A URL, which is read at the start, every now and then, and when a token has an unknown key.
    Url(String),
}

/// The section, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JwtConfig {
    pub(crate) source: KeySetSource,
    pub(crate) options: JwtOptions,
}

impl JwtConfig {
    pub(super) fn resolve(document: &Document) -> Result<Option<Self>, Diagnostic> {
        let Some(table) = document.section::<JwtTable>("jwt")? else { return Ok(None) };
        let error = |key: &str, message: &str| document.error(&["jwt", key], message);
        let source = match (table.jwks_file, table.jwks_url) {
            (Some(file), None) => KeySetSource::File(document.folder().join(file)),
            (None, Some(url)) => {
                let is_url = ["https://", "http://"].iter().any(|start| url.starts_with(start));
                if !is_url || is_plain_beyond_loopback(&url) {
                    let message = "jwks_url must begin with https://, since whoever changes the keys can make tokens";
                    return Err(error("jwks_url", message));
                }
                KeySetSource::Url(url)
            }
            _ => {
                let message = "[jwt] needs either jwks_file or jwks_url, the key set of the issuer";
                return Err(error("jwks_url", message));
            }
        };
        let need = |key: &str, value: Option<String>, example: &str| {
            value.filter(|value| !value.is_empty()).ok_or_else(|| {
                error(key, &format!("[jwt] needs {key}, as in {key} = \"{example}\""))
            })
        };
        let leeway = match &table.leeway {
            Some(text) => document.duration(&["jwt", "leeway"], text, [Span::ZERO, LEEWAY_MAX])?,
            None => Span::from_secs(60),
        };
        let options = JwtOptions {
            issuer: need("issuer", table.issuer, "https://id.example/")?,
            audience: need("audience", table.audience, "https://api.example")?,
            subject_claim: table.subject_claim.unwrap_or_else(|| "sub".to_owned()),
            plan_claim: table.plan_claim,
            leeway,
            can_refetch: matches!(source, KeySetSource::Url(_)),
        };
        Ok(Some(Self { source, options }))
    }

    /// Returns the file of the key set.
    pub(crate) fn file(&self) -> Option<&Path> {
        match &self.source {
            KeySetSource::File(path) => Some(path),
            KeySetSource::Url(_) => None,
        }
    }

    /// Reads the key set, if it is in a file.
    pub(crate) fn read(&self) -> Result<Option<KeySet>, Error> {
        let Some(path) = self.file() else { return Ok(None) };
        let invalid = |text: String| {
            Error::new(ErrorKind::Invalid, format!("jwks_file {}: {text}", path.display()))
        };
        let text = std::fs::read_to_string(path)
            .map_err(|error| invalid(format!("cannot be read: {error}")))?;
        if KEY_SET_BYTES_MAX < text.len() {
            return Err(invalid(format!("has more than {KEY_SET_BYTES_MAX} bytes")));
        }
        KeySet::parse(&text).map(Some).map_err(|error| invalid(error.to_string()))
    }
}
