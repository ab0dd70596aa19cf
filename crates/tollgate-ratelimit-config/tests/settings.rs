//! The environment variables of the original.

use std::path::Path;

use tollgate::Span;
use tollgate_ratelimit_config::{
    ConfigType, ManagementServer, ManagementTls, Readiness, RedisType, Settings, Windows,
};

const REDIS: (&str, &str) = ("REDIS_URL", "redis:6379");

fn read(more: &[(&str, &str)]) -> Result<Settings, String> {
    let all = [REDIS].into_iter().chain(more.iter().copied());
    // A later one replaces an earlier one.
    let mut variables: Vec<(&str, &str)> = Vec::new();
    for (name, value) in all {
        variables.retain(|(known, _)| *known != name);
        variables.push((name, value));
    }
    Settings::read(variables).map_err(|error| error.to_string())
}

#[test]
fn the_defaults_are_those_of_the_original() {
    let settings = read(&[]).unwrap();
    assert_eq!(settings.http, "0.0.0.0:8080");
    assert_eq!(settings.grpc, "0.0.0.0:8081");
    assert_eq!(settings.debug, "0.0.0.0:6070");
    assert_eq!(settings.prometheus, None);
    assert_eq!(settings.config, ConfigType::Folder("/srv/runtime_data/current/config".into()));
    assert_eq!(settings.near_limit_per_mille, 800);
    assert_eq!(settings.redis.unwrap().kind, RedisType::Single("redis:6379".into()));
    assert_eq!(settings.response_headers, None);
    assert!(!settings.merge_domains && !settings.shadow && !settings.quota && !settings.json_log);
    assert_eq!(settings.windows, Windows::Fixed);
    assert!(settings.ignored.is_empty());
}

#[test]
fn values_are_read() {
    let settings = read(&[
        ("HOST", "127.0.0.1"),
        ("PORT", "18080"),
        ("GRPC_HOST", "::"),
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", ":9191"),
        ("RUNTIME_ROOT", "/data"),
        ("RUNTIME_SUBDIRECTORY", "/ratelimit/"),
        ("RUNTIME_APPDIRECTORY", "limits"),
        ("NEAR_LIMIT_RATIO", ".75"),
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "1"),
        ("LIMIT_RESET_HEADER", "x-reset"),
        ("REDIS_AUTH", "user:pass:word"),
        ("REDIS_TYPE", "sentinel"),
        ("REDIS_URL", "mymaster, a:26379,b:26379"),
        ("LOG_FORMAT", "JSON"),
        ("TOLLGATE_WINDOWS", "rolling"),
        ("SHADOW_MODE", ""),
        ("UNRELATED", "x"),
    ])
    .unwrap();
    assert_eq!(settings.http, "127.0.0.1:18080");
    assert_eq!(settings.grpc, "[::]:8081");
    assert_eq!(settings.prometheus, Some(("0.0.0.0:9191".into(), "/metrics".into())));
    assert_eq!(settings.config, ConfigType::Folder(Path::new("/data/ratelimit/limits").to_owned()));
    assert_eq!(settings.near_limit_per_mille, 750);
    let headers = settings.response_headers.unwrap();
    assert_eq!(headers, ["RateLimit-Limit", "RateLimit-Remaining", "x-reset"]);
    let redis = settings.redis.unwrap();
    assert_eq!(
        redis.kind,
        RedisType::Sentinel("mymaster".into(), vec!["a:26379".into(), "b:26379".into()])
    );
    assert_eq!(
        (redis.user.as_deref(), redis.password.as_deref()),
        (Some("user"), Some("pass:word"))
    );
    assert!(settings.json_log);
    assert_eq!(settings.windows, Windows::Rolling);
    assert!(!format!("{redis:?}").contains("pass"), "no password in the log");
}

#[test]
fn what_cannot_be_honoured_is_an_error() {
    for (name, value, expected) in [
        ("CONFIG_TYPE", "ETCD", "CONFIG_TYPE: \"ETCD\" is none of FILE"),
        ("BACKEND_TYPE", "memcache", "BACKEND_TYPE: memcache is not supported"),
        ("GRPC_UDS", "/tmp/x", "GRPC_UDS: Unix sockets"),
        ("GRPC_CLIENT_TLS_SAN", "x", "GRPC_CLIENT_TLS_SAN: "),
        ("GRPC_SERVER_USE_TLS", "true", "GRPC_SERVER_TLS_CERT: GRPC_SERVER_USE_TLS needs it"),
        (
            "GRPC_MAX_CONNECTION_AGE",
            "1 day",
            "GRPC_MAX_CONNECTION_AGE: \"1 day\" is not a duration",
        ),
        ("PORT", "http", "PORT: \"http\" is not a port"),
        ("HOST", "example.org", "HOST: \"example.org\" is not an address"),
        ("NEAR_LIMIT_RATIO", "1.5", "NEAR_LIMIT_RATIO: \"1.5\" is not a number from 0 to 1"),
        ("NEAR_LIMIT_RATIO", "-0.5", "NEAR_LIMIT_RATIO: "),
        ("NEAR_LIMIT_RATIO", ".", "NEAR_LIMIT_RATIO: "),
        ("SHADOW_MODE", "maybe", "SHADOW_MODE: \"maybe\" is neither true nor false"),
        ("REDIS_URL", "/var/run/redis.sock", "REDIS_SOCKET_TYPE: Unix sockets"),
        ("REDIS_URL", "", "REDIS_URL: is not set"),
        ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true", "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION: "),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true", "FORCE_START_WITHOUT_INITIAL_CONFIG: "),
    ] {
        let error = read(&[(name, value)]).expect_err(name);
        assert!(error.starts_with(expected), "{error}");
    }
    assert_eq!(read(&[("BACKEND_TYPE", "memory"), ("REDIS_URL", "")]).unwrap().redis, None);
}

