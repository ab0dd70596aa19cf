//! The settings of the original program, which are environment variables.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use tollgate::Span;

use crate::management_server::ManagementServer;
use crate::policies::Windows;

/// The settings that have an effect.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The address of HTTP with `/healthcheck` and `/json`: `HOST`, `PORT`.
    pub http: String,
    /// The address of gRPC: `GRPC_HOST`, `GRPC_PORT`.
    pub grpc: String,
    /// The address with `/rlconfig` and `/stats`: `DEBUG_HOST`, `DEBUG_PORT`.
    pub debug: String,
    /// The address and path of metrics, if there are any: `USE_PROMETHEUS`, `PROMETHEUS_ADDR`, `PROMETHEUS_PATH`.
    pub prometheus: Option<(String, String)>,
    /// The longest life of a gRPC connection: `GRPC_MAX_CONNECTION_AGE`.
    pub grpc_age_max: Option<Span>,
    /// The certificates of gRPC: `GRPC_SERVER_USE_TLS`, `GRPC_SERVER_TLS_*`, `GRPC_CLIENT_TLS_CACERT`.
    pub tls: Option<ServerTls>,
    /// Whether the log is JSON: `LOG_FORMAT`.
    pub json_log: bool,
    /// Where the limits come from: `CONFIG_TYPE`, `RUNTIME_*`, `CONFIG_GRPC_XDS_*`.
    pub config: ConfigType,
    /// Whether several files may describe one domain: `MERGE_DOMAIN_CONFIG`.
    pub merge_domains: bool,
    /// Whether a month is a calendar month: `USE_CALENDAR_MONTH_RATE_LIMIT`.
    pub calendar_months: bool,
    /// The windows: `TOLLGATE_WINDOWS`, which the original does not have.
    pub windows: Windows,
    /// From which part of a limit on hits are counted as near the limit, in thousandths: `NEAR_LIMIT_RATIO`.
    pub near_limit_per_mille: u32,
    /// Whether nothing is refused: `SHADOW_MODE`.
    pub shadow: bool,
    /// Whether all limits are in quota mode: `QUOTA_MODE`.
    pub quota: bool,
    /// The names of the headers that responses get: `LIMIT_RESPONSE_HEADERS_ENABLED`, `LIMIT_*_HEADER`.
    pub response_headers: Option<[String; 3]>,
    /// The names of the headers that requests get: `LIMIT_REQUEST_*`.
    pub request_headers: Option<[String; 3]>,
    /// Whether responses have dynamic metadata: `RESPONSE_DYNAMIC_METADATA`.
    pub dynamic_metadata: bool,
    /// The store: `REDIS_*`, `CACHE_KEY_PREFIX`; `None` with `BACKEND_TYPE=memory`, which the original does not have.
    pub redis: Option<RedisSettings>,
    /// The variables that are set and have no effect, each with the reason.
    pub ignored: Vec<(String, &'static str)>,
}

/// The certificates of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTls {
    /// The file with the chain.
    pub certificate: String,
    /// The file with the private key.
    pub key: String,
    /// The file with the authority of clients.
    pub client_authority: Option<String>,
}

/// Where the limits come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigType {
    /// The files of a folder: `RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY`.
    Folder(PathBuf),
    /// A management server: `CONFIG_TYPE=GRPC_XDS_SOTW`.
    ManagementServer(ManagementServer),
}

/// A Redis.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisSettings {
    /// How its servers are organised.
    pub kind: RedisType,
    /// The user, if one is named.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// The user at the sentinels, if one is named.
    pub sentinel_user: Option<String>,
    /// The password at the sentinels.
    pub sentinel_password: Option<String>,
    /// Whether connections use TLS.
    pub tls: bool,
    /// The file with the authority to trust.
    pub authority: Option<String>,
    /// The prefix of keys.
    pub prefix: Option<String>,
}

/// How the servers of a Redis are organised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisType {
    /// One server at host:port.
    Single(String),
    /// The name of the primary, and host:port of each sentinel.
    Sentinel(String, Vec<String>),
    /// host:port of some nodes.
    Cluster(Vec<String>),
}

/// Omits the passwords.
impl fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSettings").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// A variable with a value that cannot be honoured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsError {
    /// The variable.
    pub variable: &'static str,
    message: String,
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.variable, self.message)
    }
}

impl std::error::Error for SettingsError {}

