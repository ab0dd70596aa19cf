//! `[store]`: where the state is kept. Each kind takes its own keys only.

use std::path::PathBuf;

use serde::Deserialize;
use tollgate::Policy;
use tollgate::core::bounds::IDS_MAX;
use tollgate::memory::KEYS_MAX_DEFAULT;

use crate::broker::{self, BrokerConfig};
use crate::redis::{self, RedisConfig, RedisServers};
use crate::{Diagnostic, Document, Secret, format};

/// The data folder if none is configured.
pub const PATH_DEFAULT: &str = "tollgate-data";

const TABLE_DEFAULT: &str = "tollgate";

/// The largest bound of a store in this process; this many of either take some tens of gigabytes.
const BOUND_MAX: usize = 100_000_000;

/// The default bound of an embedded store.
#[cfg(feature = "embedded")]
const EMBEDDED_KEYS_MAX: u64 = tollgate_embedded::KEYS_MAX_DEFAULT;
#[cfg(not(feature = "embedded"))]
const EMBEDDED_KEYS_MAX: u64 = 0;

/// The keys of `kind = "postgres"`.
const POSTGRES_KEYS: &[&str] = &[
    "url",
    "url_env",
    "url_file",
    "schema",
    "transaction_pooling",
    "authority_file",
    "attempt_timeout",
];

/// The section as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoreTable {
    pub(crate) kind: Option<String>,
    pub(crate) path: Option<String>,
    pub(crate) durability: Option<String>,
    pub(crate) url: Option<String>,
    pub(crate) url_env: Option<String>,
    pub(crate) url_file: Option<String>,
    pub(crate) schema: Option<String>,
    pub(crate) transaction_pooling: Option<bool>,
    pub(crate) authority_file: Option<String>,
    pub(crate) table: Option<String>,
    pub(crate) region: Option<String>,
    pub(crate) endpoint: Option<String>,
    pub(crate) cluster: Option<bool>,
    pub(crate) prefix: Option<String>,
    pub(crate) slot_tag: Option<String>,
    pub(crate) wait_replicas: Option<u32>,
    pub(crate) sentinel: Option<Vec<String>>,
    pub(crate) master: Option<String>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) password_env: Option<String>,
    pub(crate) password_file: Option<String>,
    pub(crate) sentinel_user: Option<String>,
    pub(crate) sentinel_password: Option<String>,
    pub(crate) sentinel_password_env: Option<String>,
    pub(crate) sentinel_password_file: Option<String>,
    pub(crate) tls: Option<bool>,
    pub(crate) database: Option<u32>,
    pub(crate) grpc: Option<String>,
    pub(crate) resp: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) key_env: Option<String>,
    pub(crate) key_file: Option<String>,
    pub(crate) certificate_file: Option<String>,
    pub(crate) certificate_key_file: Option<String>,
    pub(crate) attempt_timeout: Option<String>,
    pub(crate) keys_max: Option<u64>,
    pub(crate) ids_max: Option<u64>,
    pub(crate) format: Option<u64>,
}

/// Where the state is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreConfig {
    /// The memory of the broker's process.
    Memory {
        /// The most entries.
        keys_max: usize,
        /// The most ids of asks.
        ids_max: usize,
    },
    /// A folder on this machine.
    Embedded {
        /// The folder.
        path: PathBuf,
        /// What a crash may lose.
        durability: Durability,
        /// The most entries.
        keys_max: u64,
    },
    /// Another broker.
    Broker(Box<BrokerConfig>),
    /// A DynamoDB table.
    DynamoDb(DynamoDbConfig),
    /// A PostgreSQL database.
    Postgres(PostgresConfig),
    /// Redis or Valkey.
    Redis(RedisConfig),
}

/// A DynamoDB table. Credentials come from the AWS credential chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DynamoDbConfig {
    /// The name of the table.
    pub table: String,
    /// The region.
    pub region: Option<String>,
    /// Another endpoint than the region's.
    pub endpoint: Option<String>,
    /// The format of items; the newest if `None`.
    pub format: Option<u8>,
}

/// A PostgreSQL database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresConfig {
    /// The URL, with its password.
    pub url: Secret,
    /// The schema of the tables.
    pub schema: Option<String>,
    /// Whether a pooler changes the connection between transactions.
    pub transaction_pooling: bool,
    /// Certificate authorities to trust instead of the system's.
    pub authority: Option<PathBuf>,
    /// The format of rows; the newest if `None`.
    pub format: Option<u8>,
}

