//! The listener: accepting, serving and stopping.
//!
//! ```text
//! accepting ──shutdown──▶ draining ──last answer, or DRAIN_MAX──▶ stopped
//! ```
//! While draining nothing is accepted, asks that wait are answered at once, and requests in flight are finished. What
//! is not finished within [`DRAIN_MAX`] is cut. A connection whose client is no longer trusted ends in the same way.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinHandle, JoinSet};
use tollgate::{BoxFuture, Clock};

use crate::access::Certificate;
use crate::app::App;
use crate::bounds::{ACCEPT_PAUSE, CONNECTIONS_MAX, CONNECTIONS_SHARE, DRAIN_MAX};
use crate::grpc;
use crate::http;
use crate::resp::{self, Resp};
use crate::tls::{Tls, Trust};

/// How a server stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Connections that were cut because their requests did not finish within [`DRAIN_MAX`].
    pub cut: usize,
}

/// Where a server listens: HTTP always, other protocols where they are given.
#[derive(Debug)]
pub struct Listeners {
    http: TcpListener,
    resp: Option<TcpListener>,
    grpc: Option<TcpListener>,
    tls: Option<Tls>,
    connections_max: usize,
}

impl Listeners {
    /// HTTP on `http`, and nothing else.
    #[must_use]
    pub const fn http(http: TcpListener) -> Self {
        Self { http, resp: None, grpc: None, tls: None, connections_max: CONNECTIONS_MAX }
    }

    /// The same, with the Redis protocol on `resp`.
    #[must_use]
    pub fn resp(mut self, resp: TcpListener) -> Self {
        self.resp = Some(resp);
        self
    }

    /// The same, with gRPC on `grpc`.
    #[must_use]
    pub fn grpc(mut self, grpc: TcpListener) -> Self {
        self.grpc = Some(grpc);
        self
    }

    /// The same, with at most `most` connections at once on all listeners together, and never more than
    /// [`CONNECTIONS_MAX`]. Each listener keeps a few of them, so that one cannot shut out another. It is for a process that
    /// may have only so many open files.
    #[must_use]
    pub fn connections(mut self, most: usize) -> Self {
        self.connections_max = most.min(CONNECTIONS_MAX);
        self
    }

    /// The same, with TLS on every listener.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }
}

impl From<TcpListener> for Listeners {
    fn from(http: TcpListener) -> Self {
        Self::http(http)
    }
}

/// Serves `app` on `listeners` until `shutdown` resolves, then finishes what is in flight. Whoever wants to replace
/// policies or keys meanwhile keeps an `Arc` of it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use tollgate::{Atomic, Limit, Memory, Policies, Policy, SystemClock, TokenBucket};
/// use tollgate_server::{App, run};
///
/// let api = Policy::new("api", [Limit::new("burst", "requests", TokenBucket::per_second(10))])?;
/// let gate = Arc::new(Atomic::new(Memory::new()));
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
    let app: Arc<App> = app.into();
    let mut server = Server {
        http: Arc::new(http::Calls::new(Arc::clone(&app))),
        resp: Arc::new(Resp::new(Arc::clone(&app))),
        grpc: Arc::new(grpc::Calls::new(&app)),
        connections: JoinSet::new(),
        tls: None,
        writing: tokio::spawn({
            let app = Arc::clone(&app);
            async move { app.auditor().write(app.clock()).await }
        }),
        app,
    };
    let listeners = listeners.into();
    server.tls.clone_from(&listeners.tls);
    let app = Arc::clone(&server.app);
    tokio::select! {
        () = shutdown => {}
        () = app.rules().follow(app.clock()) => {}
        () = server.accept(&listeners) => {}
    }
    drop(listeners);
    server.drain().await
}

struct Server {
    app: Arc<App>,
    http: Arc<http::Calls>,
    resp: Arc<Resp>,
    grpc: Arc<grpc::Calls>,
    connections: JoinSet<()>,
    tls: Option<Tls>,
    /// The task that writes the audit.
    writing: JoinHandle<()>,
}

impl Server {
    async fn accept(&mut self, listeners: &Listeners) {
        let app = Arc::clone(&self.app);
        let doors =
            1 + usize::from(listeners.resp.is_some()) + usize::from(listeners.grpc.is_some());
        let own = (listeners.connections_max / CONNECTIONS_SHARE).max(1);
        let shared = listeners.connections_max.saturating_sub(own * doors);
        let shared = Arc::new(Semaphore::new(shared));
        let door = |listener| Door::new(listener, app.clock(), own, &shared);
        let http = door(&listeners.http);
        let resp = listeners.resp.as_ref().map(door);
        let grpc = listeners.grpc.as_ref().map(door);
        loop {
            tokio::select! {
                (stream, place) = http.next() => self.serve_http(stream, place),
                (stream, place) = next_of(resp.as_ref()) => self.serve_resp(stream, place),
                (stream, place) = next_of(grpc.as_ref()) => self.serve_grpc(stream, place),
            }
            while let Some(ended) = self.connections.try_join_next() {
                if let Err(error) = ended {
                    tracing::error!(%error, "a connection ended in a panic");
                }
            }
        }
    }

    fn serve_http(&mut self, stream: TcpStream, place: OwnedSemaphorePermit) {
        let calls = Arc::clone(&self.http);
        let (app, tls) = (Arc::clone(&self.app), self.tls.clone());
        self.connections.spawn(async move {
            match tls {
                None => http::serve(stream, None, calls, Arc::clone(&app), closes(&app)).await,
                Some(tls) => match tls.accept(stream, &app).await {
                    Ok((stream, trust)) => {
                        let certificate = Certificate::of(&stream);
                        let serve =
                            |ends| http::serve(stream, certificate, calls, Arc::clone(&app), ends);
                        while_trusted(&app, trust, serve).await;
                    }
                    Err(error) => no_handshake(&error),
                },
            }
            drop(place);
        });
    }

