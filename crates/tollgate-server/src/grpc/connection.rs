//! One connection of gRPC: HTTP/2 by hyper, bounded, and finished when the server stops.
//!
//! hyper asks a connection that says nothing whether it is still there, but only once it has introduced itself as HTTP/2.
//! So whoever has not done that within [`HEAD_WAIT_MAX`] is cut here.
//!
//! Writing costs as much as a call or two. So the answers to what was read are held back until every other connection
//! that was read with this one has been served too: what came here meanwhile is answered in the same write.

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

use super::Calls;
use super::executor::Gathered;
use crate::access::Certificate;
use crate::app::App;
use crate::bounds::{CALL_HEAD_BYTES_MAX, CALLS_MAX, HEAD_WAIT_MAX, PING_WAIT_MAX};

/// The words with which a client begins HTTP/2, in bytes.
const PREFACE_BYTES: usize = 24;

/// Answers the calls on `stream` until its client leaves, or until `ends` resolves or the connection is as old as it may be, and
/// those in flight are done.
pub(crate) async fn serve<S>(
    stream: S,
    certificate: Option<Arc<Certificate>>,
    calls: Arc<Calls>,
    app: &App,
    ends: impl Future<Output = ()>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let begun = Arc::new(Notify::new());
    let stream = Held { stream, left: PREFACE_BYTES, begun: Arc::clone(&begun), is_held: false };
    let service = service_fn(move |mut request: Request<Incoming>| {
        if let Some(certificate) = &certificate {
            request.extensions_mut().insert(Arc::clone(certificate));
        }
        calls.answer(request).map(Ok::<_, Infallible>)
    });
    let gathered = Gathered::default();
    let connection = http2::Builder::new(gathered.clone())
        .timer(TokioTimer::new())
        .max_concurrent_streams(CALLS_MAX)
        .max_header_list_size(CALL_HEAD_BYTES_MAX)
        .keep_alive_interval(Duration::from(HEAD_WAIT_MAX))
        .keep_alive_timeout(Duration::from(PING_WAIT_MAX))
        .serve_connection(TokioIo::new(stream), service);
    let silent = async {
        let is_silent = tokio::select! {
            () = begun.notified() => false,
            () = app.clock().sleep_until(app.now() + HEAD_WAIT_MAX) => true,
        };
        if !is_silent {
            std::future::pending::<()>().await;
        }
    };
    let mut connection = pin!(connection);
    let mut ends = pin!(
        async {
            tokio::select! {
                () = ends => {}
                () = ages(app) => {}
            }
        }
        .fuse()
    );
    let served = poll_fn(|context| {
        if ends.as_mut().poll(context).is_ready() {
            connection.as_mut().graceful_shutdown();
        }
        gathered.poll_beside(connection.as_mut(), context)
    });
    tokio::select! {
        ended = served => {
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended early");
            }
        }
        () = silent => tracing::debug!("a connection never began"),
    }
}

/// Resolves when a connection that begins now is as old as the settings allow and up to a tenth more, so that clients of one
/// moment do not come back in one.
async fn ages(app: &App) {
    let age = app.limits().grpc_age_max.as_micros();
    let jitter = (u128::from(age / 10) * u128::from(tollgate::edge::random())) >> u32::BITS;
    let age = Span::from_micros(age.saturating_add(u64::try_from(jitter).unwrap_or(0)));
    app.clock().sleep_until(app.now() + age).await;
}

/// A stream that says when so many bytes were read, and lets others go first between a read and the next write.
struct Held<S> {
    stream: S,
    left: usize,
    begun: Arc<Notify>,
    is_held: bool,
}

impl<S: AsyncRead + Unpin> AsyncRead for Held<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.is_held |= polled.is_ready();
        if 0 < self.left {
            self.left = self.left.saturating_sub(buffer.filled().len() - before);
            if self.left == 0 {
                self.begun.notify_one();
            }
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Held<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if mem::take(&mut self.is_held) && pin!(yield_now()).poll(context).is_pending() {
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

    /// Between a read and the next write others get a turn, once.
    #[tokio::test]
    async fn answers_wait_for_who_came_with_them() {
        let (mut client, stream) = tokio::io::duplex(64);
        let mut held = Held { stream, left: 1, begun: Arc::default(), is_held: false };
        let others = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = || others.load(std::sync::atomic::Ordering::Relaxed);
        let other = || {
            let others = Arc::clone(&others);
            tokio::spawn(async move { others.fetch_add(1, std::sync::atomic::Ordering::Relaxed) })
        };
        other();
        held.write_all(b"x").await.unwrap();
        assert_eq!(count(), 0, "nothing was read, so nothing waits");
        client.write_all(b"ask").await.unwrap();
        held.read_exact(&mut [0; 3]).await.unwrap();
        held.write_all(b"answer").await.unwrap();
        assert_eq!(count(), 1);
        other();
        held.write_all(b"more").await.unwrap();
        assert_eq!(count(), 1, "what belongs to the same read goes on");
    }
}