/// What a crash may lose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Nothing that was answered.
    Strict,
    /// The last fraction of a second.
    Relaxed,
}

impl StoreConfig {
    /// Returns the `kind` in the configuration.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Memory { .. } => "memory",
            Self::Embedded { .. } => "embedded",
            Self::Broker(_) => "broker",
            Self::DynamoDb(_) => "dynamodb",
            Self::Postgres(_) => "postgres",
            Self::Redis(_) => "redis",
        }
    }

    /// Returns the kind of a store on a server, which can be unavailable; `None` for one inside the process.
    #[must_use]
    pub const fn remote_kind(&self) -> Option<&'static str> {
        match self {
            Self::Memory { .. } | Self::Embedded { .. } => None,
            _ => Some(self.kind()),
        }
    }

    /// Returns the field and the error of a policy that the store cannot keep.
    pub(crate) fn check_policy(&self, policy: &Policy) -> Result<(), (&'static str, String)> {
        if policy.subjects_max().is_some() && !self.bounds_keys() {
            let message = format!(
                "subjects_max is for the stores \"memory\" and \"embedded\"; remove it, the server of a {} store has \
                 bounds of its own",
                self.kind()
            );
            return Err(("subjects_max", message));
        }
        #[cfg(feature = "dynamodb")]
        if matches!(self, Self::DynamoDb(_)) {
            let overrides = policy.overrides().map(|(_, other)| other);
            for policy in [policy].into_iter().chain(overrides).chain(policy.plans().flatten()) {
                tollgate_dynamodb::DynamoDb::check(policy)
                    .map_err(|error| ("name", error.to_string()))?;
            }
        }
        Ok(())
    }

    /// Returns whether the store bounds its keys itself, with `keys_max` and `subjects_max`. Servers have bounds of their own.
    #[must_use]
    pub const fn bounds_keys(&self) -> bool {
        matches!(self, Self::Memory { .. } | Self::Embedded { .. })
    }

    /// Returns the format that entries are written in, if it is not the newest.
    #[must_use]
    pub fn older_format(&self) -> Option<u8> {
        let format = match self {
            Self::Memory { .. } | Self::Embedded { .. } | Self::Broker(_) => None,
            Self::DynamoDb(config) => config.format,
            Self::Postgres(config) => config.format,
            Self::Redis(config) => config.format,
        };
        format.filter(|format| format::known(self.kind()).last() != Some(format))
    }

    /// Describes the store for messages, without credentials.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Memory { .. } => "memory".to_owned(),
            Self::Embedded { path, .. } => format!("data folder {}", path.display()),
            Self::Broker(_) => "the configured broker".to_owned(),
            Self::DynamoDb(DynamoDbConfig { table, .. }) => format!("DynamoDB table {table}"),
            Self::Postgres(PostgresConfig { url, schema, .. }) => {
                let schema = schema.as_deref().map(|schema| format!(", schema {schema}"));
                format!("PostgreSQL at {}{}", host(url), schema.unwrap_or_default())
            }
            Self::Redis(RedisConfig { servers, prefix, .. }) => {
                let prefix = prefix.as_deref().map(|prefix| format!(", prefix {prefix}"));
                let at = match servers {
                    RedisServers::Single(url) | RedisServers::Cluster(url) => host(url),
                    RedisServers::Sentinel(sentinel) => format!("{} by Sentinel", sentinel.master),
                };
                format!("Redis at {at}{}", prefix.unwrap_or_default())
            }
        }
    }

    pub(crate) fn resolve(document: &Document, table: &StoreTable) -> Result<Self, Diagnostic> {
        let kind = table.kind.as_deref().unwrap_or("embedded");
        let (allowed, is_compiled): (&[&str], bool) = match kind {
            "memory" => (&["keys_max", "ids_max"], true),
            "embedded" => (&["path", "durability", "keys_max"], cfg!(feature = "embedded")),
            "broker" => (broker::KEYS, cfg!(feature = "broker")),
            "dynamodb" => {
                let keys = &["table", "region", "endpoint", "attempt_timeout"];
                (keys, cfg!(feature = "dynamodb"))
            }
            "postgres" => (POSTGRES_KEYS, cfg!(feature = "postgres")),
            "redis" => (redis::KEYS, cfg!(feature = "redis")),
            other => {
                let message = format!(
                    "there is no store {other:?}; use memory, embedded, dynamodb, postgres, redis or broker"
                );
                return Err(document.error(&["store", "kind"], message));
            }
        };
        if !is_compiled {
            let message = format!("this program was built without the feature {kind:?}");
            return Err(document.error(&["store", "kind"], message));
        }
        let is_taken = |key: &str| match key {
            "kind" => true,
            "format" => !format::known(kind).is_empty(),
            key => allowed.contains(&key) || kind == "redis" && redis::SENTINEL_KEYS.contains(&key),
        };
        if let Some(key) = document.keys("store").into_iter().find(|key| !is_taken(key)) {
            let next = match key.as_str() {
                "format" => "remove it; it is for stores that brokers of two versions share",
                "path" | "durability" => "remove it, or use kind = \"embedded\"",
                "keys_max" => "remove it; a store on a server has bounds of its own",
                "ids_max" => "remove it, or use kind = \"memory\"",
                _ => "remove it",
            };
            let article = if kind == "embedded" { "an" } else { "a" };
            let message = format!("{article} {kind} store takes no {key}; {next}");
            return Err(document.error(&["store", &key], message));
        }
        match kind {
            "memory" => Ok(Self::Memory {
                keys_max: bound(document, "keys_max", table.keys_max)?.unwrap_or(KEYS_MAX_DEFAULT),
                ids_max: bound(document, "ids_max", table.ids_max)?.unwrap_or(IDS_MAX),
            }),
            "broker" => broker::resolve(document, table),
            "dynamodb" => Ok(Self::DynamoDb(DynamoDbConfig {
                table: table.table.clone().unwrap_or_else(|| TABLE_DEFAULT.to_owned()),
                region: table.region.clone(),
                endpoint: table.endpoint.clone(),
                format: format::resolve(document, kind, table.format)?,
            })),
            "postgres" => Ok(Self::Postgres(PostgresConfig {
                url: url(document, table)?,
                schema: table.schema.clone(),
                transaction_pooling: table.transaction_pooling.unwrap_or(false),
                authority: table.authority_file.as_ref().map(|path| document.folder().join(path)),
                format: format::resolve(document, kind, table.format)?,
            })),
            "redis" => redis::resolve(document, table),
            _ => embedded(document, table),
        }
    }
}

