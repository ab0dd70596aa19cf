//! The listener: accepting, serving and stopping.
//!
//! ```text
//! accepting ──shutdown──▶ draining ──last answer, or DRAIN_MAX──▶ stopped
//! ```
//! While draining nothing is accepted, asks that wait are answered at once, and requests in flight are finished. What
//! is not finished within [`DRAIN_MAX`] is cut.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::app::App;
use crate::bounds::{ACCEPT_PAUSE, CONNECTIONS_MAX, DRAIN_MAX, HEAD_WAIT_MAX};
use crate::http;

/// How a server stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Connections that were cut because their requests did not finish within [`DRAIN_MAX`].
    pub cut: usize,
}

/// Serves `app` on `listener` until `shutdown` resolves, then finishes what is in flight. Whoever wants to replace the
/// policies meanwhile keeps an `Arc` of it.
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
/// let app = App::new(gate, Policies::new([api])?, [7; 32], Arc::new(SystemClock));
///
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
/// let stop_at_once = async {};
/// assert_eq!(run(listener, app, stop_at_once).await.cut, 0);
/// # Ok(()) }
/// ```
pub async fn run(listener: TcpListener, app: App, shutdown: impl Future<Output = ()>) -> Drained {
    let app = app.into();
    let mut server = Server {
        router: http::router(Arc::clone(&app)),
        graceful: GracefulShutdown::new(),
        connections: JoinSet::new(),
        app,
    };
    tokio::select! {
        () = shutdown => {}
        () = server.accept(&listener) => {}
    }
    drop(listener);
    server.drain().await
}

struct Server {
    app: Arc<App>,
    router: axum::Router,
    graceful: GracefulShutdown,
    connections: JoinSet<()>,
}

impl Server {
    async fn accept(&mut self, listener: &TcpListener) {
        let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => self.serve(stream, place),
                // Somebody gave up while in the backlog, or descriptors ran out; either passes.
                Err(error) => {
                    tracing::warn!(%error, "could not accept a connection");
                    let clock = self.app.clock();
                    clock.sleep_until(clock.now() + ACCEPT_PAUSE).await;
                }
            }
            while let Some(ended) = self.connections.try_join_next() {
                if let Err(error) = ended {
                    tracing::error!(%error, "a connection ended in a panic");
                }
            }
        }
    }

    fn serve(&mut self, stream: TcpStream, place: tokio::sync::OwnedSemaphorePermit) {
        // An answer is one small write; holding it back for the next would only add latency.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "could not set TCP_NODELAY");
        }
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(Duration::from(HEAD_WAIT_MAX))
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(self.router.clone()));
        let connection = self.graceful.watch(connection);
        self.connections.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended early");
            }
            drop(place);
        });
    }

    async fn drain(mut self) -> Drained {
        tracing::info!(connections = self.graceful.count(), "draining");
        self.app.close();
        let clock = self.app.clock();
        let deadline = clock.sleep_until(clock.now() + DRAIN_MAX);
        tokio::select! {
            () = self.graceful.shutdown() => {}
            () = deadline => {}
        }
        let mut cut = 0;
        self.connections.abort_all();
        while let Some(ended) = self.connections.join_next().await {
            cut += usize::from(ended.is_err());
        }
        if 0 < cut {
            tracing::warn!(cut, "cut connections that did not finish in time");
        }
        Drained { cut }
    }
}
