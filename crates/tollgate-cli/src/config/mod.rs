//! What the command line runs on: `tollgate.toml`, checked whole before anything is opened.
//!
//! The text is read twice: once as a tree that knows where each value stands, once into structures. A mistake in a
//! structure has a path, and the tree turns the path into a line.

mod audit;
mod blame;
mod broker;
mod envoy;
mod fallback;
mod file;
mod keys;
mod place;
mod secret;
mod server;
mod strategy;
mod telemetry;
mod translate;

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use tollgate::Policies;
use tollgate::spec::Step;
use tollgate_server::{AuditSettings, EnvoyMap};

pub(crate) use blame::Blame;
pub(crate) use broker::BrokerConfig;
pub(crate) use fallback::FallbackConfig;
pub(crate) use keys::KeyConfig;
pub(crate) use secret::Secret;
pub(crate) use server::{Listen, LogFormat, ServerConfig};
pub(crate) use strategy::StrategyConfig;
pub(crate) use telemetry::TelemetryConfig;
pub(crate) use translate::JobsConfig;

use file::File;
use place::Text;

/// The file that is read when none is named.
pub(crate) const DEFAULT_FILE: &str = "tollgate.toml";

/// What runs when there is no file; it is also the documented example.
const SAMPLE: &str = include_str!("sample.toml");

const PATH_DEFAULT: &str = "tollgate-data";
const TABLE_DEFAULT: &str = "tollgate";

/// The largest file that is read.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// A checked configuration.
#[derive(Debug)]
pub(crate) struct Config {
    /// The file it came from, or nothing for the built-in sample.
    pub(crate) file: Option<PathBuf>,
    /// Where the broker listens.
    pub(crate) server: ServerConfig,
    /// Where the state is.
    pub(crate) store: StoreConfig,
    /// How often a broker asks it.
    pub(crate) strategy: StrategyConfig,
    /// What happens while the store is away.
    pub(crate) fallback: FallbackConfig,
    /// Who is told what happens.
    pub(crate) telemetry: TelemetryConfig,
    /// Who is let in; with none, everybody.
    pub(crate) keys: Vec<KeyConfig>,
    /// What is written down of decisions.
    pub(crate) audit: AuditSettings,
    /// Where translations are kept.
    pub(crate) jobs: JobsConfig,
    /// What is enforced.
    pub(crate) policies: Policies,
    /// What Envoy's descriptors mean.
    pub(crate) envoy: EnvoyMap,
}

/// Where the state is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreConfig {
    /// In the process that serves.
    Memory,
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
            Self::Memory | Self::Embedded { .. } => None,
            Self::Broker(_) => Some("broker"),
            Self::DynamoDb(_) => Some("dynamodb"),
            Self::Postgres(_) => Some("postgres"),
            Self::Redis(_) => Some("redis"),
        }
    }
}

/// A Redis server or cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RedisConfig {
    /// Where it is; a cluster may name several nodes, separated by commas.
    pub(crate) url: Secret,
    pub(crate) cluster: bool,
    /// What every key begins with.
    pub(crate) prefix: Option<String>,
    pub(crate) wait_replicas: u32,
    /// Certificates to trust instead of the machine's own.
    pub(crate) authority: Option<PathBuf>,
}

/// A DynamoDB table. Credentials come from where AWS tools find them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DynamoDbConfig {
    pub(crate) table: String,
    pub(crate) region: Option<String>,
    /// Another address than the region's own.
    pub(crate) endpoint: Option<String>,
}

/// A PostgreSQL database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PostgresConfig {
    pub(crate) url: Secret,
    pub(crate) schema: Option<String>,
    pub(crate) transaction_pooling: bool,
    /// Certificates to trust instead of the machine's own.
    pub(crate) authority: Option<PathBuf>,
}

/// What a crash may forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    Strict,
    Relaxed,
}

impl Config {
    /// The configuration in `file`; without one that in `./tollgate.toml`; without that the sample.
    pub(crate) fn load(file: Option<&Path>) -> Result<Self, Blame> {
        match file {
            Some(file) => Self::read(file),
            // A file that is there but out of reach must not be replaced by the sample.
            None => match Path::new(DEFAULT_FILE).try_exists() {
                Ok(false) => Self::parse(None, SAMPLE),
                _ => Self::read(Path::new(DEFAULT_FILE)),
            },
        }
    }