const ONE_STORE: &str = "all limits are in one store, so that descriptors are decided together";
const NO_POOL: &str =
    "connections are shared and commands are sent in batches, with nothing to set";
const NO_STATSD: &str =
    "statsd is not supported; set USE_PROMETHEUS=true and scrape PROMETHEUS_ADDR";
const NO_TRACES: &str = "traces are not exported";

/// The variables that have no effect, by the beginning of their names, with the reason.
const IGNORED: &[(&str, &str)] = &[
    ("REDIS_PERSECOND", ONE_STORE),
    ("REDIS_POOL_", NO_POOL),
    ("REDIS_PIPELINE_", NO_POOL),
    ("REDIS_USE_EXPLICIT_PIPELINE", NO_POOL),
    ("REDIS_TIMEOUT", "an attempt ends when the answer would be too late for Envoy"),
    ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "/healthcheck always checks the store"),
    ("EXPIRATION_JITTER_MAX_SECONDS", "entries expire when they hold nothing back"),
    (
        "LOCAL_CACHE_SIZE_IN_BYTES",
        "refusals are decided by the store, which also knows of returned quota",
    ),
    ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "a refused request never charges anything"),
    ("USE_STATSD", NO_STATSD),
    ("USE_DOG_STATSD", NO_STATSD),
    ("DOG_STATSD_", NO_STATSD),
    ("STATSD_", NO_STATSD),
    ("EXTRA_TAGS", NO_STATSD),
    ("STATS_FLUSH_INTERVAL", NO_STATSD),
    ("PROMETHEUS_MAPPER_YAML", "the names are those of the default mapping"),
    ("DISABLE_STATS", "counting costs nothing measurable"),
    (
        "LOG_LEVEL",
        "the log has warnings and errors, and with LOG_FORMAT=json also informational events",
    ),
    ("GRPC_MAX_CONNECTION_AGE_GRACE", "calls in flight are finished"),
    ("TRACING_", NO_TRACES),
    ("MEMCACHE_", "BACKEND_TYPE is redis"),
];

const IGNORED_WITH_FILES: &[(&str, &str)] = &[
    ("RUNTIME_WATCH_ROOT", "files are watched however they are replaced"),
    ("RUNTIME_IGNOREDOTFILES", "names that begin with a dot are always left out"),
    ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "it does not start without a configuration"),
    ("CONFIG_GRPC_XDS_", "CONFIG_TYPE is FILE"),
    ("XDS_CLIENT_", "CONFIG_TYPE is FILE"),
];

const IGNORED_WITH_XDS: &[(&str, &str)] = &[("RUNTIME_", "CONFIG_TYPE is GRPC_XDS_SOTW")];

impl Settings {
    /// Reads `variables`, usually the environment. Those that the original does not know are left alone. An empty one counts
    /// as not set.
    ///
    /// # Errors
    /// If a value is malformed, or asks for something that cannot be done.
    ///
    /// ```
    /// use tollgate_ratelimit_config::Settings;
    ///
    /// let settings = Settings::read([("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", "redis:6379")])?;
    /// assert_eq!(settings.grpc, "0.0.0.0:8081");
    /// # Ok::<(), tollgate_ratelimit_config::SettingsError>(())
    /// ```
    pub fn read<N, V>(variables: impl IntoIterator<Item = (N, V)>) -> Result<Self, SettingsError>
    where
        N: Into<String>,
        V: Into<String>,
    {
        let variables = variables.into_iter().map(|(name, value)| (name.into(), value.into()));
        let set = Variables(
            variables.filter(|(_, value): &(String, String)| !value.is_empty()).collect(),
        );
        let is_file = set.one_of("CONFIG_TYPE", &["FILE", "GRPC_XDS_SOTW"])? == 0;
        set.refuse(is_file)?;
        let tls = set.flag("GRPC_SERVER_USE_TLS")?.then(|| set.tls()).transpose()?;
        let prometheus = set.flag("USE_PROMETHEUS")?.then(|| set.prometheus()).transpose()?;
        let ignored = set.ignored(is_file);
        Ok(Self {
            http: set.address("HOST", "PORT", 8080)?,
            grpc: set.address("GRPC_HOST", "GRPC_PORT", 8081)?,
            debug: set.address("DEBUG_HOST", "DEBUG_PORT", 6070)?,
            prometheus,
            grpc_age_max: set.duration("GRPC_MAX_CONNECTION_AGE")?,
            tls,
            json_log: set.one_of("LOG_FORMAT", &["text", "json"])? == 1,
            config: if is_file {
                ConfigType::Folder(set.folder())
            } else {
                ConfigType::ManagementServer(ManagementServer::read(&set)?)
            },
            merge_domains: set.flag("MERGE_DOMAIN_CONFIG")?,
            calendar_months: set.flag("USE_CALENDAR_MONTH_RATE_LIMIT")?,
            windows: match set.one_of("TOLLGATE_WINDOWS", &["fixed", "rolling"])? {
                0 => Windows::Fixed,
                _ => Windows::Rolling,
            },
            near_limit_per_mille: set.per_mille("NEAR_LIMIT_RATIO", "0.8")?,
            shadow: set.flag("SHADOW_MODE")?,
            quota: set.flag("QUOTA_MODE")?,
            response_headers: set.headers(
                "LIMIT_RESPONSE_HEADERS_ENABLED",
                ["LIMIT_LIMIT_HEADER", "LIMIT_REMAINING_HEADER", "LIMIT_RESET_HEADER"],
            )?,
            request_headers: set.headers(
                "LIMIT_REQUEST_HEADERS_ENABLED",
                [
                    "LIMIT_REQUEST_LIMIT_HEADER",
                    "LIMIT_REQUEST_REMAINING_HEADER",
                    "LIMIT_REQUEST_RESET_HEADER",
                ],
            )?,
            dynamic_metadata: set.flag("RESPONSE_DYNAMIC_METADATA")?,
            redis: set.redis()?,
            ignored,
        })
    }
}

