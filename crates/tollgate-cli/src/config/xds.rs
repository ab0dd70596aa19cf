//! `[envoy.xds]`: the management server that sends the limits of envoyproxy/ratelimit.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::PathBuf;

use hyper::Uri;
use serde::Deserialize;
use tollgate::retry::Backoff;
use tollgate::{Error, ErrorKind, Span};
use tollgate_config::{Diagnostic, Document};
use tollgate_ratelimit_config::Readiness;
use tollgate_ratelimit_config::bounds::{RETRY_MAX, RETRY_MIN};
use tollgate_transport::tls::{ClientTls, TlsOptions};
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue};

/// The largest message unless another one is set: the default of gRPC.
const MESSAGE_BYTES_DEFAULT: u32 = 4 << 20;

/// The section as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct XdsTable {
    server: String,
    node: Option<String>,
    #[serde(default)]
    metadata: BTreeMap<String, String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    tls: bool,
    authority: Option<String>,
    certificate: Option<String>,
    key: Option<String>,
    server_name: Option<String>,
    retry: Option<String>,
    retry_max: Option<String>,
    jitter_per_mille: Option<u64>,
    message_bytes_max: Option<u32>,
    ready: Option<String>,
}

/// A management server, and how it is called.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct XdsConfig {
    /// Its URL.
    pub(crate) server: Uri,
    /// The node that limits are asked for.
    pub(crate) node: String,
    /// The metadata of the node.
    pub(crate) metadata: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    tls: Option<XdsTls>,
    /// The delays between attempts to connect.
    pub(crate) backoff: Backoff,
    /// The largest message.
    pub(crate) message_bytes_max: usize,
    /// When the server is ready.
    pub(crate) readiness: Readiness,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct XdsTls {
    authority: Option<PathBuf>,
    identity: Option<[PathBuf; 2]>,
    server_name: Option<String>,
}

/// Omits the headers, which may hold credentials.
impl fmt::Debug for XdsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XdsConfig")
            .field("server", &self.server)
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

impl XdsConfig {
    pub(super) fn resolve(document: &Document, table: &XdsTable) -> Result<Self, Diagnostic> {
        let wrong = |key: &str, message: String| document.error(&["envoy", "xds", key], message);
        let scheme = if table.tls { "https" } else { "http" };
        let server: Option<Uri> = format!("{scheme}://{}/", table.server).parse().ok();
        let is_address = |uri: &Uri| uri.port_u16().is_some() && uri.path() == "/";
        let server = server.filter(is_address).ok_or_else(|| {
            let message = format!(
                "server {:?} is not a host and port, as in \"xds.example:18000\"",
                table.server
            );
            wrong("server", message)
        })?;
        let span = |key: &str, value: Option<&str>, default| match value {
            Some(text) => document.duration(&["envoy", "xds", key], text, [RETRY_MIN, RETRY_MAX]),
            None => Ok(default),
        };
        let base = span("retry", table.retry.as_deref(), Span::from_secs(3))?;
        let max = span("retry_max", table.retry_max.as_deref(), Span::from_secs(60).max(base))?;
        let jitter = table.jitter_per_mille.unwrap_or(500);
        if 1_000 < jitter {
            let message = format!("jitter_per_mille {jitter} must be at most 1000");
            return Err(wrong("jitter_per_mille", message));
        }
        let readiness = match table.ready.as_deref() {
            None | Some("loaded") => Readiness::Loaded,
            Some("always") => Readiness::Always,
            Some("domains") => Readiness::Domains,
            Some(other) => {
                let message =
                    format!("ready {other:?} is none of \"loaded\", \"always\" and \"domains\"");
                return Err(wrong("ready", message));
            }
        };
        let config = Self {
            server,
            node: table.node.clone().unwrap_or_else(|| "default".to_owned()),
            metadata: table.metadata.clone(),
            headers: table.headers.clone(),
            tls: XdsTls::resolve(document, table)?,
            backoff: Backoff {
                base,
                max,
                jitter_low: 1_000 - jitter,
                jitter_high: 1_000 + jitter,
                clamp: false,
            },
            message_bytes_max: table.message_bytes_max.unwrap_or(MESSAGE_BYTES_DEFAULT) as usize,
            readiness,
        };
        config.headers().map_err(|name| {
            // The value may be a credential, so only the name is shown.
            let message =
                format!("{name:?} is not the name of a header, or its value is not ASCII");
            wrong("headers", message)
        })?;
        Ok(config)
    }

    /// Returns the metadata of the call.
    ///
    /// # Errors
    /// Returns the name of a header that cannot be sent.
    pub(crate) fn headers(&self) -> Result<Vec<(AsciiMetadataKey, AsciiMetadataValue)>, String> {
        let header = |(name, value): (&String, &String)| {
            let key: Option<AsciiMetadataKey> = name.parse().ok();
            let value = value.parse().ok();
            key.zip(value).ok_or_else(|| name.clone())
        };
        self.headers.iter().map(header).collect()
    }

    /// Reads the certificates. They are read for each connection, so that replaced files take effect with the next.
    ///
    /// # Errors
    /// If a file cannot be read, or what is in it cannot be used.
    pub(crate) fn client_tls(&self) -> Result<Option<ClientTls>, Error> {
        let Some(tls) = &self.tls else { return Ok(None) };
        let invalid = |text: String| Error::new(ErrorKind::Invalid, text);
        let read = |path: &PathBuf| {
            let unreadable = |error| invalid(format!("{} cannot be read: {error}", path.display()));
            fs::read(path).map_err(unreadable)
        };
        let mut options = TlsOptions::default();
        if let Some(authority) = &tls.authority {
            options = options.authority(read(authority)?);
        }
        if let Some([certificate, key]) = &tls.identity {
            options = options.identity(read(certificate)?, read(key)?);
        }
        if let Some(name) = &tls.server_name {
            options = options.server_name(name);
        }
        ClientTls::new(&options)
            .map(Some)
            .map_err(|error| invalid(format!("TLS to the management server: {error}")))
    }
}

impl XdsTls {
    fn resolve(document: &Document, table: &XdsTable) -> Result<Option<Self>, Diagnostic> {
        let wrong = |key: &str, message: &str| Err(document.error(&["envoy", "xds", key], message));
        let path = |name: &Option<String>| name.as_ref().map(|name| document.folder().join(name));
        let identity = match (path(&table.certificate), path(&table.key)) {
            (Some(certificate), Some(key)) => Some([certificate, key]),
            (None, None) => None,
            (Some(_), None) => {
                return wrong("certificate", "certificate needs key, the file of its private key");
            }
            (None, Some(_)) => {
                return wrong("key", "key needs certificate, the file that it belongs to");
            }
        };
        let tls = Self {
            authority: path(&table.authority),
            identity,
            server_name: table.server_name.clone(),
        };
        if !table.tls {
            for (key, is_set) in [
                ("authority", tls.authority.is_some()),
                ("certificate", tls.identity.is_some()),
                ("server_name", tls.server_name.is_some()),
            ] {
                if is_set {
                    return wrong(key, &format!("{key} is for TLS; add tls = true"));
                }
            }
            return Ok(None);
        }
        Ok(Some(tls))
    }
}
