//! Where the jobs of `tollgate translate` are kept: `[translate]`.

use std::path::{Path, PathBuf};

use tollgate::Span;
use tollgate_telemetry::sinks::aws::Place;
use tollgate_translate::job::LEASE_DEFAULT;

use super::fallback::span;
use super::file::TranslateTable;
use super::place::Text;
use super::store::PATH_DEFAULT;
use super::{Blame, Secret, StoreConfig};

const SCHEMA_DEFAULT: &str = "tollgate";

/// Not that of the quota, which has another key.
const TABLE_DEFAULT: &str = "tollgate-jobs";

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
    /// In a DynamoDB table, for workers and functions on AWS.
    DynamoDb { table: String, place: Place, lease: Span },
}

impl JobsConfig {
    pub(super) fn resolve(
        text: &Text<'_>,
        table: &TranslateTable,
        store: &StoreConfig,
        folder: &Path,
    ) -> Result<Self, Blame> {
        let TranslateTable {
            jobs,
            path,
            url,
            url_env,
            url_file,
            schema,
            table,
            region,
            endpoint,
            lease,
            patience,
        } = table;
        let shared = ["postgres", "dynamodb"].as_slice();
        let given = [
            ("path", path.is_some(), ["embedded"].as_slice()),
            ("url", url.is_some(), &shared[..1]),
            ("url_env", url_env.is_some(), &shared[..1]),
            ("url_file", url_file.is_some(), &shared[..1]),
            ("schema", schema.is_some(), &shared[..1]),
            ("table", table.is_some(), &shared[1..]),
            ("region", region.is_some(), &shared[1..]),
            ("endpoint", endpoint.is_some(), &shared[1..]),
            ("lease", lease.is_some(), shared),
            ("patience", patience.is_some(), &shared[..1]),
        ];
        let kind = jobs.as_deref().unwrap_or("embedded");
        if !["embedded", "postgres", "dynamodb"].contains(&kind) {
            let what = format!(
                "unknown kind of jobs {kind:?}; use \"embedded\", \"postgres\" or \"dynamodb\""
            );
            return Err(text.blame(&["translate", "jobs"], what));
        }
        if let Some((key, _, of)) = given.into_iter().find(|(_, is, of)| *is && !of.contains(&kind))
        {
            let kinds = of.iter().map(|kind| format!("jobs = \"{kind}\"")).collect::<Vec<_>>();
            let what = format!("{key} is for {}; remove it, or use that", kinds.join(" or "));
            return Err(text.blame(&["translate", key], what));
        }
        let lease = match lease {
            Some(lease) => span(text, ["translate", "lease"], lease, LEASE_RANGE)?,
            None => LEASE_DEFAULT,
        };
        let patience = match patience {
            Some(most) => span(text, ["translate", "patience"], most, PATIENCE_RANGE)?,
            None => PATIENCE_DEFAULT,
        };
        if kind == "postgres" {
            let places = [url, url_env, url_file].map(Option::as_deref);
            let url = Secret::resolve("a database of jobs", "url", places, folder)
                .map_err(|what| text.blame(&["translate", "jobs"], what))?;
            let schema = schema.clone().unwrap_or_else(|| SCHEMA_DEFAULT.to_owned());
            return Ok(Self::Postgres { url, schema, lease, patience });
        }
        if kind == "dynamodb" {
            let place = Place { region: region.clone(), endpoint: endpoint.clone(), keys: None };
            let table = table.clone().unwrap_or_else(|| TABLE_DEFAULT.to_owned());
            return Ok(Self::DynamoDb { table, place, lease });
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