pub(crate) struct Variables(Vec<(String, String)>);

impl Variables {
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Refuses what would silently change the meaning of the limits, or leave something unprotected.
    fn refuse(&self, is_file: bool) -> Result<(), SettingsError> {
        if self.get("GRPC_UDS").is_some() {
            return Err(error(
                "GRPC_UDS",
                "Unix sockets are not supported; remove it and use GRPC_HOST and GRPC_PORT",
            ));
        }
        if self.get("GRPC_CLIENT_TLS_SAN").is_some() {
            let text = "names of client certificates are not checked; issue client certificates from an authority of their own \
                        and name it in GRPC_CLIENT_TLS_CACERT";
            return Err(error("GRPC_CLIENT_TLS_SAN", text));
        }
        if self.flag("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION")? {
            let text = "certificates are always verified; remove it and give the authority in REDIS_TLS_CACERT";
            return Err(error("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", text));
        }
        for variable in ["REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY"] {
            if self.get(variable).is_some() {
                return Err(error(
                    variable,
                    "client certificates for Redis are not supported; use REDIS_AUTH",
                ));
            }
        }
        if is_file && self.flag("FORCE_START_WITHOUT_INITIAL_CONFIG")? {
            let text = "it would admit everything until there is a configuration; mount one before the start";
            return Err(error("FORCE_START_WITHOUT_INITIAL_CONFIG", text));
        }
        Ok(())
    }

    fn ignored(&self, is_file: bool) -> Vec<(String, &'static str)> {
        let more = if is_file { IGNORED_WITH_FILES } else { IGNORED_WITH_XDS };
        let reason = |name: &String| {
            let known =
                IGNORED.iter().chain(more).find(|(known, _)| match known.strip_suffix('_') {
                    Some(_) => name.starts_with(known),
                    None => name == known || *known == "REDIS_PERSECOND" && name.starts_with(known),
                });
            known.map(|(_, reason)| (name.clone(), *reason))
        };
        // What is off, as it is here, needs no note.
        let is_off = |value: &str| matches!(value, "false" | "0" | "f" | "F" | "FALSE" | "False");
        let set = self.0.iter().filter(|(_, value)| !is_off(value));
        set.filter_map(|(name, _)| reason(name)).collect()
    }

    /// Reads a boolean as Go does.
    pub(crate) fn flag(&self, name: &'static str) -> Result<bool, SettingsError> {
        self.flag_or(name, false)
    }

    /// Reads a boolean that is `default` if it is not set.
    pub(crate) fn flag_or(&self, name: &'static str, default: bool) -> Result<bool, SettingsError> {
        match self.get(name) {
            None => Ok(default),
            Some("0" | "f" | "F" | "false" | "False" | "FALSE") => Ok(false),
            Some("1" | "t" | "T" | "true" | "True" | "TRUE") => Ok(true),
            Some(other) => Err(error(name, format!("{other:?} is neither true nor false"))),
        }
    }

