//! TLS to a broker: whom the command line trusts, what it shows of itself, and which flag mends a handshake that failed.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, InconsistentKeys};
use tollgate::{Error, ErrorKind};
use ureq::Error as HttpError;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

use super::{BrokerUrl, Server};

/// Whom to trust and what to show, as the flags name it.
#[derive(Clone, Debug)]
pub(crate) struct Credentials {
    /// Whom to trust instead of the machine's authorities.
    pub(crate) authority: Option<PathBuf>,
    /// What to show if the broker asks who we are.
    pub(crate) shows: Option<Shows>,
}

/// A certificate of our own.
#[derive(Clone, Debug)]
pub(crate) struct Shows {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Credentials {
    /// The first flag of them that was given.
    pub(crate) const fn flag(&self) -> Option<&'static str> {
        match (&self.authority, &self.shows) {
            (Some(_), _) => Some("--authority"),
            (None, Some(_)) => Some("--client-cert"),
            (None, None) => None,
        }
    }

    /// The broker at `url`, with these.
    pub(crate) fn at(self, url: BrokerUrl) -> Server {
        Server { url, authority: self.authority, shows: self.shows }
    }

    /// The files, read and checked.
    pub(super) fn read(&self) -> Result<TlsConfig, Error> {
        let roots = match &self.authority {
            Some(path) => certificates("--authority", path)?,
            None => {
                let found = rustls_native_certs::load_native_certs().certs;
                found.iter().map(|der| Certificate::from_der(der).to_owned()).collect()
            }
        };
        Ok(TlsConfig::builder()
            .root_certs(RootCerts::new_with_certs(&roots))
            .client_cert(self.shows.as_ref().map(Shows::read).transpose()?)
            .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
            .build())
    }

    /// What to do about `error`, if it is about TLS.
    pub(super) fn advice(&self, error: &HttpError) -> Option<String> {
        let rustls = match error {
            HttpError::Rustls(error) => Some(error),
            HttpError::Io(error) => error.get_ref().and_then(|inner| inner.downcast_ref()),
            _ => None,
        };
        match (rustls, error) {
            (Some(rustls::Error::InvalidCertificate(why)), _) => Some(untrusted(why)),
            (Some(rustls::Error::InvalidMessage(_)), _) => Some(
                "it speaks no TLS; write http:// in --server, or set [server.tls] there".to_owned(),
            ),
            (Some(rustls::Error::AlertReceived(alert)), _) => {
                Some(self.unwelcome(&format!("it refused us ({alert:?})")))
            }
            // A broker that turns a client away may be gone before it is read why.
            (None, HttpError::Io(error)) if was_cut(error) => {
                Some(self.unwelcome("it cut the connection"))
            }
            _ => None,
        }
    }

    fn unwelcome(&self, what: &str) -> String {
        match self.shows {
            None => format!(
                "{what}; if it asks for a certificate of its clients, show one with --client-cert and --client-key"
            ),
            Some(_) => format!(
                "{what}; is the certificate of --client-cert valid, and by its client_authority?"
            ),
        }
    }
}

fn was_cut(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    let cut =
        [Kind::ConnectionReset, Kind::ConnectionAborted, Kind::BrokenPipe, Kind::UnexpectedEof];
    cut.contains(&error.kind())
}

fn untrusted(why: &CertificateError) -> String {
    use CertificateError as Wrong;
    match why {
        Wrong::Expired | Wrong::ExpiredContext { .. } => {
            "its certificate has expired; renew it there and send SIGHUP".to_owned()
        }
        Wrong::NotValidYet | Wrong::NotValidYetContext { .. } => {
            "its certificate is not valid yet; is a clock wrong?".to_owned()
        }
        Wrong::NotValidForName | Wrong::NotValidForNameContext { .. } => {
            "its certificate is for another host; write a name in --server that the certificate has"
                .to_owned()
        }
        _ => format!(
            "its certificate is not by an authority that is trusted here ({why}); name the right one with --authority"
        ),
    }
}

impl Shows {
    fn read(&self) -> Result<ClientCert, Error> {
        let chain = certificates("--client-cert", &self.certificate)?;
        let key = private_key("--client-key", &self.key)?;
        self.check(&chain, &key)?;
        Ok(ClientCert::new_with_certs(&chain, key))
    }

    /// Whether the two belong together: the client would panic if they did not.
    fn check(&self, chain: &[Certificate<'_>], key: &PrivateKey<'_>) -> Result<(), Error> {
        let Self { certificate, key: key_file } = self;
        let bad_key = |why: &dyn Display| {
            unusable("--client-key", key_file, &format!("cannot be used: {why}"))
        };
        let der = PrivateKeyDer::try_from(key.der()).map_err(|why| bad_key(&why))?;
        let signer = ring::sign::any_supported_type(&der).map_err(|why| bad_key(&why))?;
        let chain = chain.iter().map(|one| CertificateDer::from(one.der()).into_owned());
        match CertifiedKey::new(chain.collect(), signer).keys_match() {
            // That a kind of key cannot be compared says nothing against it.
            Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(()),
            Err(rustls::Error::InconsistentKeys(_)) => {
                let what = format!(
                    "is not the key of --client-cert {}; name the two that were made together",
                    certificate.display()
                );
                Err(unusable("--client-key", key_file, &what))
            }
            Err(other) => {
                Err(unusable("--client-cert", certificate, &format!("cannot be used: {other}")))
            }
        }
    }
}

fn certificates(flag: &str, path: &Path) -> Result<Vec<Certificate<'static>>, Error> {
    let certificates = items(flag, path)?.into_iter().filter_map(|item| match item {
        PemItem::Certificate(certificate) => Some(certificate),
        _ => None,
    });
    let certificates: Vec<_> = certificates.collect();
    if certificates.is_empty() {
        return Err(unusable(flag, path, "has no certificate in PEM form in it"));
    }
    Ok(certificates)
}

fn private_key(flag: &str, path: &Path) -> Result<PrivateKey<'static>, Error> {
    let key = items(flag, path)?.into_iter().find_map(|item| match item {
        PemItem::PrivateKey(key) => Some(key),
        _ => None,
    });
    key.ok_or_else(|| unusable(flag, path, "has no private key in PEM form in it"))
}

fn items(flag: &str, path: &Path) -> Result<Vec<PemItem<'static>>, Error> {
    let pem = std::fs::read(path)
        .map_err(|error| unusable(flag, path, &format!("cannot be read: {error}")))?;
    let items = parse_pem(&pem).collect::<Result<Vec<_>, _>>();
    items.map_err(|error| unusable(flag, path, &format!("is not PEM: {error}")))
}

fn unusable(flag: &str, path: &Path, what: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("{flag} {} {what}", path.display()))
}