fn management_server(more: &[(&str, &str)]) -> Result<ManagementServer, String> {
    let all: Vec<_> = [("CONFIG_TYPE", "GRPC_XDS_SOTW")].iter().chain(more).copied().collect();
    match read(&all)?.config {
        ConfigType::ManagementServer(server) => Ok(server),
        folder => Err(format!("{folder:?}")),
    }
}

#[test]
fn a_management_server_has_the_defaults_of_the_original() {
    let server = management_server(&[]).unwrap();
    assert_eq!((&*server.address, &*server.node), ("localhost:18000", "default"));
    assert_eq!((server.retry, server.retry_max), (Span::from_secs(3), Span::from_secs(60)));
    assert_eq!((server.jitter_per_mille, server.message_bytes_max), (500, None));
    assert_eq!((server.tls, server.readiness), (None, Readiness::Loaded));
    assert!(server.metadata.is_empty() && server.headers.is_empty());
}

/// The variables that Envoy Gateway sets, and the others.
#[test]
fn a_management_server_is_read() {
    let server = management_server(&[
        ("CONFIG_GRPC_XDS_SERVER_URL", "dns:///envoy-gateway:18001"),
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
        ("CONFIG_GRPC_XDS_NODE_METADATA", "zone=a,token=b=c"),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "Authorization:Bearer a:b,x-tenant:t"),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/certs/tls.crt"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/certs/tls.key"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/certs/ca.crt"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "envoy-gateway"),
        ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "1m0.5s"),
        ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "0.25"),
        ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "1000"),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("GRPC_MAX_CONNECTION_AGE", "1.5h"),
    ])
    .unwrap();
    assert_eq!((&*server.address, &*server.node), ("envoy-gateway:18001", "envoy-ratelimit"));
    assert_eq!(server.metadata["token"], "b=c");
    assert_eq!(server.headers["authorization"], "Bearer a:b");
    let tls = ManagementTls {
        authority: Some("/certs/ca.crt".into()),
        identity: Some(["/certs/tls.crt".into(), "/certs/tls.key".into()]),
        server_name: Some("envoy-gateway".into()),
    };
    assert_eq!(server.tls, Some(tls));
    assert_eq!(server.retry, Span::from_millis(60_500));
    assert_eq!(server.retry_max, server.retry, "not shorter than the first");
    assert_eq!((server.jitter_per_mille, server.message_bytes_max), (250, Some(1_000)));
    assert_eq!(server.readiness, Readiness::Always);
    assert!(!format!("{server:?}").contains("Bearer"), "no credential in the log");
    let server = management_server(&[
        ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "500ms"),
        ("XDS_CLIENT_BACKOFF_JITTER", "false"),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true"),
    ])
    .unwrap();
    assert_eq!((server.retry, server.jitter_per_mille), (Span::from_millis(500), 0));
    assert_eq!(server.readiness, Readiness::Domains);
}

#[test]
fn a_wrong_management_server_is_an_error() {
    for (name, value, expected) in [
        ("CONFIG_GRPC_XDS_SERVER_URL", "unix:/run/xds.sock", "is not a host and port"),
        ("CONFIG_GRPC_XDS_SERVER_URL", "http://host:18000", "is not a host and port"),
        ("CONFIG_GRPC_XDS_SERVER_URL", "host", "is not a host and port"),
        ("CONFIG_GRPC_XDS_NODE_METADATA", "zone", "\"zone\" is not a pair, as in key=value"),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "a b:c", "is not the name of a header"),
        ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "0s", "must be from 10ms to 1h"),
        ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "3", "\"3\" is not a duration"),
        ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "0", "is not a number of bytes"),
        ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "2", "is not a number from 0 to 1"),
    ] {
        let error = management_server(&[(name, value)]).expect_err(name);
        assert!(error.starts_with(name) && error.contains(expected), "{error}");
    }
    let tls = ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true");
    let error = management_server(&[tls, ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "a")]).unwrap_err();
    assert!(error.starts_with("CONFIG_GRPC_XDS_CLIENT_TLS_KEY: "), "{error}");
}

#[test]
fn what_has_no_effect_is_listed_with_the_reason() {
    let settings = read(&[
        ("USE_STATSD", "false"),
        ("LOCAL_CACHE_SIZE_IN_BYTES", "1000"),
        ("REDIS_PERSECOND_URL", "other:6379"),
        ("REDIS_POOL_SIZE", "10"),
        ("STATSD_HOST", "x"),
        ("LOG_LEVEL", "debug"),
    ])
    .unwrap();
    let names: Vec<&str> = settings.ignored.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "LOCAL_CACHE_SIZE_IN_BYTES",
            "REDIS_PERSECOND_URL",
            "REDIS_POOL_SIZE",
            "STATSD_HOST",
            "LOG_LEVEL"
        ]
    );
    assert!(settings.ignored.iter().all(|(_, reason)| !reason.is_empty()));
}