    fn read(file: &Path) -> Result<Self, Blame> {
        let name = file.display().to_string();
        let refused = |error: &io::Error| match error.kind() {
            io::ErrorKind::NotFound => {
                Blame::whole(&name, "there is no such file; name another with --config")
            }
            _ => Blame::whole(&name, format!("cannot be read: {error}")),
        };
        // Looked at before it is opened: opening a pipe waits for whoever writes to it, and a device may never end.
        if !fs::metadata(file).map_err(|error| refused(&error))?.is_file() {
            return Err(Blame::whole(&name, "is not a regular file; name one with --config"));
        }
        let bytes = read_up_to(file, FILE_BYTES_MAX + 1).map_err(|error| refused(&error))?;
        if FILE_BYTES_MAX < bytes.len() as u64 {
            return Err(Blame::whole(&name, format!("has more than {FILE_BYTES_MAX} bytes")));
        }
        let source = String::from_utf8(bytes)
            .map_err(|_| Blame::whole(&name, "cannot be read: it is not text in UTF-8"))?;
        Self::parse(Some(file), &source)
    }

    /// Checks `source`, the contents of `file`. Nothing is opened.
    pub(crate) fn parse(file: Option<&Path>, source: &str) -> Result<Self, Blame> {
        let name =
            file.map_or_else(|| "built-in sample".to_owned(), |file| file.display().to_string());
        let text = Text::parse(&name, source)?;
        let File {
            server,
            store,
            strategy,
            fallback,
            telemetry,
            key,
            audit,
            translate,
            policy,
            envoy,
        } = text.structure()?;
        let folder = file.and_then(Path::parent).unwrap_or(Path::new(""));
        let server = ServerConfig::resolve(&text, &server, folder)?;
        let keys = KeyConfig::resolve_all(&text, &key, folder)?;
        if server.anonymous && !keys.is_empty() {
            let what =
                "anonymous = true lets everybody in, but there are keys; keep one of the two";
            return Err(text.blame(&["server", "anonymous"], what));
        }
        let timeout = fallback::attempt_timeout(&text, &store)?;
        let store = resolve_store(&text, &store, folder)?;
        let telemetry = TelemetryConfig::resolve(&text, &telemetry, folder)?;
        let policies = resolve_policies(&text, &policy)?;
        let envoy = envoy::resolve(&text, &envoy, &policies)?;
        let fallback =
            FallbackConfig::resolve(&text, fallback.as_ref(), timeout, &store, &policies)?;
        let strategy = StrategyConfig::resolve(&text, &strategy, &store, &policies)?;
        let audit = audit::resolve(&text, &audit)?;
        let jobs = JobsConfig::resolve(&text, &translate, &store, folder)?;
        let file = file.map(Path::to_owned);
        Ok(Self {
            file,
            server,
            store,
            strategy,
            fallback,
            telemetry,
            keys,
            audit,
            jobs,
            policies,
            envoy,
        })
    }
}

