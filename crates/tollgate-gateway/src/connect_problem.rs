//! Why an upstream cannot be reached, and what its operator can do about it.

use std::error::Error as StdError;
use std::fmt;

use tollgate::Span;
use tollgate_transport::http::{causes, root_cause};
use tollgate_transport::tls::{ClientTls, Fault};

/// How the errors of a proxy's tunnel begin; their type is private to hyper-util.
const TUNNEL: &str = "tunnel error: ";

/// The reason for a failed connection to an upstream. Its text names neither the host nor the key, so callers may see it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectProblem {
    /// The certificate is by an authority that is not trusted; the text is the reason.
    NotTrusted(String),
    /// The certificate has expired.
    CertificateExpired,
    /// The certificate is not valid yet.
    CertificateNotYetValid,
    /// The certificate is for another host.
    OtherHost,
    /// The server does not speak TLS.
    NotTls,
    /// The server rejected the handshake; the text is its alert.
    Rejected(Option<String>),
    /// The name of the host is not known.
    UnknownHost,
    /// The proxy of the environment opened no tunnel; the text is the reason.
    Proxy(String),
    /// The connection did not open in time.
    TimedOut(Span),
    /// Another error of the network.
    Unreachable(String),
}

impl ConnectProblem {
    /// Finds the reason in `error`, of a connection with `tls`.
    #[must_use]
    pub fn new(error: &(dyn StdError + 'static), tls: Option<&ClientTls>) -> Self {
        let text = |cause: &(dyn StdError + 'static)| cause.to_string();
        if let Some(tunnel) = causes(error).map(text).find(|text| text.starts_with(TUNNEL)) {
            let (what, root) = (&tunnel[TUNNEL.len()..], root_cause(error).to_string());
            let reason = if root == tunnel { what.to_owned() } else { format!("{what}: {root}") };
            return Self::Proxy(reason);
        }
        match tls.and_then(|tls| tls.fault(error)) {
            Some(Fault::Untrusted(reason)) => Self::NotTrusted(reason),
            Some(Fault::Expired) => Self::CertificateExpired,
            Some(Fault::NotYetValid) => Self::CertificateNotYetValid,
            Some(Fault::WrongHost) => Self::OtherHost,
            Some(Fault::NotTls) => Self::NotTls,
            Some(Fault::Rejected(alert)) => Self::Rejected(alert),
            None if causes(error).any(|cause| text(cause).starts_with("dns error")) => {
                Self::UnknownHost
            }
            None => Self::Unreachable(root_cause(error).to_string()),
        }
    }

    /// Returns what the operator can do.
    #[must_use]
    pub const fn advice(&self) -> &'static str {
        match self {
            Self::NotTrusted(_) => "name its authority with authority_file",
            Self::CertificateExpired => "renew it, or check the clock of this machine",
            Self::CertificateNotYetValid => "check the clock of this machine",
            Self::NotTls => "check url, or write http://",
            Self::Proxy(_) => "check HTTPS_PROXY and NO_PROXY",
            Self::OtherHost
            | Self::Rejected(_)
            | Self::UnknownHost
            | Self::TimedOut(_)
            | Self::Unreachable(_) => "check url",
        }
    }
}

impl fmt::Display for ConnectProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotTrusted(reason) => write!(f, "its certificate is not trusted: {reason}"),
            Self::CertificateExpired => f.write_str("its certificate has expired"),
            Self::CertificateNotYetValid => f.write_str("its certificate is not valid yet"),
            Self::OtherHost => f.write_str("its certificate is for another host"),
            Self::NotTls => f.write_str("it does not speak TLS"),
            Self::Rejected(None) => f.write_str("it rejected the TLS handshake"),
            Self::Rejected(Some(alert)) => write!(f, "it rejected the TLS handshake: {alert}"),
            Self::UnknownHost => f.write_str("its host is not known (DNS)"),
            Self::Proxy(reason) => write!(f, "the proxy did not connect to it: {reason}"),
            Self::TimedOut(after) => write!(f, "not reachable: no connection within {after}"),
            Self::Unreachable(reason) => write!(f, "not reachable: {reason}"),
        }
    }
}
