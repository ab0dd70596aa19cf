//! The variables of `CONFIG_TYPE=GRPC_XDS_SOTW`: the management server that sends the limits.

use std::collections::BTreeMap;
use std::fmt;

use tollgate::Span;

use crate::bounds::{RETRY_MAX, RETRY_MIN};
use crate::settings::{SettingsError, Variables, error};

/// A management server, and how it is called.
#[derive(Clone, PartialEq, Eq)]
pub struct ManagementServer {
    /// Its host and port: `CONFIG_GRPC_XDS_SERVER_URL`.
    pub address: String,
    /// The node that the limits are asked for: `CONFIG_GRPC_XDS_NODE_ID`.
    pub node: String,
    /// The metadata of the node: `CONFIG_GRPC_XDS_NODE_METADATA`.
    pub metadata: BTreeMap<String, String>,
    /// The metadata of the call: `CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS`.
    pub headers: BTreeMap<String, String>,
    /// The certificates, if it uses TLS: `CONFIG_GRPC_XDS_SERVER_USE_TLS`.
    pub tls: Option<ManagementTls>,
    /// The delay before the first attempt to connect again: `XDS_CLIENT_BACKOFF_INITIAL_INTERVAL`, otherwise
    /// `CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL`.
    pub retry: Span,
    /// The longest such delay, which doubles each time: `XDS_CLIENT_BACKOFF_MAX_INTERVAL`.
    pub retry_max: Span,
    /// How far a delay deviates at random, in thousandths: `XDS_CLIENT_BACKOFF_RANDOM_FACTOR`, `XDS_CLIENT_BACKOFF_JITTER`.
    pub jitter_per_mille: u32,
    /// The largest message, in bytes: `XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES`.
    pub message_bytes_max: Option<u32>,
    /// When the service is healthy: `FORCE_START_WITHOUT_INITIAL_CONFIG`, `HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED`.
    pub readiness: Readiness,
}

/// The certificates of the connection to a management server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManagementTls {
    /// The file with the authority to trust, instead of those of the system: `CONFIG_GRPC_XDS_SERVER_TLS_CACERT`.
    pub authority: Option<String>,
    /// The files with the client's certificate and key: `CONFIG_GRPC_XDS_CLIENT_TLS_CERT`, `_KEY`.
    pub identity: Option<[String; 2]>,
    /// The name that the server's certificate must have, instead of its host: `CONFIG_GRPC_XDS_SERVER_TLS_SAN`.
    pub server_name: Option<String>,
}

/// When the service is healthy, as far as limits are concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Readiness {
    /// Once the management server has sent limits, even if there are none.
    #[default]
    Loaded,
    /// From the start.
    Always,
    /// While there is a domain.
    Domains,
}

/// Omits the headers, which may hold credentials.
impl fmt::Debug for ManagementServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagementServer")
            .field("address", &self.address)
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

