//! A TLS port in front of a plain one.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::Fault;

/// A port that terminates TLS and passes the bytes on, until it is dropped.
#[derive(Debug)]
pub struct TlsFront {
    address: SocketAddr,
    handshakes: Arc<AtomicU64>,
    _runtime: Runtime,
}

impl TlsFront {
    /// Starts a port in front of `upstream` with the certificate `server.crt` and the key `server.key` in `folder`.
    pub fn start(folder: &Path, upstream: SocketAddr) -> Result<Self, Fault> {
        let failed = |error: &dyn std::error::Error| {
            Fault::new(format!("a port with TLS could not be opened: {error}"))
        };
        let acceptor = acceptor(folder).map_err(|error| failed(&error))?;
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| failed(&error))?;
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
        let listener = listener.map_err(|error| failed(&error))?;
        let address = listener.local_addr().map_err(|error| failed(&error))?;
        let handshakes = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&handshakes);
        runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (acceptor, counted) = (acceptor.clone(), Arc::clone(&counted));
                tokio::spawn(
                    async move { drop(join(client, &acceptor, upstream, &counted).await) },
                );
            }
        });
        Ok(Self { address, handshakes, _runtime: runtime })
    }

    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns how many handshakes succeeded.
    pub fn handshakes(&self) -> u64 {
        self.handshakes.load(Ordering::Relaxed)
    }
}

fn acceptor(folder: &Path) -> io::Result<TlsAcceptor> {
    let chain = CertificateDer::pem_file_iter(folder.join("server.crt"))
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(io::Error::other)?;
    let key = PrivateKeyDer::from_pem_file(folder.join("server.key")).map_err(io::Error::other)?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(io::Error::other)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn join(
    client: TcpStream,
    acceptor: &TlsAcceptor,
    upstream: SocketAddr,
    counted: &AtomicU64,
) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut client = acceptor.accept(client).await?;
    counted.fetch_add(1, Ordering::Relaxed);
    let mut server = TcpStream::connect(upstream).await?;
    server.set_nodelay(true)?;
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}
