//! The server: accepts connections on every listener, serves them and shuts down gracefully.
//!
//! ```text
//! accepting ──shutdown──▶ draining ──last response, or DRAIN_MAX──▶ stopped
//! ```
//! A draining server accepts nothing, answers waiting asks at once and finishes requests in flight. After [`DRAIN_MAX`]
//! the remaining connections are cut. A connection whose client certificate was revoked ends in the same way. A mounted
//! protocol has its own drain time.

use std::fmt::Debug;
use std::future::{Future, pending};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tollgate::gate::BoxFuture;
use tollgate::{Clock, Span, Timestamp};

use crate::access::Certificate;
use crate::app::App;
use crate::bounds::{ACCEPT_PAUSE, CONNECTIONS_MAX, CONNECTIONS_SHARE, DRAIN_MAX, SETTLE_WAIT_MAX};
use crate::grpc::GrpcService;
use crate::http::HttpService;
use crate::resp::RespService;
use crate::tls::Tls;

/// A protocol that the server speaks.
pub(crate) trait Protocol: Send + Sync + 'static {
    /// Serves one connection until its client disconnects, or until `shutdown` resolves and requests in flight are
    /// finished.
    fn serve<S>(
        self: Arc<Self>,
        stream: S,
        certificate: Option<Arc<Certificate>>,
        shutdown: BoxFuture<'static, ()>,
    ) -> impl Future<Output = ()> + Send
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static;
}

/// A protocol of another crate, served on a listener of its own by the same server.
pub trait MountedProtocol: Debug + Send + Sync + 'static {
    /// Serves one connection until its client disconnects, or until `shutdown` resolves and requests in flight are
    /// finished.
    fn serve(
        self: Arc<Self>,
        stream: Box<dyn Connection>,
        shutdown: BoxFuture<'static, ()>,
    ) -> BoxFuture<'static, ()>;

    /// Returns how long requests in flight may take to finish at shutdown.
    fn drain_max(&self) -> Span;
}

/// An accepted connection, after the TLS handshake if there is one.
pub trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Connection for S {}

/// Adapts a mounted protocol to the accept loop.
struct Mounted(Arc<dyn MountedProtocol>);

impl Protocol for Mounted {
    async fn serve<S>(
        self: Arc<Self>,
        stream: S,
        _: Option<Arc<Certificate>>,
        shutdown: BoxFuture<'static, ()>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        Arc::clone(&self.0).serve(Box::new(stream), shutdown).await;
    }
}

/// How a server stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Connections that were cut because their requests did not finish within [`DRAIN_MAX`], or the drain time of their
    /// mounted protocol.
    pub cut: usize,
}

/// The sockets of a server: HTTP, and optionally other protocols.
#[derive(Debug)]
pub struct Listeners {
    http: TcpListener,
    resp: Option<TcpListener>,
    grpc: Option<TcpListener>,
    mounted: Vec<(TcpListener, Arc<dyn MountedProtocol>)>,
    tls: Option<Tls>,
    is_tls_only_for_grpc: bool,
    connections_max: usize,
}

impl Listeners {
    /// Serves HTTP on `http`.
    #[must_use]
    pub const fn http(http: TcpListener) -> Self {
        Self {
            http,
            resp: None,
            grpc: None,
            mounted: Vec::new(),
            tls: None,
            is_tls_only_for_grpc: false,
            connections_max: CONNECTIONS_MAX,
        }
    }

    /// Serves the Redis protocol on `resp`.
    #[must_use]
    pub fn resp(mut self, resp: TcpListener) -> Self {
        self.resp = Some(resp);
        self
    }

    /// Serves gRPC on `grpc`.
    #[must_use]
    pub fn grpc(mut self, grpc: TcpListener) -> Self {
        self.grpc = Some(grpc);
        self
    }

    /// Serves `protocol` on `listener`, too.
    #[must_use]
    pub fn mount(mut self, listener: TcpListener, protocol: Arc<dyn MountedProtocol>) -> Self {
        self.mounted.push((listener, protocol));
        self
    }

    /// Limits the connections of all listeners together to `most`, and never more than [`CONNECTIONS_MAX`], for a process
    /// with few file descriptors. Each listener reserves some, so that one cannot starve another.
    #[must_use]
    pub fn connections(mut self, most: usize) -> Self {
        self.connections_max = most.min(CONNECTIONS_MAX);
        self
    }

    /// Speaks TLS on every listener.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Speaks TLS only with clients of gRPC, and plain text on the other listeners.
    #[must_use]
    pub const fn tls_only_for_grpc(mut self) -> Self {
        self.is_tls_only_for_grpc = true;
        self
    }
}

impl From<TcpListener> for Listeners {
    fn from(http: TcpListener) -> Self {
        Self::http(http)
    }
}