    /// Returns the index of the value among `known`, the first if it is not set.
    fn one_of(&self, name: &'static str, known: &[&str]) -> Result<usize, SettingsError> {
        let Some(value) = self.get(name) else { return Ok(0) };
        let found = known.iter().position(|known| known.eq_ignore_ascii_case(value));
        found.ok_or_else(|| error(name, format!("{value:?} is none of {}", known.join(", "))))
    }

    fn address(
        &self,
        host: &'static str,
        port: &'static str,
        default: u16,
    ) -> Result<String, SettingsError> {
        let number = match self.get(port) {
            None => default,
            Some(text) => text
                .parse()
                .map_err(|_| error(port, format!("{text:?} is not a port, as in {default}")))?,
        };
        let name = self.get(host).unwrap_or("0.0.0.0");
        let name = if name == "localhost" { "127.0.0.1" } else { name };
        let ip: std::net::IpAddr = name.parse().map_err(|_| {
            error(
                host,
                format!("{name:?} is not an address of this machine, as in 0.0.0.0 or 127.0.0.1"),
            )
        })?;
        Ok(std::net::SocketAddr::new(ip, number).to_string())
    }

    fn prometheus(&self) -> Result<(String, String), SettingsError> {
        const NAME: &str = "PROMETHEUS_ADDR";
        let at = self.get(NAME).unwrap_or(":9090");
        let full = if at.starts_with(':') {
            format!("0.0.0.0{at}")
        } else {
            at.replace("localhost:", "127.0.0.1:")
        };
        let address: std::net::SocketAddr = full
            .parse()
            .map_err(|_| error(NAME, format!("{at:?} is not an address and port, as in :9090")))?;
        let path = self.get("PROMETHEUS_PATH").unwrap_or("/metrics");
        if !path.starts_with('/') {
            return Err(error(
                "PROMETHEUS_PATH",
                format!("{path:?} does not begin with a slash, as in /metrics"),
            ));
        }
        Ok((address.to_string(), path.to_owned()))
    }

