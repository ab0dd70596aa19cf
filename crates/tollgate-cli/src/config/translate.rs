//! Where the jobs of `tollgate translate` are kept: `[translate]`.

use std::path::{Path, PathBuf};

use tollgate::Span;
use tollgate_translate::job::LEASE_DEFAULT;

use super::fallback::span;
use super::file::TranslateTable;
use super::place::Text;
use super::store::PATH_DEFAULT;
use super::{Blame, Secret, StoreConfig};

const SCHEMA_DEFAULT: &str = "tollgate";

/// The shortest and the longest time that a worker may be silent before others take its chunks.
const LEASE_RANGE: [Span; 2] = [Span::from_secs(1), Span::from_hours(1)];

/// How long a job that runs waits for a database that is away.
const PATIENCE_DEFAULT: Span = Span::from_mins(30);

/// The shortest and the longest such time that can be set.
const PATIENCE_RANGE: [Span; 2] = [Span::from_secs(1), Span::from_hours(7 * 24)];

/// Where jobs are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobsConfig {
    /// In a folder of this machine.
    Embedded { path: PathBuf },
    /// In a PostgreSQL database, for workers on many machines.
    Postgres { url: Secret, schema: String, lease: Span, patience: Span },
}

impl JobsConfig {
    pub(super) fn resolve(
        text: &Text<'_>,
        table: &TranslateTable,
        store: &StoreConfig,
        folder: &Path,
    ) -> Result<Self, Blame> {
        let TranslateTable { jobs, path, url, url_env, url_file, schema, lease, patience } = table;
        let given = [
            ("path", path.is_some(), "embedded"),
            ("url", url.is_some(), "postgres"),
            ("url_env", url_env.is_some(), "postgres"),
            ("url_file", url_file.is_some(), "postgres"),
            ("schema", schema.is_some(), "postgres"),
            ("lease", lease.is_some(), "postgres"),
            ("patience", patience.is_some(), "postgres"),
        ];
        let kind = jobs.as_deref().unwrap_or("embedded");
        if !["embedded", "postgres"].contains(&kind) {
            let what = format!("jobs {kind:?} is neither \"embedded\" nor \"postgres\"");
            return Err(text.blame(&["translate", "jobs"], what));
        }
        if let Some((key, _, of)) = given.into_iter().find(|(_, is, of)| *is && *of != kind) {
            let what = format!("{key} is for jobs = \"{of}\"; remove it, or use that");
            return Err(text.blame(&["translate", key], what));
        }
        if kind == "postgres" {
            let places = [url, url_env, url_file].map(Option::as_deref);
            let url = Secret::resolve("a database of jobs", "url", places, folder)
                .map_err(|what| text.blame(&["translate", "jobs"], what))?;
            let schema = schema.clone().unwrap_or_else(|| SCHEMA_DEFAULT.to_owned());
            let lease = match lease {
                Some(lease) => span(text, ["translate", "lease"], lease, LEASE_RANGE)?,
                None => LEASE_DEFAULT,
            };
            let patience = match patience {
                Some(most) => span(text, ["translate", "patience"], most, PATIENCE_RANGE)?,
                None => PATIENCE_DEFAULT,
            };
            return Ok(Self::Postgres { url, schema, lease, patience });
        }
        Ok(Self::Embedded {
            path: match (path, store) {
                (Some(path), _) => folder.join(path),
                (None, StoreConfig::Embedded { path, .. }) => path.clone(),
                (None, _) => folder.join(PATH_DEFAULT),
            },
        })
    }
}
