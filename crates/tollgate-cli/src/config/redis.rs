//! `[store] kind = "redis"`: one server, a cluster, or the primary that Sentinel knows.

use std::path::{Path, PathBuf};

use tollgate_redis::check_url;

use super::blame::Blame;
use super::file::StoreTable;
use super::format;
use super::place::Text;
use super::secret::Secret;
use super::store::{StoreConfig, url};

/// The keys that it takes.
pub(super) const KEYS: &[&str] = &[
    "url",
    "url_env",
    "url_file",
    "cluster",
    "prefix",
    "wait_replicas",
    "authority_file",
    "attempt_timeout",
    "sentinel",
    "master",
    "user",
    "password",
    "password_env",
    "password_file",
    "sentinel_user",
    "sentinel_password",
    "sentinel_password_env",
    "sentinel_password_file",
    "tls",
    "database",
];

/// The keys that need `sentinel`; elsewhere the url says it.
const WITH_SENTINEL: &[&str] = &[
    "master",
    "user",
    "password",
    "password_env",
    "password_file",
    "sentinel_user",
    "sentinel_password",
    "sentinel_password_env",
    "sentinel_password_file",
    "tls",
    "database",
];

/// A Redis server or cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RedisConfig {
    pub(crate) servers: RedisServers,
    /// What every key begins with.
    pub(crate) prefix: Option<String>,
    pub(crate) wait_replicas: u32,
    /// Certificates to trust instead of the machine's own.
    pub(crate) authority: Option<PathBuf>,
    /// How entries are written; the newest if nothing is set.
    pub(crate) format: Option<u8>,
}

/// Where Redis is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RedisServers {
    Single(Secret),
    /// One or more nodes, separated by commas.
    Cluster(Secret),
    Sentinel(Box<SentinelConfig>),
}

/// The primary that sentinels know under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SentinelConfig {
    pub(crate) addresses: Vec<String>,
    pub(crate) master: String,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
    pub(crate) sentinel_user: Option<String>,
    pub(crate) sentinel_password: Option<Secret>,
    pub(crate) tls: bool,
    pub(crate) database: u32,
}

pub(super) fn resolve(
    text: &Text<'_>,
    table: &StoreTable,
    folder: &Path,
) -> Result<StoreConfig, Blame> {
    let servers = match &table.sentinel {
        Some(addresses) => {
            let sentinel = sentinel(text, table, addresses, folder)?;
            RedisServers::Sentinel(Box::new(sentinel))
        }
        None => {
            if let Some(key) = table.given().into_iter().find(|key| WITH_SENTINEL.contains(key)) {
                let next = match key {
                    "master" => "add sentinel = [\"host:26379\"], or remove master",
                    _ => "put it into the url, or add sentinel and master",
                };
                let what = format!("{key} is only for a Redis behind Sentinel; {next}");
                return Err(text.blame(&["store", key], what));
            }
            let url = url(text, table, folder)?;
            let is_cluster = table.cluster.unwrap_or(false);
            // One that is elsewhere is read when it is needed.
            if let Secret::Here(urls) = &url {
                let urls = if is_cluster { urls.split(',').collect() } else { vec![&**urls] };
                let checked = urls.into_iter().try_for_each(|url| check_url(url.trim()));
                // The line of the url would show its password.
                checked.map_err(|error| text.blame(&["store", "kind"], error.to_string()))?;
            }
            if is_cluster { RedisServers::Cluster(url) } else { RedisServers::Single(url) }
        }
    };
    Ok(StoreConfig::Redis(RedisConfig {
        servers,
        prefix: table.prefix.clone(),
        wait_replicas: table.wait_replicas.unwrap_or(0),
        authority: table.authority_file.as_ref().map(|path| folder.join(path)),
        format: format::resolve(text, "redis", table.format)?,
    }))
}

fn sentinel(
    text: &Text<'_>,
    table: &StoreTable,
    addresses: &[String],
    folder: &Path,
) -> Result<SentinelConfig, Blame> {
    let blame = |key: &str, what: &str| Err(text.blame(&["store", key], what.to_owned()));
    let given = table.given();
    if let Some(key) = ["url", "url_env", "url_file"].into_iter().find(|key| given.contains(key)) {
        return blame(
            key,
            "url and sentinel exclude each other; Sentinel says where the primary is, so remove the url and set user, \
             password, tls and database instead",
        );
    }
    if table.cluster.unwrap_or(false) {
        return blame("cluster", "a cluster has no sentinels; remove sentinel, or cluster");
    }
    if addresses.is_empty() {
        return blame("sentinel", "sentinel is empty; name sentinels, as in [\"10.0.0.1:26379\"]");
    }
    if let Some(address) = addresses.iter().find(|address| !is_address(address)) {
        let what = format!("sentinel {address:?} is not host:port, as in \"10.0.0.1:26379\"");
        return blame("sentinel", &what);
    }
    let Some(master) = table.master.clone().filter(|master| !master.is_empty()) else {
        return blame(
            "sentinel",
            "sentinel needs master: the name that the sentinels know the primary by, as in master = \"mymaster\"",
        );
    };
    let secret = |key: &str, given: [&Option<String>; 3]| {
        let given = given.map(Option::as_deref);
        if given.iter().all(Option::is_none) {
            return Ok(None);
        }
        let secret = Secret::resolve("the store", key, given, folder);
        secret.map(Some).map_err(|what| text.blame(&["store", "sentinel"], what))
    };
    Ok(SentinelConfig {
        addresses: addresses.to_vec(),
        master,
        user: table.user.clone(),
        password: secret("password", [&table.password, &table.password_env, &table.password_file])?,
        sentinel_user: table.sentinel_user.clone(),
        sentinel_password: secret(
            "sentinel_password",
            [&table.sentinel_password, &table.sentinel_password_env, &table.sentinel_password_file],
        )?,
        tls: table.tls.unwrap_or(false),
        database: table.database.unwrap_or(0),
    })
}

fn is_address(address: &str) -> bool {
    !address.contains('/')
        && address.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0)
        })
}