/// Serves `app` on `listeners` until `shutdown` resolves, then drains. Keep an `Arc` of `app` to replace policies or keys
/// meanwhile.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use tollgate::clock::SystemClock;
/// use tollgate::policy::Policies;
/// use tollgate::{Limit, Memory, Policy, TokenBucket};
/// use tollgate_server::{App, run};
///
/// let api = Policy::new("api", [Limit::new("burst", "requests", TokenBucket::per_second(10))])?;
/// let gate = Arc::new(Memory::new());
/// let app = App::new(gate, Policies::new([api])?, [7; 32], Arc::new(SystemClock))?;
///
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
/// let stop_at_once = async {};
/// assert_eq!(run(listener, app, stop_at_once).await.cut, 0);
/// # Ok(()) }
/// ```
pub async fn run(
    listeners: impl Into<Listeners>,
    app: impl Into<Arc<App>>,
    shutdown: impl Future<Output = ()>,
) -> Drained {
    let (listeners, app): (Listeners, Arc<App>) = (listeners.into(), app.into());
    let audit_writer = tokio::spawn({
        let app = Arc::clone(&app);
        async move { app.auditor().write(app.clock()).await }
    });
    let server = Server {
        app: Arc::clone(&app),
        tls: listeners.tls.clone(),
        connections: Mutex::default(),
        mounted: Mutex::default(),
    };
    let mounted = listeners.mounted.iter().map(|(_, protocol)| protocol.drain_max());
    let mounted_drain_max = mounted.max();
    tokio::select! {
        () = shutdown => {}
        () = app.live_policies().follow(app.clock()) => {}
        () = app.keep_history() => {}
        () = server.accept_all(&listeners) => {}
    }
    drop(listeners);
    let drained = server.drain(mounted_drain_max).await;
    app.auditor().flush(app.clock()).await;
    audit_writer.abort();
    drained
}

struct Server {
    app: Arc<App>,
    tls: Option<Tls>,
    connections: Connections,
    /// The connections of mounted protocols, which drain longer.
    mounted: Connections,
}

type Connections = Mutex<JoinSet<()>>;

impl Server {
    async fn accept_all(&self, listeners: &Listeners) {
        let Listeners { http, resp, grpc, mounted, .. } = listeners;
        let optional = [resp.is_some(), grpc.is_some()];
        let count = 1 + optional.into_iter().filter(|is_open| *is_open).count() + mounted.len();
        let reserved = (listeners.connections_max / CONNECTIONS_SHARE).max(1);
        let shared = listeners.connections_max.saturating_sub(reserved * count);
        let shared = Arc::new(Semaphore::new(shared));
        let bounded =
            |listener| BoundedListener::new(listener, self.app.clock(), reserved, &shared);
        let app = || Arc::clone(&self.app);
        let own = &self.connections;
        let tls = self.tls.as_ref().filter(|_| !listeners.is_tls_only_for_grpc);
        let serve_mounted = join_all(mounted.iter().map(|(listener, protocol)| {
            let protocol = Arc::new(Mounted(Arc::clone(protocol)));
            self.accept(Some(bounded(listener)), protocol, tls, &self.mounted)
        }));
        let grpc_tls = self.tls.as_ref();
        tokio::join!(
            self.accept(Some(bounded(http)), Arc::new(HttpService::new(app())), tls, own),
            self.accept(resp.as_ref().map(bounded), Arc::new(RespService::new(app())), tls, own),
            self.accept(
                grpc.as_ref().map(bounded),
                Arc::new(GrpcService::new(app())),
                grpc_tls,
                own
            ),
            serve_mounted,
        );
    }

    /// Accepts connections on `listener` and serves each in a task of its own.
    async fn accept<P: Protocol>(
        &self,
        listener: Option<BoundedListener<'_>>,
        protocol: Arc<P>,
        tls: Option<&Tls>,
        connections: &Connections,
    ) {
        let Some(listener) = listener else { return pending().await };
        loop {
            let (stream, slot) = listener.accept().await;
            let (app, tls) = (Arc::clone(&self.app), tls.cloned());
            let protocol = Arc::clone(&protocol);
            let mut connections = connections.lock().unwrap_or_else(PoisonError::into_inner);
            connections.spawn(async move {
                if let Err(error) = serve(stream, tls, &app, protocol).await {
                    tracing::debug!(%error, "a TLS handshake failed");
                }
                drop(slot);
            });
            while let Some(ended) = connections.try_join_next() {
                if let Err(error) = ended {
                    tracing::error!(%error, "a connection ended in a panic");
                }
            }
        }
    }