    fn serve_grpc(&mut self, stream: TcpStream, place: OwnedSemaphorePermit) {
        let calls = Arc::clone(&self.grpc);
        let (app, tls) = (Arc::clone(&self.app), self.tls.clone());
        self.connections.spawn(async move {
            match tls {
                None => grpc::serve(stream, None, calls, &app, closes(&app)).await,
                Some(tls) => match tls.accept(stream, &app).await {
                    Ok((stream, trust)) => {
                        let certificate = Certificate::of(&stream);
                        let serve = |ends| grpc::serve(stream, certificate, calls, &app, ends);
                        while_trusted(&app, trust, serve).await;
                    }
                    Err(error) => no_handshake(&error),
                },
            }
            drop(place);
        });
    }

    fn serve_resp(&mut self, stream: TcpStream, place: OwnedSemaphorePermit) {
        let resp = Arc::clone(&self.resp);
        let (app, tls) = (Arc::clone(&self.app), self.tls.clone());
        self.connections.spawn(async move {
            match tls {
                None => resp::serve(stream, None, resp, closes(&app)).await,
                Some(tls) => match tls.accept(stream, &app).await {
                    Ok((stream, trust)) => {
                        let certificate = Certificate::of(&stream);
                        let serve = |ends| resp::serve(stream, certificate, resp, ends);
                        while_trusted(&app, trust, serve).await;
                    }
                    Err(error) => no_handshake(&error),
                },
            }
            drop(place);
        });
    }

    async fn drain(self) -> Drained {
        let Self { app, mut connections, writing, .. } = self;
        tracing::info!(connections = connections.len(), "draining");
        app.close();
        let ended = async {
            while connections.join_next().await.is_some() {}
            app.finished().await;
        };
        tokio::select! {
            () = ended => {}
            () = app.clock().sleep_until(app.now() + DRAIN_MAX) => {}
        }
        let mut cut = 0;
        connections.abort_all();
        while let Some(ended) = connections.join_next().await {
            cut += usize::from(ended.is_err());
        }
        app.auditor().flush(app.clock()).await;
        writing.abort();
        if 0 < cut {
            tracing::warn!(cut, "cut connections that did not finish in time");
        }
        Drained { cut }
    }
}

/// Resolves when the server closes.
fn closes(app: &App) -> BoxFuture<'static, ()> {
    let mut closing = app.closing();
    Box::pin(async move {
        // An error says that the server is gone, and so closed.
        let _ = closing.wait_for(|closing| *closing).await;
    })
}

/// Runs `serve`, which ends in order when the future that it is given resolves: when the server closes, or when the certificate of the
/// client is revoked. After [`DRAIN_MAX`] a revoked client is cut.
async fn while_trusted<S>(
    app: &Arc<App>,
    trust: Trust,
    serve: impl FnOnce(BoxFuture<'static, ()>) -> S,
) where
    S: Future<Output = ()>,
{
    let revoked = trust.revoked(Arc::clone(app)).shared();
    let (closes, early) = (closes(app), revoked.clone());
    let ends = Box::pin(async {
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
        () = serve(ends) => {}
        () = cut => tracing::debug!("a connection was cut, since its client is not trusted any more"),
    }
}

fn no_handshake(error: &std::io::Error) {
    tracing::debug!(%error, "a client and the server did not agree on TLS");
}

/// A listener with room for so many connections of its own, and what it shares with others.
struct Door<'a> {
    listener: &'a TcpListener,
    clock: &'a dyn Clock,
    own: Arc<Semaphore>,
    shared: Arc<Semaphore>,
    /// Whether the last attempt to accept failed, which is said once.
    failing: AtomicBool,
}

impl<'a> Door<'a> {
    fn new(
        listener: &'a TcpListener,
        clock: &'a dyn Clock,
        own: usize,
        shared: &Arc<Semaphore>,
    ) -> Self {
        let (own, shared) = (Arc::new(Semaphore::new(own)), Arc::clone(shared));
        Self { listener, clock, own, shared, failing: AtomicBool::new(false) }
    }

    /// The next connection, with its place.
    async fn next(&self) -> (TcpStream, OwnedSemaphorePermit) {
        loop {
            let place = tokio::select! {
                biased;
                own = Arc::clone(&self.own).acquire_owned() => own,
                shared = Arc::clone(&self.shared).acquire_owned() => shared,
            };
            let place = place.expect("no semaphore is ever closed");
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    self.failing.store(false, Ordering::Relaxed);
                    // An answer is one small write; holding it back for the next would only add latency.
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%error, "could not set TCP_NODELAY");
                    }
                    return (stream, place);
                }
                // Somebody gave up while in the backlog, or descriptors ran out; either passes.
                Err(error) => {
                    if !self.failing.swap(true, Ordering::Relaxed) {
                        tracing::warn!(%error, "connections cannot be accepted; trying again until they can");
                    }
                    self.clock.sleep_until(self.clock.now() + ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// The next connection at `door`; never, if there is none.
async fn next_of(door: Option<&Door<'_>>) -> (TcpStream, OwnedSemaphorePermit) {
    match door {
        Some(door) => door.next().await,
        None => std::future::pending().await,
    }
}