/// Returns the host of a url, without what precedes an `@`, such as a password.
fn host(url: &Secret) -> String {
    let url = url.read().unwrap_or_default();
    let Some((_, rest)) = url.split_once("://") else { return "the configured url".to_owned() };
    let rest = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    rest.split(['/', '?']).next().unwrap_or_default().to_owned()
}

/// Checks a bound of a store in this process.
fn bound(
    document: &Document,
    key: &'static str,
    given: Option<u64>,
) -> Result<Option<usize>, Diagnostic> {
    let Some(given) = given else { return Ok(None) };
    match usize::try_from(given) {
        Ok(bound) if (1..=BOUND_MAX).contains(&bound) => Ok(Some(bound)),
        _ => {
            let message = format!("{key} must be 1 to {BOUND_MAX}, not {given}");
            Err(document.error(&["store", key], message))
        }
    }
}

pub(crate) fn url(document: &Document, table: &StoreTable) -> Result<Secret, Diagnostic> {
    let url = [&table.url, &table.url_env, &table.url_file].map(Option::as_deref);
    Secret::resolve(document, "the store", "url", url)
        .map_err(|message| document.error(&["store", "kind"], message))
}

fn embedded(document: &Document, table: &StoreTable) -> Result<StoreConfig, Diagnostic> {
    let durability = match table.durability.as_deref() {
        None | Some("strict") => Durability::Strict,
        Some("relaxed") => Durability::Relaxed,
        Some(other) => {
            let message = format!("durability {other:?} is neither \"strict\" nor \"relaxed\"");
            return Err(document.error(&["store", "durability"], message));
        }
    };
    let path = table.path.as_deref().unwrap_or(PATH_DEFAULT);
    if path.is_empty() {
        let message = "path is empty; name a folder, as in \"tollgate-data\"";
        return Err(document.error(&["store", "path"], message));
    }
    let keys_max = bound(document, "keys_max", table.keys_max)?;
    let keys_max = keys_max.map_or(EMBEDDED_KEYS_MAX, |bound| bound as u64);
    Ok(StoreConfig::Embedded { path: document.folder().join(path), durability, keys_max })
}