fn read_up_to(file: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(file)?.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn resolve_store(
    text: &Text<'_>,
    table: &file::StoreTable,
    folder: &Path,
) -> Result<StoreConfig, Blame> {
    let kind = table.kind.as_deref().unwrap_or("embedded");
    let allowed: &[&str] = match kind {
        "memory" => &[],
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
        "redis" => &[
            "url",
            "url_env",
            "url_file",
            "cluster",
            "prefix",
            "wait_replicas",
            "authority_file",
            "attempt_timeout",
        ],
        other => {
            return Err(text.blame(
                &["store", "kind"],
                format!(
                    "there is no store {other:?}; this build knows memory, embedded, dynamodb, postgres, redis and broker"
                ),
            ));
        }
    };
    if let Some(key) = table.given().into_iter().find(|key| !allowed.contains(key)) {
        let next = match key {
            "path" | "durability" => "remove it, or use kind = \"embedded\"",
            _ => "remove it",
        };
        let article = if kind == "embedded" { "an" } else { "a" };
        return Err(
            text.blame(&["store", key], format!("{article} {kind} store takes no {key}; {next}"))
        );
    }
    match kind {
        "memory" => Ok(StoreConfig::Memory),
        "broker" => broker::resolve(text, table, folder),
        "dynamodb" => Ok(StoreConfig::DynamoDb(DynamoDbConfig {
            table: table.table.clone().unwrap_or_else(|| TABLE_DEFAULT.to_owned()),
            region: table.region.clone(),
            endpoint: table.endpoint.clone(),
        })),
        "postgres" => resolve_postgres(text, table, folder),
        "redis" => resolve_redis(text, table, folder),
        _ => resolve_embedded(text, table, folder),
    }
}

fn resolve_postgres(
    text: &Text<'_>,
    table: &file::StoreTable,
    folder: &Path,
) -> Result<StoreConfig, Blame> {
    Ok(StoreConfig::Postgres(PostgresConfig {
        url: resolve_url(text, table, folder)?,
        schema: table.schema.clone(),
        transaction_pooling: table.transaction_pooling.unwrap_or(false),
        authority: table.authority_file.as_ref().map(|path| folder.join(path)),
    }))
}

fn resolve_redis(
    text: &Text<'_>,
    table: &file::StoreTable,
    folder: &Path,
) -> Result<StoreConfig, Blame> {
    Ok(StoreConfig::Redis(RedisConfig {
        url: resolve_url(text, table, folder)?,
        cluster: table.cluster.unwrap_or(false),
        prefix: table.prefix.clone(),
        wait_replicas: table.wait_replicas.unwrap_or(0),
        authority: table.authority_file.as_ref().map(|path| folder.join(path)),
    }))
}

fn resolve_url(text: &Text<'_>, table: &file::StoreTable, folder: &Path) -> Result<Secret, Blame> {
    let url = [&table.url, &table.url_env, &table.url_file].map(Option::as_deref);
    Secret::resolve("the store", "url", url, folder)
        .map_err(|what| text.blame(&["store", "kind"], what))
}

fn resolve_embedded(
    text: &Text<'_>,
    table: &file::StoreTable,
    folder: &Path,
) -> Result<StoreConfig, Blame> {
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

fn resolve_policies(
    text: &Text<'_>,
    specs: &[tollgate::spec::PolicySpec],
) -> Result<Policies, Blame> {
    if specs.is_empty() {
        return Err(Blame::whole(
            text.file(),
            "has no policy; add one, as in [[policy]] with name = \"api\" and limits = [{ name = \"burst\", \
             unit = \"requests\", rule = \"token-bucket\", capacity = 20, refill = \"10/s\" }]",
        ));
    }
    let mut policies = Vec::with_capacity(specs.len());
    for (index, spec) in specs.iter().enumerate() {
        if specs[..index].iter().any(|other| other.name == spec.name) {
            let what = format!("two policies are called {:?}; give each its own name", spec.name);
            return Err(text.blame_policy(index, &[Step::Field("name")], what));
        }
        let policy = spec.resolve();
        policies.push(
            policy.map_err(|fault| text.blame_policy(index, fault.path(), fault.to_string()))?,
        );
    }
    Policies::new(policies).map_err(|error| Blame::whole(text.file(), error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sample is the documentation of the defaults: a file that says nothing but policies means the same.
    #[test]
    fn the_sample_writes_out_the_defaults() {
        let sample = Config::parse(None, SAMPLE).unwrap();
        let policies = &SAMPLE[SAMPLE.find("[[policy]]").unwrap()..];
        let bare = Config::parse(None, policies).unwrap();
        assert_eq!(sample.server, bare.server);
        assert_eq!(sample.store, bare.store);
        assert_eq!(sample.telemetry, bare.telemetry);
        assert_eq!(sample.audit, bare.audit);
        assert_eq!(sample.jobs, bare.jobs);
        let names: Vec<&str> = sample.policies.iter().map(tollgate::Policy::name).collect();
        assert_eq!(names, ["gemini-free", "api", "video-requests"]);
    }

    #[test]
    fn a_path_is_relative_to_the_file() {
        let config = Config::parse(Some(Path::new("etc/t.toml")), SAMPLE).unwrap();
        let StoreConfig::Embedded { path, .. } = config.store else { panic!("not embedded") };
        assert_eq!(path, Path::new("etc/tollgate-data"));
    }
}
