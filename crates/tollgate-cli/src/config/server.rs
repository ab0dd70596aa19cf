//! `[server]`: the listeners of the broker, its limits and its log.

use std::net::SocketAddr;

use serde::Deserialize;
use tollgate::Span;
use tollgate::incident::RETRY_AFTER_MAX;
use tollgate_config::{Diagnostic, Document};
use tollgate_server::{ServerOptions, TlsFiles};

/// The section as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerTable {
    http: Option<String>,
    grpc: Option<String>,
    resp: Option<String>,
    anonymous: Option<bool>,
    legacy_fields: Option<bool>,
    watch: Option<bool>,
    log: Option<String>,
    violation_hint_max: Option<String>,
    settle_excess_max: Option<u64>,
    throttle_subjects_max: Option<u64>,
    ipv4_prefix: Option<u8>,
    ipv6_prefix: Option<u8>,
    #[serde(default)]
    hosts: Vec<String>,
    grpc_age_max: Option<String>,
    drain_delay: Option<String>,
    tls: Option<TlsTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TlsTable {
    certificate: String,
    key: String,
    client_authority: Option<String>,
}

const HTTP_DEFAULT: &str = "127.0.0.1:8080";
const RESP_DEFAULT: &str = "127.0.0.1:6380";
const GRPC_DEFAULT: &str = "127.0.0.1:8081";

/// The table `[server]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerConfig {
    /// The address of HTTP, which has the probes and the dashboard.
    pub(crate) http: SocketAddr,
    /// The Redis protocol.
    pub(crate) resp: Listen,
    /// gRPC, with Envoy's rate limit service.
    pub(crate) grpc: Listen,
    /// Whether other machines may call without a key.
    pub(crate) anonymous: bool,
    /// Whether responses also have `X-RateLimit-*` headers.
    pub(crate) legacy_fields: bool,
    /// The certificates, if it uses TLS.
    pub(crate) tls: Option<TlsFiles>,
    /// Whether changed files are reloaded.
    pub(crate) watch: bool,
    /// The format of the log.
    pub(crate) log: LogFormat,
    /// Bounds on callers.
    pub(crate) settings: ServerOptions,
    /// How long it serves requests after SIGTERM, while it is not ready.
    pub(crate) drain_delay: Span,
}

/// The longest `drain_delay`.
const DRAIN_DELAY_MAX: Span = Span::from_mins(10);

/// The longest `grpc_age_max`.
const AGE_MAX: Span = Span::from_hours(365 * 24);

/// The format of the log on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Text for people: warnings and errors.
    Text,
    /// One JSON object per line for programs, with informational events.
    Json,
}

impl LogFormat {
    /// Parses `text` or `json`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "text" => Some(Self::Text),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// The address of an optional protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listen {
    /// It is off.
    Off,
    /// It listens there.
    At(SocketAddr),
}

impl Listen {
    /// Parses an address and port, or `off`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "off" => Some(Self::Off),
            _ => text.parse().ok().map(Self::At),
        }
    }

    /// Returns the address, unless it is off.
    pub(crate) const fn address(self) -> Option<SocketAddr> {
        match self {
            Self::Off => None,
            Self::At(address) => Some(address),
        }
    }
}

