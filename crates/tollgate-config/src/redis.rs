//! `[store] kind = "redis"`: one server, a cluster, or the primary that Sentinel names.

use std::path::PathBuf;

use crate::format;
use crate::store::{StoreTable, url};
use crate::{Diagnostic, Document, Secret, StoreConfig};

/// The other keys of this kind.
pub(crate) const KEYS: &[&str] = &[
    "url",
    "url_env",
    "url_file",
    "cluster",
    "prefix",
    "slot_tag",
    "wait_replicas",
    "authority_file",
    "attempt_timeout",
    "sentinel",
];

/// The keys that need `sentinel`; without it they are parts of the url.
pub(crate) const SENTINEL_KEYS: &[&str] = &[
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
pub struct RedisConfig {
    /// The servers.
    pub servers: RedisServers,
    /// The prefix of every key.
    pub prefix: Option<String>,
    /// What selects the slot of every entry in a cluster.
    pub slot_tag: Option<String>,
    /// How many replicas confirm a write.
    pub wait_replicas: u32,
    /// Certificate authorities to trust instead of the system's.
    pub authority: Option<PathBuf>,
    /// The format of entries; the newest if `None`.
    pub format: Option<u8>,
}

/// The addresses of Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisServers {
    /// One server, by its URL.
    Single(Secret),
    /// The URLs of one or more nodes, separated by commas.
    Cluster(Secret),
    /// The primary that sentinels name.
    Sentinel(Box<SentinelConfig>),
}

/// Sentinels, and how to log in to them and to the primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentinelConfig {
    /// host:port of each sentinel.
    pub addresses: Vec<String>,
    /// The name of the primary.
    pub master: String,
    /// The user at the primary.
    pub user: Option<String>,
    /// The password at the primary.
    pub password: Option<Secret>,
    /// The user at the sentinels.
    pub sentinel_user: Option<String>,
    /// The password at the sentinels.
    pub sentinel_password: Option<Secret>,
    /// Whether connections use TLS.
    pub tls: bool,
    /// The number of the database.
    pub database: u32,
}

pub(super) fn resolve(document: &Document, table: &StoreTable) -> Result<StoreConfig, Diagnostic> {
    let servers = match &table.sentinel {
        Some(addresses) => {
            let sentinel = sentinel(document, table, addresses)?;
            RedisServers::Sentinel(Box::new(sentinel))
        }
        None => {
            if let Some(key) =
                document.keys("store").into_iter().find(|key| SENTINEL_KEYS.contains(&key.as_str()))
            {
                let next = match key.as_str() {
                    "master" => "add sentinel = [\"host:26379\"], or remove master",
                    _ => "put it into the url, or add sentinel and master",
                };
                let message = format!("{key} is only for a Redis behind Sentinel; {next}");
                return Err(document.error(&["store", &key], message));
            }
            let url = url(document, table)?;
            let is_cluster = table.cluster.unwrap_or(false);
            #[cfg(feature = "redis")]
            if let Secret::Inline(urls) = &url {
                let urls = if is_cluster { urls.split(',').collect() } else { vec![&**urls] };
                let checked =
                    urls.into_iter().try_for_each(|url| tollgate_redis::check_url(url.trim()));
                // An excerpt with the line of the url would show its password.
                checked.map_err(|error| document.error(&["store", "kind"], error.to_string()))?;
            }
            if is_cluster { RedisServers::Cluster(url) } else { RedisServers::Single(url) }
        }
    };
    #[cfg(feature = "redis")]
    if let Some(tag) = &table.slot_tag {
        tollgate_redis::check_slot_tag(tag)
            .map_err(|error| document.error(&["store", "slot_tag"], error.to_string()))?;
    }
    Ok(StoreConfig::Redis(RedisConfig {
        servers,
        prefix: table.prefix.clone(),
        slot_tag: table.slot_tag.clone(),
        wait_replicas: table.wait_replicas.unwrap_or(0),
        authority: table.authority_file.as_ref().map(|path| document.folder().join(path)),
        format: format::resolve(document, "redis", table.format)?,
    }))
}

fn sentinel(
    document: &Document,
    table: &StoreTable,
    addresses: &[String],
) -> Result<SentinelConfig, Diagnostic> {
    let error = |key: &str, message: &str| Err(document.error(&["store", key], message));
    let set = document.keys("store");
    let is_url = |key: &&String| matches!(key.as_str(), "url" | "url_env" | "url_file");
    if let Some(key) = set.iter().find(is_url) {
        return error(
            key,
            "url and sentinel exclude each other; Sentinel says where the primary is, so remove the url and set user, \
             password, tls and database instead",
        );
    }
    if table.cluster.unwrap_or(false) {
        return error("cluster", "a cluster has no sentinels; remove sentinel, or cluster");
    }
    if addresses.is_empty() {
        return error("sentinel", "sentinel is empty; name sentinels, as in [\"10.0.0.1:26379\"]");
    }
    if let Some(address) = addresses.iter().find(|address| !is_address(address)) {
        let message = format!("sentinel {address:?} is not host:port, as in \"10.0.0.1:26379\"");
        return error("sentinel", &message);
    }
    let Some(master) = table.master.clone().filter(|master| !master.is_empty()) else {
        return error(
            "sentinel",
            "sentinel needs master: the name that the sentinels know the primary by, as in master = \"mymaster\"",
        );
    };
    let secret = |key: &str, given: [&Option<String>; 3]| {
        let given = given.map(Option::as_deref);
        if given.iter().all(Option::is_none) {
            return Ok(None);
        }
        let secret = Secret::resolve(document, "the store", key, given);
        secret.map(Some).map_err(|message| document.error(&["store", "sentinel"], message))
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
