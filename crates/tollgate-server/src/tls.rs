//! TLS for every listener, and client certificates.
//!
//! A reload reads all files before anything changes, so a half-written certificate keeps the old one in force. Each listener
//! offers HTTP/2 and HTTP/1.1; a Redis client requests neither.
//!
//! A connection may outlive its handshake by days. When the client authorities change, every open connection is verified
//! again. Sessions cannot be resumed across a reload: a new configuration has a new session cache, and no tickets.

use std::future::pending;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tollgate::{Error, ErrorKind, Timestamp};

use crate::app::App;
use crate::bounds::HANDSHAKE_WAIT_MAX;

/// The PEM files of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, followed by its intermediates.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities of client certificates; without it clients need none.
    pub client_authority: Option<PathBuf>,
}

/// The TLS configuration in force. Clones share it.
#[derive(Clone)]
pub struct Tls {
    files: Arc<TlsFiles>,
    current: Arc<watch::Sender<Current>>,
}

/// The contents of the files at the last reload.
#[derive(Clone)]
struct Current {
    acceptor: TlsAcceptor,
    /// The client authorities; `None` if clients need no certificate.
    clients: Option<Arc<Clients>>,
}

struct Clients {
    authorities: Vec<CertificateDer<'static>>,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl Tls {
    /// Reads `files`.
    ///
    /// # Errors
    /// If one of them cannot be read, has nothing of use in it, or does not belong to another.
    pub fn open(files: TlsFiles) -> Result<Self, Error> {
        let current = Arc::new(watch::Sender::new(Current::read(&files)?));
        Ok(Self { files: Arc::new(files), current })
    }

    /// Reads the files again, for connections from now on. Open connections whose certificate is by an authority that is no
    /// longer there end within [`DRAIN_MAX`](crate::bounds::DRAIN_MAX).
    ///
    /// # Errors
    /// As for [`open`](Self::open); then nothing changes.
    pub fn reload(&self) -> Result<(), Error> {
        let mut fresh = Current::read(&self.files)?;
        let before = self.current.borrow().clients.clone();
        if let (Some(before), Some(now)) = (before, &mut fresh.clients) {
            if before.authorities == now.authorities {
                // The same object says that no connection has to be checked.
                *now = before;
            } else {
                tracing::info!(
                    "the authorities of clients changed; open connections are checked against them"
                );
            }
        }
        self.current.send_replace(fresh);
        Ok(())
    }

    /// Performs the handshake on `stream`, within [`HANDSHAKE_WAIT_MAX`]; fails once the server closes.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        app: &App,
    ) -> io::Result<(TlsStream<TcpStream>, Trust)> {
        // Subscribed before the handshake, so that a change during it is not missed.
        let mut current = self.current.subscribe();
        let Current { acceptor, clients } = current.borrow_and_update().clone();
        let mut closing = app.closing();
        let stream = tokio::select! {
            accepted = acceptor.accept(stream) => accepted?,
            () = app.clock().sleep_until(app.now() + HANDSHAKE_WAIT_MAX) => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the handshake took too long"));
            }
            // An error means that the server is gone, and so closed.
            _ = closing.wait_for(|closing| *closing) => return Err(io::ErrorKind::ConnectionAborted.into()),
        };
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
        Ok((stream, Trust { chain, clients, current }))
    }
}

/// The verified client of a connection.
pub(crate) struct Trust {
    /// The certificate chain of the client; empty if it needed none.
    chain: Vec<CertificateDer<'static>>,
    /// The authorities that the chain was verified against.
    clients: Option<Arc<Clients>>,
    current: watch::Receiver<Current>,
}

impl Trust {
    /// Resolves when the current authorities no longer accept the client certificate.
    pub(crate) async fn revoked(mut self, app: Arc<App>) {
        while self.current.changed().await.is_ok() {
            let clients = self.current.borrow_and_update().clients.clone();
            let (Some(now), Some(before)) = (&clients, &self.clients) else { continue };
            if !Arc::ptr_eq(now, before) && !now.accept(&self.chain, app.now()) {
                tracing::debug!("a client certificate is no longer accepted");
                return;
            }
            self.clients = clients;
        }
        // There are no more reloads.
        pending::<()>().await;
    }
}

impl Clients {
    fn read(path: &Path) -> Result<Self, Error> {
        let authorities = certificates(path, "client_authority")?;
        let mut roots = RootCertStore::empty();
        for certificate in &authorities {
            roots.add(certificate.clone()).map_err(|error| {
                unusable(
                    "client_authority",
                    path,
                    &format!("has a certificate that cannot be trusted: {error}"),
                )
            })?;
        }
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
            .build()
            .map_err(|error| unusable("client_authority", path, &error.to_string()))?;
        Ok(Self { authorities, verifier })
    }

    /// Returns whether `chain` is valid at `now`.
    fn accept(&self, chain: &[CertificateDer<'_>], now: Timestamp) -> bool {
        let now = UnixTime::since_unix_epoch(Duration::from_micros(now.as_micros()));
        chain.split_first().is_some_and(|(leaf, intermediates)| {
            self.verifier.verify_client_cert(leaf, intermediates, now).is_ok()
        })
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Current {
    fn read(files: &TlsFiles) -> Result<Self, Error> {
        let clients = files.client_authority.as_deref().map(Clients::read).transpose()?;
        let acceptor = acceptor(files, clients.as_ref())?;
        Ok(Self { acceptor, clients: clients.map(Arc::new) })
    }
}

fn acceptor(files: &TlsFiles, clients: Option<&Clients>) -> Result<TlsAcceptor, Error> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid(error.to_string()))?;
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(clients) => builder.with_client_cert_verifier(Arc::clone(&clients.verifier)),
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

/// Returns the error for the file at `path`, which should contain a `wanted`.
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
