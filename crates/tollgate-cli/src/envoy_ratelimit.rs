//! `tollgate envoy-ratelimit`: a drop-in for envoyproxy/ratelimit, with its environment variables and ports.
//!
//! The variables become a configuration of the broker, which serves only what the original serves: the rate limit service, health
//! and reflection over gRPC, `/healthcheck` and `/json` over HTTP, and the debug and metrics pages on listeners of their own.

use std::net::SocketAddr;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tollgate::ErrorKind;
use tollgate_ratelimit_config::{
    ConfigType, ManagementServer, Readiness, RedisSettings, RedisType, Settings, Windows,
};
use tollgate_terminal::Failure;
use toml::{Table, Value};

/// The listeners beside HTTP and gRPC.
#[derive(Debug)]
pub(crate) struct PageListeners {
    /// `/rlconfig` and `/stats`.
    pub(crate) debug: SocketAddr,
    /// Metrics for Prometheus, and their path.
    pub(crate) metrics: Option<(SocketAddr, String)>,
}

/// What the variables ask for.
#[derive(Debug)]
pub(crate) struct DropIn {
    /// The configuration of the broker.
    pub(crate) toml: String,
    pub(crate) pages: PageListeners,
    /// The variables that are set and have no effect, each with the reason.
    pub(crate) ignored: Vec<(String, &'static str)>,
}

impl DropIn {
    /// Reads `variables`.
    pub(crate) fn read(
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, Failure> {
        let invalid = |text: String| Failure::new(ErrorKind::Invalid, text);
        let settings = Settings::read(variables).map_err(|error| invalid(error.to_string()))?;
        let address = |text: &str| {
            text.parse().map_err(|_| invalid(format!("{text:?} is not an address and port")))
        };
        let debug = address(&settings.debug)?;
        let metrics = match &settings.prometheus {
            Some((at, path)) => Some((address(at)?, path.clone())),
            None => None,
        };
        let toml = configuration(&settings).to_string();
        Ok(Self { toml, pages: PageListeners { debug, metrics }, ignored: settings.ignored })
    }
}

fn text(value: impl Into<String>) -> Value {
    Value::String(value.into())
}

fn configuration(settings: &Settings) -> Table {
    let mut server = Table::new();
    server.insert("http".to_owned(), text(&settings.http));
    server.insert("grpc".to_owned(), text(&settings.grpc));
    server.insert("resp".to_owned(), text("off"));
    server.insert("anonymous".to_owned(), true.into());
    server.insert("log".to_owned(), text(if settings.json_log { "json" } else { "text" }));
    if let Some(age) = &settings.grpc_age_max {
        server.insert("grpc_age_max".to_owned(), text(age.to_string()));
    }
    if let Some(tls) = &settings.tls {
        let mut table = Table::new();
        table.insert("certificate".to_owned(), text(&tls.certificate));
        table.insert("key".to_owned(), text(&tls.key));
        if let Some(authority) = &tls.client_authority {
            table.insert("client_authority".to_owned(), text(authority));
        }
        server.insert("tls".to_owned(), table.into());
    }
    let mut envoy = Table::new();
    match &settings.config {
        ConfigType::Folder(folder) => {
            envoy.insert("ratelimit_config".to_owned(), text(folder.display().to_string()));
        }
        ConfigType::ManagementServer(server) => {
            envoy.insert("xds".to_owned(), xds(server).into());
        }
    }
    let windows = match settings.windows {
        Windows::Fixed => "fixed",
        Windows::Rolling => "rolling",
    };
    envoy.insert("windows".to_owned(), text(windows));
    envoy
        .insert("near_limit_per_mille".to_owned(), i64::from(settings.near_limit_per_mille).into());
    for (key, is_set) in [
        ("merge_domains", settings.merge_domains),
        ("calendar_months", settings.calendar_months),
        ("shadow", settings.shadow),
        ("quota", settings.quota),
        ("dynamic_metadata", settings.dynamic_metadata),
    ] {
        envoy.insert(key.to_owned(), is_set.into());
    }
    for (key, names) in [
        ("response_headers", &settings.response_headers),
        ("request_headers", &settings.request_headers),
    ] {
        if let Some(names) = names {
            envoy.insert(key.to_owned(), names.iter().map(text).collect::<Vec<_>>().into());
        }
    }
    let mut all = Table::new();
    all.insert("server".to_owned(), server.into());
    all.insert("store".to_owned(), store(settings.redis.as_ref()).into());
    all.insert("envoy".to_owned(), envoy.into());
    all
}

fn xds(server: &ManagementServer) -> Table {
    let mut xds = Table::new();
    for (key, value) in [
        ("server", server.address.clone()),
        ("node", server.node.clone()),
        ("retry", server.retry.to_string()),
        ("retry_max", server.retry_max.to_string()),
    ] {
        xds.insert(key.to_owned(), text(value));
    }
    for (key, pairs) in [("metadata", &server.metadata), ("headers", &server.headers)] {
        let pairs: Table = pairs.iter().map(|(key, value)| (key.clone(), text(value))).collect();
        xds.insert(key.to_owned(), pairs.into());
    }
    xds.insert("jitter_per_mille".to_owned(), i64::from(server.jitter_per_mille).into());
    if let Some(most) = server.message_bytes_max {
        xds.insert("message_bytes_max".to_owned(), i64::from(most).into());
    }
    let ready = match server.readiness {
        Readiness::Loaded => "loaded",
        Readiness::Always => "always",
        Readiness::Domains => "domains",
    };
    xds.insert("ready".to_owned(), text(ready));
    if let Some(tls) = &server.tls {
        xds.insert("tls".to_owned(), true.into());
        let [certificate, key] = match &tls.identity {
            Some([certificate, key]) => [Some(certificate), Some(key)],
            None => [None, None],
        };
        for (name, value) in [
            ("authority", tls.authority.as_ref()),
            ("certificate", certificate),
            ("key", key),
            ("server_name", tls.server_name.as_ref()),
        ] {
            if let Some(value) = value {
                xds.insert(name.to_owned(), text(value));
            }
        }
    }
    xds
}

fn store(redis: Option<&RedisSettings>) -> Table {
    let mut store = Table::new();
    let Some(redis) = redis else {
        store.insert("kind".to_owned(), text("memory"));
        return store;
    };
    store.insert("kind".to_owned(), text("redis"));
    for (key, value) in [("prefix", &redis.prefix), ("authority_file", &redis.authority)] {
        if let Some(value) = value {
            store.insert(key.to_owned(), text(value));
        }
    }
    match &redis.kind {
        RedisType::Single(host) => {
            store.insert("url".to_owned(), text(url(redis, host)));
        }
        RedisType::Cluster(hosts) => {
            let urls: Vec<String> = hosts.iter().map(|host| url(redis, host)).collect();
            store.insert("url".to_owned(), text(urls.join(",")));
            store.insert("cluster".to_owned(), true.into());
        }
        RedisType::Sentinel(master, hosts) => {
            store.insert("sentinel".to_owned(), hosts.iter().map(text).collect::<Vec<_>>().into());
            store.insert("master".to_owned(), text(master));
            store.insert("tls".to_owned(), redis.tls.into());
            for (key, value) in [
                ("user", &redis.user),
                ("password", &redis.password),
                ("sentinel_user", &redis.sentinel_user),
                ("sentinel_password", &redis.sentinel_password),
            ] {
                if let Some(value) = value {
                    store.insert(key.to_owned(), text(value));
                }
            }
        }
    }
    store
}

/// Returns the URL of the server at `host`, which is host:port or a URL already.
fn url(redis: &RedisSettings, host: &str) -> String {
    if host.contains("://") {
        return host.to_owned();
    }
    let scheme = if redis.tls { "rediss" } else { "redis" };
    let encoded = |text: &Option<String>| {
        let text = text.as_deref().unwrap_or_default();
        utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
    };
    match &redis.password {
        Some(_) => {
            let (user, password) = (encoded(&redis.user), encoded(&redis.password));
            format!("{scheme}://{user}:{password}@{host}/")
        }
        None => format!("{scheme}://{host}/"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tollgate_config::StoreConfig;

    use super::*;
    use crate::config::ServeConfig;

    fn parse(folder: &Path, more: &[(&str, &str)]) -> ServeConfig {
        let root = [("RUNTIME_ROOT", folder.to_str().unwrap())];
        let all = root.iter().chain(more).map(|(name, value)| ((*name).into(), (*value).into()));
        let drop_in = DropIn::read(all).unwrap();
        ServeConfig::parse(Some(Path::new("environment")), &drop_in.toml).unwrap()
    }

    #[test]
    fn the_variables_become_a_configuration() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("config")).unwrap();
        let limits =
            "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 5}}]";
        std::fs::write(folder.path().join("config/d.yaml"), limits).unwrap();
        let config = parse(folder.path(), &[("REDIS_URL", "redis:6379"), ("REDIS_AUTH", "p@ss")]);
        assert_eq!(config.server.http.to_string(), "0.0.0.0:8080");
        assert_eq!(config.server.grpc.address().unwrap().to_string(), "0.0.0.0:8081");
        assert!(config.server.anonymous && config.server.resp.address().is_none());
        assert!(config.gates.policies.get("envoy.d.a").is_ok());
        let toml = DropIn::read(
            [("REDIS_URL", "redis:6379"), ("REDIS_AUTH", "p@ss")]
                .map(|(name, value)| (name.to_owned(), value.to_owned())),
        );
        assert!(toml.unwrap().toml.contains("redis://:p%40ss@redis:6379/"));
        let sentinel =
            [("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", "m,a:1,b:2"), ("REDIS_AUTH", "u:p")];
        assert!(matches!(parse(folder.path(), &sentinel).gates.store, StoreConfig::Redis(_)));
        let cluster =
            [("REDIS_TYPE", "CLUSTER"), ("REDIS_URL", "a:1,b:2"), ("CACHE_KEY_PREFIX", "x")];
        assert!(matches!(parse(folder.path(), &cluster).gates.store, StoreConfig::Redis(_)));
        let memory = parse(folder.path(), &[("BACKEND_TYPE", "memory"), ("SHADOW_MODE", "true")]);
        assert!(matches!(memory.gates.store, StoreConfig::Memory { .. }));
    }

    #[test]
    fn a_management_server_becomes_a_section() {
        let folder = tempfile::tempdir().unwrap();
        let config = parse(
            folder.path(),
            &[
                ("BACKEND_TYPE", "memory"),
                ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
                ("CONFIG_GRPC_XDS_SERVER_URL", "gateway:18001"),
                ("CONFIG_GRPC_XDS_NODE_METADATA", "zone=a"),
                ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "x-tenant:t"),
                ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
                ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "gateway"),
                ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/certs/tls.crt"),
                ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/certs/tls.key"),
                ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "1000"),
                ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true"),
            ],
        );
        let server = config.envoy.pushed.unwrap().server;
        assert_eq!(server.server.to_string(), "https://gateway:18001/");
        assert_eq!((&*server.node, &*server.metadata["zone"]), ("default", "a"));
        assert_eq!(server.headers().unwrap()[0].1, "t");
        assert_eq!((server.message_bytes_max, server.readiness), (1_000, Readiness::Domains));
        let error = server.client_tls().unwrap_err().to_string();
        assert!(error.starts_with("/certs/tls.crt cannot be read"), "{error}");
        assert_eq!(config.gates.policies.iter().count(), 0);
    }
}
