//! `[store]`: where the state is, with only the keys that its kind takes.

use std::path::{Path, PathBuf};

use tollgate::KEYS_MAX_DEFAULT;
use tollgate::core::bounds::IDS_MAX;

use super::blame::Blame;
use super::broker::{self, BrokerConfig};
use super::file::StoreTable;
use super::format;
use super::place::Text;
use super::redis::{self, RedisConfig, RedisServers};
use super::secret::Secret;

pub(super) const PATH_DEFAULT: &str = "tollgate-data";
const TABLE_DEFAULT: &str = "tollgate";

/// The largest bound of a store in memory; this many of either take some tens of gigabytes.
const MEMORY_BOUND_MAX: usize = 100_000_000;

/// Where the state is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreConfig {
    /// In the process that serves, up to these bounds.
    Memory { keys_max: usize, ids_max: usize },
    /// In a folder.
    Embedded { path: PathBuf, durability: Durability },
    /// At another broker.
    Broker(Box<BrokerConfig>),
    /// In a DynamoDB table.
    DynamoDb(DynamoDbConfig),
    /// In a PostgreSQL database.
    Postgres(PostgresConfig),
    /// In Redis or Valkey.
    Redis(RedisConfig),
}

impl StoreConfig {
    /// What it is called, if it is somewhere else and so can be away.
    pub(crate) const fn away(&self) -> Option<&'static str> {
        match self {
            Self::Memory { .. } | Self::Embedded { .. } => None,
            _ => Some(self.kind()),
        }
    }

    /// Its `kind` in the configuration.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Memory { .. } => "memory",
            Self::Embedded { .. } => "embedded",
            Self::Broker(_) => "broker",
            Self::DynamoDb(_) => "dynamodb",
            Self::Postgres(_) => "postgres",
            Self::Redis(_) => "redis",
        }
    }

    /// The format that entries are written in, if it is not the newest.
    pub(crate) fn older_format(&self) -> Option<u8> {
        let format = match self {
            Self::Memory { .. } | Self::Embedded { .. } | Self::Broker(_) => None,
            Self::DynamoDb(config) => config.format,
            Self::Postgres(config) => config.format,
            Self::Redis(config) => config.format,
        };
        format.filter(|format| format::known(self.kind()).last() != Some(format))
    }

    /// Checks `[store]`, with paths relative to `folder`.
    pub(super) fn resolve(
        text: &Text<'_>,
        table: &StoreTable,
        folder: &Path,
    ) -> Result<Self, Blame> {
        let kind = table.kind.as_deref().unwrap_or("embedded");
        let allowed: &[&str] = match kind {
            "memory" => &["keys_max", "ids_max"],
            "embedded" => &["path", "durability"],
            "broker" => broker::KEYS,
            "dynamodb" => &["table", "region", "endpoint", "attempt_timeout"],
            "postgres" => &[
                "url",
                "url_env",
                "url_file",
                "schema",
                "transaction_pooling",
                "authority_file",
                "attempt_timeout",
            ],
            "redis" => redis::KEYS,
            other => {
                return Err(text.blame(
                    &["store", "kind"],
                    format!(
                        "there is no store {other:?}; this build knows memory, embedded, dynamodb, postgres, redis and broker"
                    ),
                ));
            }
        };
        let takes = |key: &&str| match *key {
            "format" => !format::known(kind).is_empty(),
            key => allowed.contains(&key),
        };
        if let Some(key) = table.given().into_iter().find(|key| !takes(key)) {
            let next = match key {
                "format" => "remove it; it is for stores that brokers of two versions share",
                "path" | "durability" => "remove it, or use kind = \"embedded\"",
                "keys_max" | "ids_max" => "remove it, or use kind = \"memory\"",
                _ => "remove it",
            };
            let article = if kind == "embedded" { "an" } else { "a" };
            return Err(text
                .blame(&["store", key], format!("{article} {kind} store takes no {key}; {next}")));
        }
        match kind {
            "memory" => Ok(Self::Memory {
                keys_max: bound(text, "keys_max", table.keys_max, KEYS_MAX_DEFAULT)?,
                ids_max: bound(text, "ids_max", table.ids_max, IDS_MAX)?,
            }),
            "broker" => broker::resolve(text, table, folder),
            "dynamodb" => Ok(Self::DynamoDb(DynamoDbConfig {
                table: table.table.clone().unwrap_or_else(|| TABLE_DEFAULT.to_owned()),
                region: table.region.clone(),
                endpoint: table.endpoint.clone(),
                format: format::resolve(text, kind, table.format)?,
            })),
            "postgres" => postgres(text, table, folder),
            "redis" => redis::resolve(text, table, folder),
            _ => embedded(text, table, folder),
        }
    }
}