    /// Finishes requests in flight, those of a mounted protocol within `mounted_max`.
    async fn drain(self, mounted_max: Option<Span>) -> Drained {
        let Self { app, connections, mounted, .. } = self;
        let [mut own, mut mounted] = [connections, mounted]
            .map(|connections| connections.into_inner().unwrap_or_else(PoisonError::into_inner));
        tracing::info!(connections = own.len() + mounted.len(), "draining");
        app.close();
        let now = app.now();
        let (own_cut, mounted_cut) = tokio::join!(
            finish(&app, &mut own, now + DRAIN_MAX),
            finish(&app, &mut mounted, now + mounted_max.unwrap_or_default()),
        );
        // Connections that were cut settle what they had charged.
        let settled_by = mounted_max.map_or(now, |_| app.now() + SETTLE_WAIT_MAX);
        tokio::select! {
            () = app.finish_mutations() => {}
            () = app.clock().sleep_until(settled_by.max(now + DRAIN_MAX)) => {}
        }
        let cut = own_cut + mounted_cut;
        if 0 < cut {
            tracing::warn!(cut, "cut connections that did not finish in time");
        }
        Drained { cut }
    }
}

/// Waits until `connections` are finished, and cuts those that are left at `deadline`. Returns how many were cut.
async fn finish(app: &App, connections: &mut JoinSet<()>, deadline: Timestamp) -> usize {
    let finished = async { while connections.join_next().await.is_some() {} };
    tokio::select! {
        () = finished => return 0,
        () = app.clock().sleep_until(deadline) => {}
    }
    let mut cut = 0;
    connections.abort_all();
    while let Some(ended) = connections.join_next().await {
        cut += usize::from(ended.is_err());
    }
    cut
}

/// Serves one connection, after a handshake if there is TLS.
async fn serve<P: Protocol>(
    stream: TcpStream,
    tls: Option<Tls>,
    app: &Arc<App>,
    protocol: Arc<P>,
) -> io::Result<()> {
    let Some(tls) = tls else {
        protocol.serve(stream, None, closes(app)).await;
        return Ok(());
    };
    // Boxed, because a task is as large as the larger of both.
    Box::pin(serve_tls(stream, tls, app, protocol)).await
}

/// Serves one connection after its handshake.
async fn serve_tls<P: Protocol>(
    stream: TcpStream,
    tls: Tls,
    app: &Arc<App>,
    protocol: Arc<P>,
) -> io::Result<()> {
    let (stream, trust) = tls.accept(stream, app).await?;
    let certificate = Certificate::from_stream(&stream);
    // A revoked client ends like at a shutdown, and is cut after DRAIN_MAX.
    let revoked = trust.revoked(Arc::clone(app)).shared();
    let (closes, early) = (closes(app), revoked.clone());
    let shutdown = Box::pin(async {
        tokio::select! {
            () = closes => {}
            () = early => {}
        }
    });
    let cut = async {
        revoked.await;
        app.clock().sleep_until(app.now() + DRAIN_MAX).await;
    };
    tokio::select! {
        () = protocol.serve(stream, certificate, shutdown) => {}
        () = cut => tracing::debug!("cut a connection whose client certificate is no longer accepted"),
    }
    Ok(())
}

/// Resolves when the server closes.
fn closes(app: &App) -> BoxFuture<'static, ()> {
    let mut closing = app.closing();
    Box::pin(async move {
        // An error means that the server is gone, and so closed.
        let _ = closing.wait_for(|closing| *closing).await;
    })
}

/// A listener with a bounded number of connections: some reserved for it, the others shared with other listeners.
struct BoundedListener<'a> {
    listener: &'a TcpListener,
    clock: &'a dyn Clock,
    reserved: Arc<Semaphore>,
    shared: Arc<Semaphore>,
    /// Whether the last accept failed; a failure is logged once.
    is_failing: AtomicBool,
}

impl<'a> BoundedListener<'a> {
    fn new(
        listener: &'a TcpListener,
        clock: &'a dyn Clock,
        reserved: usize,
        shared: &Arc<Semaphore>,
    ) -> Self {
        let (reserved, shared) = (Arc::new(Semaphore::new(reserved)), Arc::clone(shared));
        Self { listener, clock, reserved, shared, is_failing: AtomicBool::new(false) }
    }

    /// Returns the next connection and its slot, once there is a free one.
    async fn accept(&self) -> (TcpStream, OwnedSemaphorePermit) {
        loop {
            let slot = tokio::select! {
                biased;
                slot = Arc::clone(&self.reserved).acquire_owned() => slot,
                slot = Arc::clone(&self.shared).acquire_owned() => slot,
            };
            let slot = slot.expect("no semaphore is ever closed");
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    self.is_failing.store(false, Ordering::Relaxed);
                    // A response is one small write; delaying it would only add latency.
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%error, "could not set TCP_NODELAY");
                    }
                    return (stream, slot);
                }
                // A client gave up while in the backlog, or file descriptors ran out; either passes.
                Err(error) => {
                    if !self.is_failing.swap(true, Ordering::Relaxed) {
                        tracing::warn!(%error, "connections cannot be accepted; trying again until they can");
                    }
                    self.clock.sleep_until(self.clock.now() + ACCEPT_PAUSE).await;
                }
            }
        }
    }
}
