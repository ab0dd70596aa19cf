//! One gRPC connection: HTTP/2 by hyper, bounded, with graceful shutdown.
//!
//! hyper pings an idle connection, but only after its HTTP/2 preface. A connection without a preface within
//! [`HEAD_WAIT_MAX`] is closed here.
//!
//! A write costs as much as a call or two. [`DelayedWrites`] therefore yields between a read and the next write: calls that
//! arrive meanwhile are answered in the same write.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{io, mem};

use axum::http::Request;
use futures_util::FutureExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tollgate::Span;

use super::GrpcService;
use super::batching_executor::BatchingExecutor;
use crate::access::Certificate;
use crate::app::App;
use crate::bounds::{CALL_HEAD_BYTES_MAX, CALLS_MAX, HEAD_WAIT_MAX, PING_WAIT_MAX};

/// The length of the HTTP/2 preface.
const PREFACE_BYTES: usize = 24;

/// Serves `stream` until its client disconnects, or until `shutdown` resolves or the connection reaches its maximum age,
/// and calls in flight are finished.
pub(super) async fn serve<S>(
    stream: S,
    certificate: Option<Arc<Certificate>>,
    service: Arc<GrpcService>,
    shutdown: impl Future<Output = ()>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let app = Arc::clone(&service.app);
    let preface = Arc::new(Notify::new());
    let stream = DelayedWrites::new(stream, PREFACE_BYTES, Arc::clone(&preface));
    let handler = service_fn(move |mut request: Request<Incoming>| {
        if let Some(certificate) = &certificate {
            request.extensions_mut().insert(Arc::clone(certificate));
        }
        service.answer(request).map(Ok::<_, Infallible>)
    });
    let executor = BatchingExecutor::default();
    let connection = http2::Builder::new(executor.clone())
        .timer(TokioTimer::new())
        .max_concurrent_streams(CALLS_MAX)
        .max_header_list_size(CALL_HEAD_BYTES_MAX)
        .keep_alive_interval(Duration::from(HEAD_WAIT_MAX))
        .keep_alive_timeout(Duration::from(PING_WAIT_MAX))
        .serve_connection(TokioIo::new(stream), handler);
    let no_preface = async {
        tokio::select! {
            () = preface.notified() => std::future::pending().await,
            () = app.clock().sleep_until(app.now() + HEAD_WAIT_MAX) => {}
        }
    };
    let mut connection = pin!(connection);
    let mut shutdown = pin!(
        async {
            tokio::select! {
                () = shutdown => {}
                () = reaches_age(&app) => {}
            }
        }
        .fuse()
    );
    let served = poll_fn(|context| {
        if shutdown.as_mut().poll(context).is_ready() {
            connection.as_mut().graceful_shutdown();
        }
        executor.poll_with(connection.as_mut(), context)
    });
    tokio::select! {
        ended = served => {
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended early");
            }
        }
        () = no_preface => tracing::debug!("a connection sent no HTTP/2 preface"),
    }
}

/// Resolves when a connection that begins now reaches its maximum age, plus a jitter of up to a tenth, so that clients do
/// not all reconnect at once.
async fn reaches_age(app: &App) {
    let age = Span::from(app.options().grpc_age_max).as_micros();
    let jitter =
        (u128::from(age / 10) * u128::from(tollgate::internal::edge::random())) >> u32::BITS;
    let age = Span::from_micros(age.saturating_add(u64::try_from(jitter).unwrap_or(0)));
    app.clock().sleep_until(app.now() + age).await;
}

/// A stream that notifies once its preface was read, and yields once between a read and the next write.
struct DelayedWrites<S> {
    stream: S,
    /// Bytes of the preface that were not read yet.
    preface_left: usize,
    preface: Arc<Notify>,
    must_yield: bool,
}

impl<S> DelayedWrites<S> {
    const fn new(stream: S, preface_left: usize, preface: Arc<Notify>) -> Self {
        Self { stream, preface_left, preface, must_yield: false }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for DelayedWrites<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.must_yield |= polled.is_ready();
        if 0 < self.preface_left {
            let read = buffer.filled().len() - before;
            self.preface_left = self.preface_left.saturating_sub(read);
            if self.preface_left == 0 {
                self.preface.notify_one();
            }
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for DelayedWrites<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if mem::take(&mut self.must_yield) && pin!(yield_now()).poll(context).is_pending() {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Between a read and the next write other tasks run, once.
    #[tokio::test]
    async fn a_write_after_a_read_yields_once() {
        let (mut client, stream) = tokio::io::duplex(64);
        let mut delayed = DelayedWrites::new(stream, 1, Arc::default());
        let others = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = || others.load(std::sync::atomic::Ordering::Relaxed);
        let other = || {
            let others = Arc::clone(&others);
            tokio::spawn(async move { others.fetch_add(1, std::sync::atomic::Ordering::Relaxed) })
        };
        other();
        delayed.write_all(b"x").await.unwrap();
        assert_eq!(count(), 0, "nothing was read");
        client.write_all(b"ask").await.unwrap();
        delayed.read_exact(&mut [0; 3]).await.unwrap();
        delayed.write_all(b"answer").await.unwrap();
        assert_eq!(count(), 1);
        other();
        delayed.write_all(b"more").await.unwrap();
        assert_eq!(count(), 1, "the same read yields once");
    }
}
