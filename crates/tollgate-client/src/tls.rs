//! TLS: whom a client trusts, what it shows of itself, and what a handshake that failed means.
//!
//! A broker that asks for a certificate and gets none, or a wrong one, says so after the client is done with its part of
//! the handshake, and may be gone before that is read. So the client notes that it was asked: whoever was asked and
//! never answered was turned away for that.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustls::client::ResolvesClientCert;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, ConfigBuilder, RootCertStore, SignatureScheme, WantsVerifier,
};
use tollgate::{Error, ErrorKind};

use crate::settings::Pem;

/// TLS as a client speaks it. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    config: Arc<ClientConfig>,
    shown: Arc<Shown>,
    /// Whether the broker ever answered.
    answered: Arc<AtomicBool>,
}

impl Tls {
    pub(crate) fn new(authority: Option<&Pem>, identity: Option<&[Pem; 2]>) -> Result<Self, Error> {
        let identity = identity.map(certified).transpose()?;
        let shown = Arc::new(Shown { identity, asked: AtomicBool::new(false) });
        let config = builder()?
            .with_root_certificates(roots(authority)?)
            .with_client_cert_resolver(Arc::clone(&shown) as _);
        Ok(Self { config: Arc::new(config), shown, answered: Arc::default() })
    }

    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config)
    }

    /// Notes that the broker answered.
    pub(crate) fn answered(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }

    /// What `error` at the broker that `here` names means, if it is about TLS.
    pub(crate) fn explain(&self, error: &(dyn StdError + 'static), here: &str) -> Option<Error> {
        let was_asked = self.shown.asked.load(Ordering::Relaxed);
        let turned_away = was_asked && !self.answered.load(Ordering::Relaxed);
        match of_rustls(error) {
            Some(rustls::Error::InvalidCertificate(why)) => Some(untrusted(why, here)),
            Some(rustls::Error::InvalidMessage(_)) => Some(misconfigured(format!(
                "{here} does not speak TLS; call it without, or set [server.tls] there"
            ))),
            Some(rustls::Error::AlertReceived(alert)) if was_asked => {
                Some(self.unwelcome(here, &format!(" ({alert:?})")))
            }
            _ if turned_away => Some(self.unwelcome(here, "")),
            _ => None,
        }
    }

    fn unwelcome(&self, here: &str, why: &str) -> Error {
        let settings =
            "Settings::identity, or certificate_file and certificate_key_file in [store]";
        misconfigured(match self.shown.identity {
            None => {
                format!("{here} asks for a certificate of its clients{why}; give one: {settings}")
            }
            Some(_) => format!(
                "{here} did not accept our certificate{why}; give one that is valid and by its client_authority: {settings}"
            ),
        })
    }
}

fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, Error> {
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid(format!("TLS cannot be spoken: {error}")))
}

/// For connections without TLS, whose maker wants to be told all the same.
pub(crate) fn trusting_nobody() -> Result<ClientConfig, Error> {
    Ok(builder()?.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

fn untrusted(why: &CertificateError, here: &str) -> Error {
    use CertificateError as Wrong;
    match why {
        // Not the caller's mistake, and nothing that it could do better: as good as an outage.
        Wrong::Expired | Wrong::ExpiredContext { .. } => Error::new(
            ErrorKind::Unavailable,
            format!("the certificate of {here} has expired; renew it there and send SIGHUP"),
        ),
        Wrong::NotValidYet | Wrong::NotValidYetContext { .. } => Error::new(
            ErrorKind::Unavailable,
            format!("the certificate of {here} is not valid yet; is a clock wrong?"),
        ),
        Wrong::NotValidForName | Wrong::NotValidForNameContext { .. } => misconfigured(format!(
            "the certificate of {here} is for another host; call it by a name that the certificate has"
        )),
        _ => misconfigured(format!(
            "the certificate of {here} is not by an authority that is trusted here ({why}); give the authority as PEM: \
             Settings::authority, or authority_file in [store]"
        )),
    }
}

/// The error of rustls in `error` or in what caused it. An `io::Error` does not name what it wraps as its source.
fn of_rustls<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
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

fn roots(authority: Option<&Pem>) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    match authority {
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
        }
        Some(pem) => {
            for certificate in certificates(pem, "the authority")? {
                roots.add(certificate).map_err(|error| {
                    invalid(format!("the authority cannot be trusted: {error}"))
                })?;
            }
        }
    }
    Ok(roots)
}

fn certified([certificate, key]: &[Pem; 2]) -> Result<CertifiedKey, Error> {
    let chain = certificates(certificate, "our certificate")?;
    let key = PrivateKeyDer::from_pem_slice(&key.0)
        .map_err(|error| invalid(format!("our private key is not PEM: {error}")))?;
    let key = ring::sign::any_supported_type(&key)
        .map_err(|error| invalid(format!("our private key cannot be used: {error}")))?;
    let certified = CertifiedKey::new(chain, key);
    certified.keys_match().map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            invalid("our private key does not belong to our certificate".to_owned())
        }
        other => invalid(format!("our certificate cannot be used: {other}")),
    })?;
    Ok(certified)
}

fn certificates(pem: &Pem, what: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found = CertificateDer::pem_slice_iter(&pem.0).collect::<Result<Vec<_>, _>>();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(invalid(format!("{what} has no certificate in PEM form in it"))),
        Err(error) => Err(invalid(format!("{what} is not PEM: {error}"))),
    }
}

fn misconfigured(text: String) -> Error {
    Error::new(ErrorKind::Misconfigured, text)
}

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

/// What a broker that asks is shown.
struct Shown {
    identity: Option<CertifiedKey>,
    /// Whether a broker asked.
    asked: AtomicBool,
}

impl ResolvesClientCert for Shown {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.asked.store(true, Ordering::Relaxed);
        self.identity.clone().map(Arc::new)
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Without the private key.
impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_certified = self.identity.is_some();
        f.debug_struct("Shown").field("is_certified", &is_certified).finish_non_exhaustive()
    }
}
