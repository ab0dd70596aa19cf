//! Where the broker listens, one key for each protocol.

use std::net::SocketAddr;
use std::path::Path;

use tollgate_server::TlsFiles;

use super::Blame;
use super::file::ServerTable;
use super::place::Text;

const HTTP_DEFAULT: &str = "127.0.0.1:8080";
const RESP_DEFAULT: &str = "127.0.0.1:6380";

/// The table `[server]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerConfig {
    /// HTTP, which is always there: it has the probes and the dashboard.
    pub(crate) http: SocketAddr,
    /// The Redis protocol.
    pub(crate) resp: Listen,
    /// Whether others than this machine may call without a key.
    pub(crate) anonymous: bool,
    /// Where the certificates are, if it speaks TLS.
    pub(crate) tls: Option<TlsFiles>,
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
        let resp = listen(text, "resp", table.resp.as_deref(), RESP_DEFAULT)?;
        let tls = table.tls.as_ref().map(|tls| TlsFiles {
            certificate: folder.join(&tls.certificate),
            key: folder.join(&tls.key),
            client_authority: tls.client_authority.as_ref().map(|path| folder.join(path)),
        });
        Ok(Self { http, resp, anonymous: table.anonymous.unwrap_or(false), tls })
    }
}

fn listen(text: &Text<'_>, key: &str, value: Option<&str>, default: &str) -> Result<Listen, Blame> {
    let value = value.unwrap_or(default);
    Listen::parse(value).ok_or_else(|| {
        let what = format!(
            "{key} {value:?} is neither an address and port, as in {default:?}, nor \"off\""
        );
        text.blame(&["server", key], what)
    })
}
