//! TLS for clients: trusted authorities, the client's own certificate, and the cause of a failed handshake.
//!
//! A server that requires a client certificate rejects a missing or wrong one after the client has finished its part of
//! the handshake, and may close the connection before the client reads the alert. [`ClientTls`] therefore records that
//! a certificate was requested: a server that requested one and never responded has rejected the client.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustls::client::ResolvesClientCert;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, ConfigBuilder, InconsistentKeys, RootCertStore,
    SignatureScheme, WantsVerifier,
};

/// Certificates of a client, as PEM.
#[derive(Clone, Default)]
pub struct TlsOptions {
    authority: Option<Vec<u8>>,
    identity: Option<[Vec<u8>; 2]>,
    server_name: Option<String>,
}

impl TlsOptions {
    /// Trusts the authorities in `pem` instead of those of the operating system.
    #[must_use]
    pub fn authority(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.authority = Some(pem.into());
        self
    }

    /// Presents `certificate`, followed by its intermediates, to a server that requests one; `key` is its private key.
    #[must_use]
    pub fn identity(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.identity = Some([certificate.into(), key.into()]);
        self
    }

    /// Expects the server's certificate to be for `name` instead of the host of the URL.
    #[must_use]
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }
}

/// Omits the private key.
impl fmt::Debug for TlsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsOptions")
            .field("has_authority", &self.authority.is_some())
            .field("has_identity", &self.identity.is_some())
            .field("server_name", &self.server_name)
            .finish()
    }
}

/// The input that a [`TlsError`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The trusted authorities.
    Authority,
    /// The client's certificate.
    Certificate,
    /// The client's private key.
    Key,
    /// The expected name of the server.
    ServerName,
}

/// Certificates that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsError {
    /// The input at fault.
    pub input: Input,
    /// A predicate of the input, as in `is not PEM: …`.
    pub reason: String,
}

impl TlsError {
    fn new(input: Input, reason: impl Into<String>) -> Self {
        Self { input, reason: reason.into() }
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let input = match self.input {
            Input::Authority => "the authority",
            Input::Certificate => "the client certificate",
            Input::Key => "the client's private key",
            Input::ServerName => "the server name",
        };
        write!(f, "{input} {}", self.reason)
    }
}

impl StdError for TlsError {}

/// The TLS configuration of a client. Clones share it.
#[derive(Clone, Debug)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    identity: Arc<Identity>,
    server_name: Option<ServerName<'static>>,
    has_response: Arc<AtomicBool>,
}

/// Why a TLS connection failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The server's certificate has expired.
    Expired,
    /// The server's certificate is not valid yet.
    NotYetValid,
    /// The server's certificate is for another host.
    WrongHost,
    /// The server's certificate is not issued by a trusted authority; the text is the reason.
    Untrusted(String),
    /// The server does not speak TLS.
    NotTls,
    /// The server rejected the client; the text is its alert, if it was received.
    Rejected(Option<String>),
}

impl ClientTls {
    /// Creates a configuration from `options`.
    ///
    /// # Errors
    /// If a certificate or key cannot be read, or if they do not belong together.
    pub fn new(options: &TlsOptions) -> Result<Self, TlsError> {
        let certified = options.identity.as_ref().map(certified).transpose()?;
        let identity = Arc::new(Identity { certified, is_requested: AtomicBool::new(false) });
        let config = builder()
            .with_root_certificates(roots(options.authority.as_deref())?)
            .with_client_cert_resolver(Arc::clone(&identity) as _);
        let server_name = options.server_name.clone().map(|name| {
            let reason = format!("{name:?} is neither a DNS name nor an IP address");
            ServerName::try_from(name).map_err(|_| TlsError::new(Input::ServerName, reason))
        });
        Ok(Self {
            config: Arc::new(config),
            identity,
            server_name: server_name.transpose()?,
            has_response: Arc::default(),
        })
    }

