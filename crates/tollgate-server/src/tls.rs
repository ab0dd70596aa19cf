//! TLS for every listener, and certificates of clients.
//!
//! The files are read whole before anything changes, so a renewed certificate that is half written keeps the old one in
//! force. Each listener offers HTTP/2 and HTTP/1.1; a Redis client asks for neither.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tollgate::{Error, ErrorKind};

use crate::app::App;
use crate::bounds::HANDSHAKE_WAIT_MAX;

/// Where the certificates are, as PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate of the server, with those in between behind it.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// By whom a client must be certified; without it clients need no certificate.
    pub client_authority: Option<PathBuf>,
}

/// TLS as it is in force. Clones share it.
#[derive(Clone)]
pub struct Tls {
    files: Arc<TlsFiles>,
    acceptor: Arc<RwLock<TlsAcceptor>>,
}

impl Tls {
    /// Reads `files`.
    ///
    /// # Errors
    /// If one of them cannot be read, has nothing of use in it, or does not belong to another.
    pub fn open(files: TlsFiles) -> Result<Self, Error> {
        let acceptor = Arc::new(RwLock::new(acceptor(&files)?));
        Ok(Self { files: Arc::new(files), acceptor })
    }

    /// Reads the files again, for connections from now on.
    ///
    /// # Errors
    /// As for [`open`](Self::open); then nothing changes.
    pub fn reload(&self) -> Result<(), Error> {
        let fresh = acceptor(&self.files)?;
        *self.acceptor.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }

    /// Shakes hands on `stream`, in bounded time and not while the server closes.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        app: &App,
    ) -> io::Result<TlsStream<TcpStream>> {
        let acceptor = self.acceptor.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut closing = app.closing();
        tokio::select! {
            accepted = acceptor.accept(stream) => accepted,
            () = app.clock().sleep_until(app.now() + HANDSHAKE_WAIT_MAX) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "the handshake took too long"))
            }
            // An error says that the server is gone, and so closed.
            _ = closing.wait_for(|closing| *closing) => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, Error> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid(error.to_string()))?;
    let builder = match &files.client_authority {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path, "client_authority")? {
                roots.add(certificate).map_err(|error| {
                    unusable(
                        "client_authority",
                        path,
                        &format!("has a certificate that cannot be trusted: {error}"),
                    )
                })?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
                .build()
                .map_err(|error| unusable("client_authority", path, &error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let chain = certificates(&files.certificate, "certificate")?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| pem("key", &files.key, "private key", &error))?;
    let mut config = builder.with_single_cert(chain, key).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            let what =
                format!("does not belong to the certificate {}", files.certificate.display());
            unusable("key", &files.key, &what)
        }
        other => unusable("certificate", &files.certificate, &format!("cannot be used: {other}")),
    })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(path: &Path, key: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(found) if found.is_empty() => {
            Err(pem(key, path, "certificate", &rustls::pki_types::pem::Error::NoItemsFound))
        }
        read => read.map_err(|error| pem(key, path, "certificate", &error)),
    }
}

/// What is wrong with the file at `path` that should have a `wanted` in it.
fn pem(key: &str, path: &Path, wanted: &str, error: &rustls::pki_types::pem::Error) -> Error {
    use rustls::pki_types::pem::Error as Pem;
    match error {
        Pem::Io(error) => unusable(key, path, &format!("cannot be read: {error}")),
        Pem::NoItemsFound => unusable(key, path, &format!("has no {wanted} in PEM form in it")),
        other => unusable(key, path, &format!("is not PEM: {other}")),
    }
}

fn unusable(key: &str, path: &Path, what: &str) -> Error {
    invalid(format!("{key} {} {what}", path.display()))
}

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::Invalid, text)
}