impl ServerConfig {
    /// Returns whether clients must have a certificate.
    pub(crate) fn has_client_authority(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.client_authority.is_some())
    }

    pub(super) fn resolve(document: &Document) -> Result<Self, Diagnostic> {
        let table: ServerTable = document.section("server")?.unwrap_or_default();
        let folder = document.folder();
        let http = table.http.as_deref().unwrap_or(HTTP_DEFAULT);
        let http = http.parse().map_err(|_| {
            document.error(
                &["server", "http"],
                format!("http {http:?} is not an address and port, as in {HTTP_DEFAULT:?}"),
            )
        })?;
        let resp = table.resp.as_deref().unwrap_or(RESP_DEFAULT);
        let resp = listen(document, "resp", resp, RESP_DEFAULT)?;
        let grpc = table.grpc.as_deref().unwrap_or(GRPC_DEFAULT);
        let grpc = listen(document, "grpc", grpc, GRPC_DEFAULT)?;
        let tls = table.tls.as_ref().map(|tls| TlsFiles {
            certificate: folder.join(&tls.certificate),
            key: folder.join(&tls.key),
            client_authority: tls.client_authority.as_ref().map(|path| folder.join(path)),
        });
        let log = table.log.as_deref().unwrap_or("text");
        let log = LogFormat::parse(log).ok_or_else(|| {
            let message = format!("unknown log format {log:?}; use \"text\" or \"json\"");
            document.error(&["server", "log"], message)
        })?;
        let legacy_fields = table.legacy_fields.unwrap_or(false);
        let (anonymous, watch) = (table.anonymous.unwrap_or(false), table.watch.unwrap_or(true));
        let settings = settings(document, &table)?;
        let drain_delay = table.drain_delay.as_deref();
        let drain_delay = drain_delay
            .map(|value| {
                document.duration(&["server", "drain_delay"], value, [Span::ZERO, DRAIN_DELAY_MAX])
            })
            .transpose()?;
        Ok(Self {
            http,
            resp,
            grpc,
            anonymous,
            legacy_fields,
            tls,
            watch,
            log,
            settings,
            drain_delay: drain_delay.unwrap_or(Span::ZERO),
        })
    }
}

fn settings(document: &Document, table: &ServerTable) -> Result<ServerOptions, Diagnostic> {
    let mut settings = ServerOptions::default();
    if let Some(most) = &table.violation_hint_max {
        let range = [Span::ZERO, RETRY_AFTER_MAX];
        let most = document.duration(&["server", "violation_hint_max"], most, range)?;
        settings.violation_hint_max = most.into();
    }
    if let Some(most) = table.settle_excess_max {
        settings.settle_excess_max = most;
    }
    if let Some(most) = &table.grpc_age_max {
        let range = [Span::ZERO, AGE_MAX];
        settings.grpc_age_max = document.duration(&["server", "grpc_age_max"], most, range)?.into();
    }
    if table.throttle_subjects_max == Some(0) {
        let message = "throttle_subjects_max must be at least 1";
        return Err(document.error(&["server", "throttle_subjects_max"], message));
    }
    settings.throttle_subjects_max = table.throttle_subjects_max;
    settings.ipv4_prefix =
        prefix(document, "ipv4_prefix", table.ipv4_prefix.unwrap_or(settings.ipv4_prefix), 32)?;
    settings.ipv6_prefix =
        prefix(document, "ipv6_prefix", table.ipv6_prefix.unwrap_or(settings.ipv6_prefix), 128)?;
    for host in &table.hosts {
        if host.is_empty()
            || host.contains(['/', '*', ' '])
            || host.contains(':') && !host.starts_with('[')
        {
            let message =
                format!("hosts {host:?} is not a name without a port, as in \"tollgate.internal\"");
            return Err(document.error(&["server", "hosts"], message));
        }
    }
    settings.hosts.clone_from(&table.hosts);
    Ok(settings)
}

/// Checks a prefix length of at most `most` bits.
fn prefix(document: &Document, key: &str, bits: u8, most: u8) -> Result<u8, Diagnostic> {
    if bits <= most {
        return Ok(bits);
    }
    Err(document.error(&["server", key], format!("{key} {bits} must be at most {most}")))
}

fn listen(
    document: &Document,
    key: &str,
    value: &str,
    example: &str,
) -> Result<Listen, Diagnostic> {
    Listen::parse(value).ok_or_else(|| {
        let message = format!(
            "{key} {value:?} is neither an address and port, as in {example:?}, nor \"off\""
        );
        document.error(&["server", key], message)
    })
}
