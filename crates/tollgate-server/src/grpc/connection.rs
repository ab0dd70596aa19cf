//! One connection of gRPC: HTTP/2 by hyper, bounded, and finished when the server stops.

use std::time::Duration;

use axum::Router;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::Watcher;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::bounds::{CALL_HEAD_BYTES_MAX, CALLS_MAX, HEAD_WAIT_MAX, PING_WAIT_MAX};

/// Answers the calls on `stream` until its client leaves, or until `watcher` hears that the server stops and those in
/// flight are done.
pub(crate) async fn serve<S>(stream: S, router: Router, watcher: Watcher)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(CALLS_MAX)
        .max_header_list_size(CALL_HEAD_BYTES_MAX)
        .keep_alive_interval(Duration::from(HEAD_WAIT_MAX))
        .keep_alive_timeout(Duration::from(PING_WAIT_MAX))
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, "a connection ended early");
    }
}