    /// Returns the name that the server's certificate must have, if it is not the host of the URL.
    #[must_use]
    pub const fn server_name(&self) -> Option<&ServerName<'static>> {
        self.server_name.as_ref()
    }

    /// Creates a configuration that trusts the authorities of the operating system. Those that cannot be read are
    /// skipped; a server that needs one of them is rejected.
    #[must_use]
    pub fn native() -> Self {
        Self::new(&TlsOptions::default()).expect("the default options hold no certificate")
    }

    /// Returns the configuration for rustls.
    #[must_use]
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config)
    }

    /// Returns whether the client presents a certificate.
    #[must_use]
    pub fn has_identity(&self) -> bool {
        self.identity.certified.is_some()
    }

    /// Records that the server responded, so that it accepts this client.
    pub fn note_response(&self) {
        self.has_response.store(true, Ordering::Relaxed);
    }

    /// Returns the TLS fault that caused `error`, if there is one.
    #[must_use]
    pub fn fault(&self, error: &(dyn StdError + 'static)) -> Option<Fault> {
        let is_requested = self.identity.is_requested.load(Ordering::Relaxed);
        match rustls_error(error) {
            Some(rustls::Error::InvalidCertificate(reason)) => Some(certificate_fault(reason)),
            Some(rustls::Error::InvalidMessage(_)) => Some(Fault::NotTls),
            Some(rustls::Error::AlertReceived(alert)) if is_requested => {
                Some(Fault::Rejected(Some(format!("{alert:?}"))))
            }
            _ if is_requested && !self.has_response.load(Ordering::Relaxed) => {
                Some(Fault::Rejected(None))
            }
            _ => None,
        }
    }
}

pub(crate) fn builder() -> ConfigBuilder<ClientConfig, WantsVerifier> {
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring supports the default protocol versions")
}

fn certificate_fault(reason: &CertificateError) -> Fault {
    use CertificateError as Wrong;
    match reason {
        Wrong::Expired | Wrong::ExpiredContext { .. } => Fault::Expired,
        Wrong::NotValidYet | Wrong::NotValidYetContext { .. } => Fault::NotYetValid,
        Wrong::NotValidForName | Wrong::NotValidForNameContext { .. } => Fault::WrongHost,
        reason => Fault::Untrusted(reason.to_string()),
    }
}

/// Finds the rustls error in the chain of `error`. The source of an `io::Error` skips the error that it wraps.
fn rustls_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<rustls::Error>() {
            return Some(found);
        }
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match wrapped {
            Some(wrapped) => Some(wrapped as &(dyn StdError + 'static)),
            None => error.source(),
        };
    }
    None
}

fn roots(authority: Option<&[u8]>) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    match authority {
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        Some(pem) => {
            for certificate in certificates(pem, Input::Authority)? {
                roots.add(certificate).map_err(|error| {
                    TlsError::new(Input::Authority, format!("cannot be trusted: {error}"))
                })?;
            }
        }
    }
    Ok(roots)
}

fn certified([certificate, key]: &[Vec<u8>; 2]) -> Result<CertifiedKey, TlsError> {
    use rustls::pki_types::pem::Error as PemError;
    let chain = certificates(certificate, Input::Certificate)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| match error {
        PemError::NoItemsFound => TlsError::new(Input::Key, "has no private key in PEM form in it"),
        error => TlsError::new(Input::Key, format!("is not PEM: {error}")),
    })?;
    let key = ring::sign::any_supported_type(&key)
        .map_err(|error| TlsError::new(Input::Key, format!("cannot be used: {error}")))?;
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        // Some kinds of keys cannot be compared.
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified),
        Err(rustls::Error::InconsistentKeys(_)) => {
            Err(TlsError::new(Input::Key, "does not belong to the client certificate"))
        }
        Err(error) => Err(TlsError::new(Input::Certificate, format!("cannot be used: {error}"))),
    }
}

fn certificates(pem: &[u8], input: Input) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    match CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>() {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(TlsError::new(input, "has no certificate in PEM form in it")),
        Err(error) => Err(TlsError::new(input, format!("is not PEM: {error}"))),
    }
}

/// The client's certificate, and whether a server requested it.
struct Identity {
    certified: Option<CertifiedKey>,
    is_requested: AtomicBool,
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.is_requested.store(true, Ordering::Relaxed);
        self.certified.clone().map(Arc::new)
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Omits the private key.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_certified = self.certified.is_some();
        f.debug_struct("Identity").field("is_certified", &is_certified).finish_non_exhaustive()
    }
}