    fn tls(&self) -> Result<ServerTls, SettingsError> {
        let need = |name: &'static str| {
            let text = "GRPC_SERVER_USE_TLS needs it: the path of a PEM file";
            self.get(name).map(str::to_owned).ok_or_else(|| error(name, text))
        };
        Ok(ServerTls {
            certificate: need("GRPC_SERVER_TLS_CERT")?,
            key: need("GRPC_SERVER_TLS_KEY")?,
            client_authority: self.get("GRPC_CLIENT_TLS_CACERT").map(str::to_owned),
        })
    }

    fn folder(&self) -> PathBuf {
        let root = self.get("RUNTIME_ROOT").unwrap_or("/srv/runtime_data/current");
        let below = self.get("RUNTIME_SUBDIRECTORY").unwrap_or("");
        let app = self.get("RUNTIME_APPDIRECTORY").unwrap_or("config");
        // A leading slash would start again at the root of the file system.
        [below, app].into_iter().fold(PathBuf::from(root), |path, part| {
            match part.trim_matches('/') {
                "" => path,
                part => path.join(part),
            }
        })
    }

    /// Reads a number from 0 to 1, in thousandths.
    pub(crate) fn per_mille(
        &self,
        name: &'static str,
        default: &str,
    ) -> Result<u32, SettingsError> {
        let text = self.get(name).unwrap_or(default);
        let wrong =
            || error(name, format!("{text:?} is not a number from 0 to 1, as in {default}"));
        let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
        let whole: u32 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| wrong())? };
        let is_digit = |c: char| c.is_ascii_digit();
        if !decimals.chars().all(is_digit) || (whole, decimals) == (0, "") && text == "." {
            return Err(wrong());
        }
        // More decimals than three are cut.
        let digits: String = decimals.chars().chain("000".chars()).take(3).collect();
        let per_mille = digits.parse::<u32>().map_err(|_| wrong())?;
        whole
            .checked_mul(1_000)
            .and_then(|whole| whole.checked_add(per_mille))
            .filter(|all| *all <= 1_000)
            .ok_or_else(wrong)
    }

    /// Reads a duration as Go writes it.
    pub(crate) fn duration(&self, name: &'static str) -> Result<Option<Span>, SettingsError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let wrong = || error(name, format!("{text:?} is not a duration, as in 3s or 1m30s"));
        parse_duration(text).map(Some).ok_or_else(wrong)
    }

    fn headers(
        &self,
        enabled: &'static str,
        names: [&'static str; 3],
    ) -> Result<Option<[String; 3]>, SettingsError> {
        if !self.flag(enabled)? {
            return Ok(None);
        }
        let defaults = ["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"];
        let mut headers = defaults.map(str::to_owned);
        for (header, name) in headers.iter_mut().zip(names) {
            if let Some(value) = self.get(name) {
                let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
                if !value.chars().all(is_plain) {
                    return Err(error(
                        name,
                        format!("{value:?} is not the name of a header, as in x-limit"),
                    ));
                }
                value.clone_into(header);
            }
        }
        Ok(Some(headers))
    }

    fn redis(&self) -> Result<Option<RedisSettings>, SettingsError> {
        match self.one_of("BACKEND_TYPE", &["redis", "memory", "memcache"])? {
            0 => {}
            1 => return Ok(None),
            _ => {
                return Err(error(
                    "BACKEND_TYPE",
                    "memcache is not supported; set redis and REDIS_URL",
                ));
            }
        }
        let url = self.get("REDIS_URL").ok_or_else(|| {
            error("REDIS_URL", "is not set; set it to host:port and REDIS_SOCKET_TYPE to tcp, or set BACKEND_TYPE=memory for one \
                                process without a store")
        })?;
        let hosts =
            |text: &str| text.split(',').map(|part| part.trim().to_owned()).collect::<Vec<_>>();
        let kind = match self.one_of("REDIS_TYPE", &["SINGLE", "SENTINEL", "CLUSTER"])? {
            0 => {
                let is_socket = url.starts_with('/') || url.starts_with("unix:");
                if is_socket || self.get("REDIS_SOCKET_TYPE").is_some_and(|kind| kind == "unix") {
                    let text = "Unix sockets are not supported; set REDIS_URL to host:port and REDIS_SOCKET_TYPE to tcp";
                    return Err(error("REDIS_SOCKET_TYPE", text));
                }
                RedisType::Single(url.to_owned())
            }
            1 => {
                let mut hosts = hosts(url);
                let master = hosts.remove(0);
                if hosts.is_empty() {
                    let text = "with REDIS_TYPE=SENTINEL it is NAME,host:port,…: the name of the primary and the sentinels";
                    return Err(error("REDIS_URL", text));
                }
                RedisType::Sentinel(master, hosts)
            }
            _ => RedisType::Cluster(hosts(url)),
        };
        let login = |name| match self.get(name).map(|text| text.split_once(':').ok_or(text)) {
            None => (None, None),
            Some(Ok((user, password))) => (Some(user.to_owned()), Some(password.to_owned())),
            Some(Err(password)) => (None, Some(password.to_owned())),
        };
        let (user, password) = login("REDIS_AUTH");
        let (sentinel_user, sentinel_password) = login("REDIS_SENTINEL_AUTH");
        Ok(Some(RedisSettings {
            kind,
            user,
            password,
            sentinel_user,
            sentinel_password,
            tls: self.flag("REDIS_TLS")?,
            authority: self.get("REDIS_TLS_CACERT").map(str::to_owned),
            prefix: self.get("CACHE_KEY_PREFIX").map(str::to_owned),
        }))
    }
}

/// Parses numbers with units, as in `1h15m30.5s`.
fn parse_duration(text: &str) -> Option<Span> {
    let mut rest = text;
    let mut nanos: u64 = 0;
    if rest == "0" {
        return Some(Span::ZERO);
    }
    while !rest.is_empty() {
        let is_number = |c: char| c.is_ascii_digit() || c == '.';
        let (number, after) = rest.split_at(rest.find(|c| !is_number(c))?);
        let (unit, next) = after.split_at(after.find(is_number).unwrap_or(after.len()));
        let unit: u64 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && decimals.is_empty() {
            return None;
        }
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        nanos = whole.checked_mul(unit).and_then(|part| nanos.checked_add(part))?;
        let mut size = unit;
        for digit in decimals.chars() {
            size /= 10;
            nanos = nanos.checked_add(u64::from(digit.to_digit(10)?) * size)?;
        }
        rest = next;
    }
    Some(Duration::from_nanos(nanos).into())
}

pub(crate) fn error(variable: &'static str, message: impl Into<String>) -> SettingsError {
    SettingsError { variable, message: message.into() }
}
