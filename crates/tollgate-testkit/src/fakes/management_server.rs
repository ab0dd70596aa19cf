//! A management server of xDS: sends what a test says, and keeps what its clients answer.
//!
//! As the common implementation does, it stays silent towards a client that names the version it has.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use prost::Message as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tollgate_protocol::protobuf::Any;
use tollgate_protocol::protobuf::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use tollgate_protocol::protobuf::envoy::service::discovery::v3::{
    DiscoveryRequest, DiscoveryResponse,
};
use tollgate_protocol::protobuf::ratelimit::config::ratelimit::v3::RateLimitConfig;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use crate::servers::{Fault, Port};

/// The type of the limits of envoyproxy/ratelimit.
pub const RATE_LIMIT_CONFIG: &str =
    "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// The longest wait for a client.
const REQUEST_WAIT: Duration = Duration::from_secs(60);

/// What a client sent: a message, and the metadata of its stream.
pub type ClientRequest = (DiscoveryRequest, MetadataMap);

/// A management server on a port of its own, which it keeps while it is stopped.
pub struct ManagementServer {
    port: Port,
    tls: Option<TlsAcceptor>,
    service: Service,
    requests: Mutex<Receiver<ClientRequest>>,
    runtime: Option<Runtime>,
}

impl fmt::Debug for ManagementServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagementServer").field("port", &self.port).finish_non_exhaustive()
    }
}

#[derive(Clone)]
struct Service {
    snapshot: watch::Sender<Option<DiscoveryResponse>>,
    nonces: Arc<AtomicU64>,
    requests: Sender<ClientRequest>,
}

impl ManagementServer {
    /// Starts a server that has nothing to send yet.
    pub fn start() -> Result<Self, Fault> {
        Self::start_with(None)
    }

    /// Starts a server with `server.crt` and `server.key` in `folder`, whose clients need a certificate by `ca.crt` there.
    pub fn start_tls(folder: &Path) -> Result<Self, Fault> {
        let acceptor = acceptor(folder).map_err(|error| failed(&error))?;
        Self::start_with(Some(acceptor))
    }

    fn start_with(tls: Option<TlsAcceptor>) -> Result<Self, Fault> {
        let (sender, requests) = channel();
        let (snapshot, nonces) = (watch::Sender::new(None), Arc::default());
        let service = Service { snapshot, nonces, requests: sender };
        let requests = Mutex::new(requests);
        let mut server = Self { port: Port::free()?, tls, service, requests, runtime: None };
        server.restart()?;
        Ok(server)
    }

    /// Sends `configs` to every client, now and whenever one connects.
    pub fn push(&self, version: &str, configs: &[RateLimitConfig]) {
        let resource = |config: &RateLimitConfig| Any {
            type_url: RATE_LIMIT_CONFIG.to_owned(),
            value: config.encode_to_vec(),
        };
        self.push_resources(version, configs.iter().map(resource).collect());
    }

    /// Sends `resources`, right or wrong.
    pub fn push_resources(&self, version: &str, resources: Vec<Any>) {
        self.service.snapshot.send_replace(Some(DiscoveryResponse {
            version_info: version.to_owned(),
            type_url: RATE_LIMIT_CONFIG.to_owned(),
            resources,
            nonce: String::new(),
        }));
    }

    /// Returns the next request of a client.
    pub fn request(&self) -> Result<ClientRequest, Fault> {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.recv_timeout(REQUEST_WAIT).map_err(|error| failed(&error))
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port.number()))
    }

    /// Cuts all connections and listens no more.
    pub fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(REQUEST_WAIT);
        }
    }

    /// Listens again, after [`stop`](Self::stop).
    pub fn restart(&mut self) -> Result<(), Fault> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| failed(&error))?;
        let listener = runtime.block_on(TcpListener::bind(self.address()));
        let listener = listener.map_err(|error| failed(&error))?;
        let (service, tls) = (self.service.clone(), self.tls.clone());
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, tls.clone(), service.clone()));
            }
        });
        self.runtime = Some(runtime);
        Ok(())
    }
}

async fn serve(stream: TcpStream, tls: Option<TlsAcceptor>, service: Service) {
    let service = TowerToHyperService::new(AggregatedDiscoveryServiceServer::new(service));
    let connection = http2::Builder::new(TokioExecutor::new());
    match tls {
        None => drop(connection.serve_connection(TokioIo::new(stream), service).await),
        Some(tls) => {
            if let Ok(stream) = tls.accept(stream).await {
                drop(connection.serve_connection(TokioIo::new(stream), service).await);
            }
        }
    }
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Service {
    type StreamAggregatedResourcesStream = ReceiverStream<Result<DiscoveryResponse, Status>>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let (metadata, _, mut incoming) = request.into_parts();
        let (responses, outgoing) = mpsc::channel(1);
        let service = self.clone();
        let mut snapshots = self.snapshot.subscribe();
        snapshots.mark_changed();
        tokio::spawn(async move {
            // The version that the client named last.
            let Ok(Some(first)) = incoming.message().await else { return };
            let mut known = first.version_info.clone();
            drop(service.requests.send((first, metadata.clone())));
            loop {
                tokio::select! {
                    message = incoming.message() => {
                        let Ok(Some(message)) = message else { return };
                        drop(service.requests.send((message, metadata.clone())));
                    }
                    changed = snapshots.changed() => {
                        let snapshot = snapshots.borrow_and_update().clone();
                        let Some(mut response) = snapshot else { continue };
                        if changed.is_err() || response.version_info == known {
                            continue;
                        }
                        known.clone_from(&response.version_info);
                        let nonce = service.nonces.fetch_add(1, Ordering::Relaxed);
                        response.nonce = format!("nonce-{nonce}");
                        if responses.send(Ok(response)).await.is_err() {
                            return;
                        }
                    }
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(outgoing)))
    }
}

fn acceptor(folder: &Path) -> io::Result<TlsAcceptor> {
    let read = |name: &str| {
        CertificateDer::pem_file_iter(folder.join(name))
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(io::Error::other)
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(read("ca.crt")?);
    let key = PrivateKeyDer::from_pem_file(folder.join("server.key")).map_err(io::Error::other)?;
    let provider = Arc::new(ring::default_provider());
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .map_err(io::Error::other)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_client_cert_verifier(clients)
        .with_single_cert(read("server.crt")?, key)
        .map_err(io::Error::other)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn failed(error: &dyn std::error::Error) -> Fault {
    Fault::new(format!("the management server: {error}"))
}
