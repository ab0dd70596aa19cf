//! Where the broker listens, one key for each protocol.

use std::net::SocketAddr;
use std::path::Path;

use tollgate::Span;
use tollgate::incident::RETRY_AFTER_MAX;
use tollgate_server::{Settings, TlsFiles};

use super::Blame;
use super::file::ServerTable;
use super::place::Text;

const HTTP_DEFAULT: &str = "127.0.0.1:8080";
const RESP_DEFAULT: &str = "127.0.0.1:6380";
const GRPC_DEFAULT: &str = "127.0.0.1:8081";

/// The table `[server]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerConfig {
    /// HTTP, which is always there: it has the probes and the dashboard.
    pub(crate) http: SocketAddr,
    /// The Redis protocol.
    pub(crate) resp: Listen,
    /// gRPC, with Envoy's rate limit service.
    pub(crate) grpc: Listen,
    /// Whether others than this machine may call without a key.
    pub(crate) anonymous: bool,
    /// Whether asks over HTTP are answered with `X-RateLimit-*` too.
    pub(crate) legacy_fields: bool,
    /// Where the certificates are, if it speaks TLS.
    pub(crate) tls: Option<TlsFiles>,
    /// Whether it reads its files again when they change.
    pub(crate) watch: bool,
    /// How it logs.
    pub(crate) log: LogFormat,
    /// What callers may do beyond what their keys say.
    pub(crate) settings: Settings,
    /// How long it goes on answering, though no longer ready, after it was told to end.
    pub(crate) drain_delay: Span,
}

/// The longest `drain_delay`.
const DRAIN_DELAY_MAX: Span = Span::from_mins(10);

/// The longest `grpc_age_max`.
const AGE_MAX: Span = Span::from_hours(365 * 24);

/// How the broker logs, to standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Lines for people: what needs somebody's attention.
    Text,
    /// One JSON object per line, for programs: also what was done.
    Json,
}

impl LogFormat {
    /// `text` or `json`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "text" => Some(Self::Text),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// Where a protocol listens that can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listen {
    /// Nowhere.
    Off,
    /// There.
    At(SocketAddr),
}

impl Listen {
    /// An address and port, or `off`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "off" => Some(Self::Off),
            _ => text.parse().ok().map(Self::At),
        }
    }

    /// Where, if anywhere.
    pub(crate) const fn address(self) -> Option<SocketAddr> {
        match self {
            Self::Off => None,
            Self::At(address) => Some(address),
        }
    }
}

impl ServerConfig {
    /// Whether clients must have a certificate.
    pub(crate) fn has_client_authority(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.client_authority.is_some())
    }

    pub(super) fn resolve(
        text: &Text<'_>,
        table: &ServerTable,
        folder: &Path,
    ) -> Result<Self, Blame> {
        let http = table.http.as_deref().unwrap_or(HTTP_DEFAULT);
        let http = http.parse().map_err(|_| {
            text.blame(
                &["server", "http"],
                format!("http {http:?} is not an address and port, as in {HTTP_DEFAULT:?}"),
            )
        })?;
        let resp = table.resp.as_deref().unwrap_or(RESP_DEFAULT);
        let resp = listen(text, "resp", resp, RESP_DEFAULT)?;
        let grpc = table.grpc.as_deref().unwrap_or(GRPC_DEFAULT);
        let grpc = listen(text, "grpc", grpc, GRPC_DEFAULT)?;
        let tls = table.tls.as_ref().map(|tls| TlsFiles {
            certificate: folder.join(&tls.certificate),
            key: folder.join(&tls.key),
            client_authority: tls.client_authority.as_ref().map(|path| folder.join(path)),
        });
        let log = table.log.as_deref().unwrap_or("text");
        let log = LogFormat::parse(log).ok_or_else(|| {
            let what = format!("log {log:?} is neither \"text\" nor \"json\"");
            text.blame(&["server", "log"], what)
        })?;
        let legacy_fields = table.legacy_fields.unwrap_or(false);
        let (anonymous, watch) = (table.anonymous.unwrap_or(false), table.watch.unwrap_or(true));
        let settings = settings(text, table)?;
        let drain_delay = table.drain_delay.as_deref();
        let drain_delay = drain_delay
            .map(|value| span(text, "drain_delay", value, DRAIN_DELAY_MAX))
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

fn settings(text: &Text<'_>, table: &ServerTable) -> Result<Settings, Blame> {
    let mut settings = Settings::default();
    if let Some(most) = &table.violation_hint_max {
        settings.violation_hint_max = span(text, "violation_hint_max", most, RETRY_AFTER_MAX)?;
    }
    if let Some(most) = table.settle_excess_max {
        settings.settle_excess_max = most;
    }
    if let Some(most) = &table.grpc_age_max {
        settings.grpc_age_max = span(text, "grpc_age_max", most, AGE_MAX)?;
    }
    settings.throttle_subjects_max = table.throttle_subjects_max;
    settings.ipv4_prefix =
        prefix(text, "ipv4_prefix", table.ipv4_prefix.unwrap_or(settings.ipv4_prefix), 32)?;
    settings.ipv6_prefix =
        prefix(text, "ipv6_prefix", table.ipv6_prefix.unwrap_or(settings.ipv6_prefix), 128)?;
    for host in &table.hosts {
        if host.is_empty()
            || host.contains(['/', '*', ' '])
            || host.contains(':') && !host.starts_with('[')
        {
            let what =
                format!("hosts {host:?} is not a name without a port, as in \"tollgate.internal\"");
            return Err(text.blame(&["server", "hosts"], what));
        }
    }
    settings.hosts.clone_from(&table.hosts);
    Ok(settings)
}

/// A length of a prefix of at most `most` bits.
fn prefix(text: &Text<'_>, key: &str, bits: u8, most: u8) -> Result<u8, Blame> {
    if bits <= most {
        return Ok(bits);
    }
    Err(text.blame(&["server", key], format!("{key} {bits} must be at most {most}")))
}

/// A time of at most `most`.
fn span(text: &Text<'_>, key: &str, value: &str, most: Span) -> Result<Span, Blame> {
    let wrong = |what: String| text.blame(&["server", key], what);
    let span = value.parse::<Span>().map_err(|error| wrong(format!("{key}: {error}")))?;
    if most < span {
        return Err(wrong(format!("{key} {value:?} must be at most {most}")));
    }
    Ok(span)
}

fn listen(text: &Text<'_>, key: &str, value: &str, example: &str) -> Result<Listen, Blame> {
    Listen::parse(value).ok_or_else(|| {
        let what = format!(
            "{key} {value:?} is neither an address and port, as in {example:?}, nor \"off\""
        );
        text.blame(&["server", key], what)
    })
}
