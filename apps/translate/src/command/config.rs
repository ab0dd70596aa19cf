//! The section `[translate]`: the store of the jobs.

use std::path::PathBuf;

use serde::Deserialize;
use tollgate::Span;
use tollgate_config::{Config, Diagnostic, PATH_DEFAULT, Secret, StoreConfig};
use tollgate_telemetry::sinks::aws::AwsOptions;

use crate::job::LEASE_DEFAULT;

/// The section of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct TranslateTable {
    jobs: Option<String>,
    path: Option<String>,
    url: Option<String>,
    url_env: Option<String>,
    url_file: Option<String>,
    schema: Option<String>,
    table: Option<String>,
    region: Option<String>,
    endpoint: Option<String>,
    lease: Option<String>,
    patience: Option<String>,
}

const SCHEMA_DEFAULT: &str = "tollgate";

/// Differs from the table of the quota, which has another key.
const TABLE_DEFAULT: &str = "tollgate-jobs";

/// The range of `lease`: how long a claim lives without being renewed.
const LEASE_RANGE: [Span; 2] = [Span::from_secs(1), Span::from_hours(1)];

/// How long a running job waits during an outage of the database.
const PATIENCE_DEFAULT: Span = Span::from_mins(30);

/// The range of `patience`.
const PATIENCE_RANGE: [Span; 2] = [Span::from_secs(1), Span::from_hours(7 * 24)];

/// The store of the jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobsConfig {
    /// A folder of this machine.
    Embedded {
        /// The folder.
        path: PathBuf,
    },
    /// A PostgreSQL database, for workers on many machines.
    Postgres {
        /// The URL of the database.
        url: Secret,
        /// The schema of the tables.
        schema: String,
        /// How long a claim lives without being renewed.
        lease: Span,
        /// How long a running job waits during an outage.
        patience: Span,
    },
    /// A DynamoDB table, for workers and functions on AWS.
    DynamoDb {
        /// The table.
        table: String,
        /// The region and the endpoint.
        aws: AwsOptions,
        /// How long a claim lives without being renewed.
        lease: Span,
    },
}

impl JobsConfig {
    /// Parses the section, if the file has it.
    ///
    /// # Errors
    /// If it is invalid.
    pub fn configured(config: &Config) -> Result<Option<Self>, Diagnostic> {
        let section: Option<TranslateTable> = config.document.section("translate")?;
        section.map(|_| Self::resolve(config)).transpose()
    }

    /// Parses the section, or returns the defaults.
    ///
    /// # Errors
    /// If it is invalid.
    pub fn resolve(Config { document, store, .. }: &Config) -> Result<Self, Diagnostic> {
        let section: Option<TranslateTable> = document.section("translate")?;
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
        } = section.unwrap_or_default();
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
            let message = format!(
                "unknown kind of jobs {kind:?}; use \"embedded\", \"postgres\" or \"dynamodb\""
            );
            return Err(document.error(&["translate", "jobs"], message));
        }
        if let Some((key, _, of)) = given.into_iter().find(|(_, is, of)| *is && !of.contains(&kind))
        {
            let kinds = of.iter().map(|kind| format!("jobs = \"{kind}\"")).collect::<Vec<_>>();
            let message = format!("{key} is for {}; remove it, or use that", kinds.join(" or "));
            return Err(document.error(&["translate", key], message));
        }
        let lease = match lease {
            Some(lease) => document.duration(&["translate", "lease"], &lease, LEASE_RANGE)?,
            None => LEASE_DEFAULT,
        };
        let patience = match patience {
            Some(most) => document.duration(&["translate", "patience"], &most, PATIENCE_RANGE)?,
            None => PATIENCE_DEFAULT,
        };
        if kind == "postgres" {
            let places = [&url, &url_env, &url_file].map(Option::as_deref);
            let url = Secret::resolve(document, "a database of jobs", "url", places)
                .map_err(|message| document.error(&["translate", "jobs"], message))?;
            let schema = schema.unwrap_or_else(|| SCHEMA_DEFAULT.to_owned());
            return Ok(Self::Postgres { url, schema, lease, patience });
        }
        if kind == "dynamodb" {
            let aws = AwsOptions { region, endpoint, keys: None };
            let table = table.unwrap_or_else(|| TABLE_DEFAULT.to_owned());
            return Ok(Self::DynamoDb { table, aws, lease });
        }
        Ok(Self::Embedded {
            path: match (path, store) {
                (Some(path), _) => document.folder().join(path),
                (None, StoreConfig::Embedded { path, .. }) => path.clone(),
                (None, _) => document.folder().join(PATH_DEFAULT),
            },
        })
    }
}