impl StoreConfig {
    /// Which store it is, for messages; without credentials.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Memory { .. } => "memory".to_owned(),
            Self::Embedded { path, .. } => format!("data folder {}", path.display()),
            Self::Broker(_) => "the configured broker".to_owned(),
            Self::DynamoDb(DynamoDbConfig { table, .. }) => format!("DynamoDB table {table}"),
            Self::Postgres(PostgresConfig { url, schema, .. }) => {
                let schema = schema.as_deref().map(|schema| format!(", schema {schema}"));
                format!("PostgreSQL at {}{}", host_of(url), schema.unwrap_or_default())
            }
            Self::Redis(RedisConfig { servers, prefix, .. }) => {
                let prefix = prefix.as_deref().map(|prefix| format!(", prefix {prefix}"));
                let at = match servers {
                    RedisServers::Single(url) | RedisServers::Cluster(url) => host_of(url),
                    RedisServers::Sentinel(sentinel) => format!("{} by Sentinel", sentinel.master),
                };
                format!("Redis at {at}{}", prefix.unwrap_or_default())
            }
        }
    }
}

/// The host of a url, without what comes before an `@`, such as a password.
fn host_of(url: &Secret) -> String {
    let url = url.read().unwrap_or_default();
    let Some((_, rest)) = url.split_once("://") else { return "the configured url".to_owned() };
    let rest = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    rest.split(['/', '?']).next().unwrap_or_default().to_owned()
}

/// A DynamoDB table. Credentials come from where AWS tools find them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DynamoDbConfig {
    pub(crate) table: String,
    pub(crate) region: Option<String>,
    /// Another address than the region's own.
    pub(crate) endpoint: Option<String>,
    /// How items are written; the newest if nothing is set.
    pub(crate) format: Option<u8>,
}

/// A PostgreSQL database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PostgresConfig {
    pub(crate) url: Secret,
    pub(crate) schema: Option<String>,
    pub(crate) transaction_pooling: bool,
    /// Certificates to trust instead of the machine's own.
    pub(crate) authority: Option<PathBuf>,
    /// How rows are written; the newest if nothing is set.
    pub(crate) format: Option<u8>,
}

/// What a crash may forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    Strict,
    Relaxed,
}

/// A bound of the store in memory.
fn bound(
    text: &Text<'_>,
    key: &'static str,
    given: Option<u64>,
    default: usize,
) -> Result<usize, Blame> {
    let Some(given) = given else { return Ok(default) };
    match usize::try_from(given) {
        Ok(bound) if (1..=MEMORY_BOUND_MAX).contains(&bound) => Ok(bound),
        _ => {
            let what = format!("{key} must be 1 to {MEMORY_BOUND_MAX}, not {given}");
            Err(text.blame(&["store", key], what))
        }
    }
}

fn postgres(text: &Text<'_>, table: &StoreTable, folder: &Path) -> Result<StoreConfig, Blame> {
    Ok(StoreConfig::Postgres(PostgresConfig {
        url: url(text, table, folder)?,
        schema: table.schema.clone(),
        transaction_pooling: table.transaction_pooling.unwrap_or(false),
        authority: table.authority_file.as_ref().map(|path| folder.join(path)),
        format: format::resolve(text, "postgres", table.format)?,
    }))
}

pub(super) fn url(text: &Text<'_>, table: &StoreTable, folder: &Path) -> Result<Secret, Blame> {
    let url = [&table.url, &table.url_env, &table.url_file].map(Option::as_deref);
    Secret::resolve("the store", "url", url, folder)
        .map_err(|what| text.blame(&["store", "kind"], what))
}

fn embedded(text: &Text<'_>, table: &StoreTable, folder: &Path) -> Result<StoreConfig, Blame> {
    let durability = match table.durability.as_deref() {
        None | Some("strict") => Durability::Strict,
        Some("relaxed") => Durability::Relaxed,
        Some(other) => {
            let what = format!("durability {other:?} is neither \"strict\" nor \"relaxed\"");
            return Err(text.blame(&["store", "durability"], what));
        }
    };
    let path = table.path.as_deref().unwrap_or(PATH_DEFAULT);
    if path.is_empty() {
        return Err(
            text.blame(&["store", "path"], "path is empty; name a folder, as in \"tollgate-data\"")
        );
    }
    Ok(StoreConfig::Embedded { path: folder.join(path), durability })
}