impl ManagementServer {
    pub(crate) fn read(set: &Variables) -> Result<Self, SettingsError> {
        let first = set.duration("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL")?;
        let connect = set.duration("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL")?;
        let retry = first.or(connect).unwrap_or(Span::from_secs(3));
        let longest = set.duration("XDS_CLIENT_BACKOFF_MAX_INTERVAL")?;
        for (name, span) in [
            ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", first),
            ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", connect),
            ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", longest),
        ] {
            if span.is_some_and(|span| !(RETRY_MIN..=RETRY_MAX).contains(&span)) {
                return Err(error(name, format!("must be from {RETRY_MIN} to {RETRY_MAX}")));
            }
        }
        const SIZE: &str = "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES";
        let size = set.get(SIZE).map(|text| match text.parse() {
            Ok(bytes @ 1..) => Ok(bytes),
            _ => Err(error(SIZE, format!("{text:?} is not a number of bytes, as in 4194304"))),
        });
        let has_jitter = set.flag_or("XDS_CLIENT_BACKOFF_JITTER", true)?;
        let jitter = set.per_mille("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "0.5")?;
        Ok(Self {
            address: address(set)?,
            node: set.get("CONFIG_GRPC_XDS_NODE_ID").unwrap_or("default").to_owned(),
            metadata: pairs(set, "CONFIG_GRPC_XDS_NODE_METADATA", '=')?,
            headers: headers(set)?,
            tls: set.flag("CONFIG_GRPC_XDS_SERVER_USE_TLS")?.then(|| tls(set)).transpose()?,
            retry,
            retry_max: longest.unwrap_or(Span::from_secs(60)).max(retry),
            jitter_per_mille: if has_jitter { jitter } else { 0 },
            message_bytes_max: size.transpose()?,
            readiness: readiness(set)?,
        })
    }
}

fn address(set: &Variables) -> Result<String, SettingsError> {
    const NAME: &str = "CONFIG_GRPC_XDS_SERVER_URL";
    let text = set.get(NAME).unwrap_or("localhost:18000");
    // The scheme that gRPC resolves by itself.
    let address = text.strip_prefix("dns:///").unwrap_or(text);
    let is_valid = address.rsplit_once(':').is_some_and(|(host, port)| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        let is_ip6 = host.starts_with('[') && host.ends_with(']');
        let is_host = !host.is_empty() && (is_ip6 || host.chars().all(is_plain));
        is_host && port.parse::<u16>().is_ok_and(|port| port != 0)
    });
    if !is_valid {
        return Err(error(NAME, format!("{text:?} is not a host and port, as in localhost:18000")));
    }
    Ok(address.to_owned())
}

/// Reads pairs that are separated by commas, each with `separator` between key and value.
fn pairs(
    set: &Variables,
    name: &'static str,
    separator: char,
) -> Result<BTreeMap<String, String>, SettingsError> {
    let pair = |text: &str| match text.split_once(separator) {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(error(
            name,
            format!("{text:?} is not a pair, as in key{separator}value,other{separator}value"),
        )),
    };
    set.get(name).into_iter().flat_map(|text| text.split(',')).map(pair).collect()
}

fn headers(set: &Variables) -> Result<BTreeMap<String, String>, SettingsError> {
    const NAME: &str = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS";
    let headers = pairs(set, NAME, ':')?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_visible = |c: char| c == ' ' || c.is_ascii_graphic();
    for (key, value) in &headers {
        // The value may be a credential, so only the name is shown.
        if !key.chars().all(is_plain) || !value.chars().all(is_visible) {
            let text = format!("{key:?} is not the name of a header, or its value is not ASCII");
            return Err(error(NAME, text));
        }
    }
    Ok(headers.into_iter().map(|(key, value)| (key.to_ascii_lowercase(), value)).collect())
}

fn tls(set: &Variables) -> Result<ManagementTls, SettingsError> {
    const FILES: [&str; 2] = ["CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY"];
    let owned = |name: &str| set.get(name).map(str::to_owned);
    let identity = match FILES.map(owned) {
        [Some(certificate), Some(key)] => Some([certificate, key]),
        [None, None] => None,
        [None, _] => return Err(error(FILES[0], format!("{} needs it", FILES[1]))),
        [_, None] => return Err(error(FILES[1], format!("{} needs it", FILES[0]))),
    };
    Ok(ManagementTls {
        authority: owned("CONFIG_GRPC_XDS_SERVER_TLS_CACERT"),
        identity,
        server_name: owned("CONFIG_GRPC_XDS_SERVER_TLS_SAN"),
    })
}

fn readiness(set: &Variables) -> Result<Readiness, SettingsError> {
    let needs_domains = set.flag("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED")?;
    let is_forced = set.flag("FORCE_START_WITHOUT_INITIAL_CONFIG")?;
    Ok(match (needs_domains, is_forced) {
        (true, _) => Readiness::Domains,
        (false, true) => Readiness::Always,
        (false, false) => Readiness::Loaded,
    })
}
