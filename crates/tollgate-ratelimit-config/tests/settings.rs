//! The environment variables of the original.

use std::path::Path;

use tollgate_ratelimit_config::{ConfigType, RedisType, Settings, Windows};

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
    let ConfigType::Folder(folder) = &settings.config;
    assert_eq!(folder, Path::new("/data/ratelimit/limits"));
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
        ("CONFIG_TYPE", "GRPC_XDS_SOTW", "CONFIG_TYPE: GRPC_XDS_SOTW is not supported"),
        ("CONFIG_TYPE", "ETCD", "CONFIG_TYPE: \"ETCD\" is none of FILE"),
        ("BACKEND_TYPE", "memcache", "BACKEND_TYPE: memcache is not supported"),
        ("GRPC_UDS", "/tmp/x", "GRPC_UDS: Unix sockets"),
        ("GRPC_CLIENT_TLS_SAN", "x", "GRPC_CLIENT_TLS_SAN: "),
        ("GRPC_SERVER_USE_TLS", "true", "GRPC_SERVER_TLS_CERT: GRPC_SERVER_USE_TLS needs it"),
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
