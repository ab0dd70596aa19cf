//! One HTTP connection, of either version.
//!
//! [`IdleTimer`] bounds both idle connections and slow request heads. It starts at the end of the last response, so a
//! client that sends its head byte by byte, or never reads its response, does not restart it. A response that is made
//! while it is read reports each part that waits for its client.
//!
//! An HTTP/1 client may shut down its sending side after a request and still want the response, so hyper keeps such a
//! connection (`half_close`). A client that disconnected looks the same. An ask that waits for room therefore reads
//! ahead ([`ReadAhead`]) and stops waiting at the end of input.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::BoxError;
use axum::http::{Request, Response};
use futures_util::FutureExt as _;
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tollgate::{Span, Timestamp};

use super::HttpService;
use super::version::Detected;
use crate::access::Certificate;
use crate::app::App;
use crate::bounds::{AHEAD_BYTES_MAX, HEAD_BYTES_MAX, HEAD_WAIT_MAX, STREAMS_MAX};

/// How much of a head is read: more than a head may have, so that a slightly larger one gets a problem document. hyper
/// refuses a still larger one by status alone.
const HEAD_BYTES_READ_MAX: usize = 2 * HEAD_BYTES_MAX;

/// [`HEAD_BYTES_READ_MAX`], as HTTP/2 counts it.
#[allow(clippy::cast_possible_truncation, reason = "the bound is small")]
const HEAD_LIST_BYTES_MAX: u32 = HEAD_BYTES_READ_MAX as u32;

/// Serves `stream` until its client disconnects or is idle for too long, or until `shutdown` resolves and requests in
/// flight are finished.
pub(super) async fn serve<S>(
    stream: S,
    certificate: Option<Arc<Certificate>>,
    service: Arc<HttpService>,
    shutdown: impl Future<Output = ()>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stream = ReadAhead::new(stream);
    let peer: Arc<dyn Peer> = Arc::new(stream.clone());
    let app = Arc::clone(&service.app);
    let handler = move |mut request: Request<Incoming>, busy: Busy| {
        if let Some(certificate) = &certificate {
            request.extensions_mut().insert(Arc::clone(certificate));
        }
        service.answer(request, Some(&peer)).map(move |response| {
            drop(busy);
            response
        })
    };
    let options = ConnectionOptions { half_close: true, writev: false, unread_max: None };
    serve_connection(stream, app, options, handler, shutdown).await;
}

/// How a connection is served.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionOptions {
    /// Whether an HTTP/1 client that shut down its sending side still gets its response. If not, such a client counts as
    /// disconnected, and its request is dropped.
    pub half_close: bool,
    /// Whether the parts of an HTTP/1 response are written without copying them together: good for large ones.
    pub writev: bool,
    /// How long a client may read nothing of its responses; without it, for ever. See [`Busy::hand_over`].
    pub unread_max: Option<Span>,
}

/// Serves HTTP/1 or HTTP/2 on `stream` by `handler` until the client disconnects or is idle for too long, or until `shutdown`
/// resolves and requests in flight are finished. A request counts as in progress until its [`Busy`] is dropped.
pub async fn serve_connection<S, H, F, B>(
    stream: S,
    app: Arc<App>,
    options: ConnectionOptions,
    handler: H,
    shutdown: impl Future<Output = ()>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Fn(Request<Incoming>, Busy) -> F,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    let timer = Arc::new(IdleTimer::new(app, options.unread_max));
    let requests = Arc::clone(&timer);
    let handler = service_fn(move |request: Request<Incoming>| {
        handler(request, Busy::begin(Arc::clone(&requests))).map(Ok::<_, Infallible>)
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .half_close(options.half_close)
        .header_read_timeout(None)
        .max_buf_size(HEAD_BYTES_READ_MAX)
        .writev(options.writev);
    builder.http2().max_concurrent_streams(STREAMS_MAX).max_header_list_size(HEAD_LIST_BYTES_MAX);
    let mut shutdown = pin!(shutdown.fuse());
    let served = async {
        let (is_http2, stream) = tokio::select! {
            detected = Detected::read(stream) => detected?,
            // Nothing was asked yet.
            () = shutdown.as_mut() => return Ok(()),
        };
        let builder = if is_http2 { builder.http2_only() } else { builder.http1_only() };
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), handler));
        poll_fn(|context| {
            if shutdown.as_mut().poll(context).is_ready() {
                connection.as_mut().graceful_shutdown();
            }
            connection.as_mut().poll(context)
        })
        .await
    };
    tokio::select! {
        // Polled first, so that the timer starts before the first response, after which a test may advance the clock.
        biased;
        () = timer.expired() => tracing::debug!("a connection was idle for too long"),
        ended = served => {
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended early");
            }
        }
    }
}

/// Measures how long a connection has had no request in progress, or none whose client reads the response.
#[derive(Debug)]
struct IdleTimer {
    app: Arc<App>,
    unread_max: Option<Span>,
    state: Mutex<IdleState>,
}

#[derive(Clone, Copy, Debug)]
struct IdleState {
    /// Requests in progress.
    requests: usize,
    /// Those of them whose response waits for the client to read.
    unread: usize,
    /// When the last one ended, or began to wait.
    since: Timestamp,
}

impl IdleTimer {
    fn new(app: Arc<App>, unread_max: Option<Span>) -> Self {
        let state = Mutex::new(IdleState { requests: 0, unread: 0, since: app.now() });
        Self { app, unread_max, state }
    }

    fn state(&self) -> MutexGuard<'_, IdleState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves when there was no request in progress for [`HEAD_WAIT_MAX`], or every response was unread for too long.
    async fn expired(&self) {
        let clock = self.app.clock();
        loop {
            let IdleState { requests, unread, since } = *self.state();
            let now = clock.now();
            let at = match self.unread_max {
                _ if requests == 0 => Some(since + HEAD_WAIT_MAX),
                Some(most) if requests == unread => Some(since + most),
                _ => None,
            };
            match at {
                Some(at) if at <= now => return,
                Some(at) => clock.sleep_until(at).await,
                None => clock.sleep_until(now + HEAD_WAIT_MAX).await,
            }
        }
    }
}

/// A request in progress, which keeps its connection from being idle.
#[derive(Debug)]
pub struct Busy {
    timer: Arc<IdleTimer>,
    /// Whether the response waits for the client to read.
    is_unread: bool,
}

impl Busy {
    fn begin(timer: Arc<IdleTimer>) -> Self {
        timer.state().requests += 1;
        Self { timer, is_unread: false }
    }

    /// Notes that a part of the response was handed to the connection, which asks for the next part once the client has read
    /// enough: [`resume`](Self::resume). A connection whose responses all wait for that too long is closed.
    pub fn hand_over(&mut self) {
        let since = self.timer.app.now();
        let mut state = self.timer.state();
        state.unread += usize::from(!self.is_unread);
        state.since = since;
        self.is_unread = true;
    }

    /// Notes that the connection asks for the next part of the response.
    pub fn resume(&mut self) {
        if std::mem::take(&mut self.is_unread) {
            self.timer.state().unread -= 1;
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.resume();
        let since = self.timer.app.now();
        let mut state = self.timer.state();
        state.requests -= 1;
        state.since = since;
    }
}

/// The other end of an HTTP/1 connection.
pub(crate) trait Peer: Send + Sync {
    /// Ready once the peer has shut down its sending side.
    fn poll_end_of_input(&self, context: &mut Context<'_>) -> Poll<()>;
}

/// A stream that can be read ahead of its reader. Clones share it.
struct ReadAhead<S>(Arc<Mutex<ReadAheadState<S>>>);

struct ReadAheadState<S> {
    stream: S,
    ahead: Vec<u8>,
    is_at_end: bool,
}

impl<S> ReadAhead<S> {
    fn new(stream: S) -> Self {
        let state = ReadAheadState { stream, ahead: Vec::new(), is_at_end: false };
        Self(Arc::new(Mutex::new(state)))
    }

    fn lock(&self) -> MutexGuard<'_, ReadAheadState<S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S> Clone for ReadAhead<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: AsyncRead + Unpin + Send> Peer for ReadAhead<S> {
    fn poll_end_of_input(&self, context: &mut Context<'_>) -> Poll<()> {
        let state = &mut *self.lock();
        while !state.is_at_end {
            // A client that sends this much is connected.
            if AHEAD_BYTES_MAX <= state.ahead.len() {
                return Poll::Pending;
            }
            let mut buffer = [0; 512];
            let mut chunk = ReadBuf::new(&mut buffer);
            match Pin::new(&mut state.stream).poll_read(context, &mut chunk) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(read) => {
                    state.is_at_end = read.is_err() || chunk.filled().is_empty();
                    state.ahead.extend_from_slice(chunk.filled());
                }
            }
        }
        Poll::Ready(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadAhead<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let state = &mut *self.lock();
        if !state.ahead.is_empty() {
            let count = buffer.remaining().min(state.ahead.len());
            buffer.put_slice(&state.ahead[..count]);
            state.ahead.drain(..count);
            return Poll::Ready(Ok(()));
        }
        if state.is_at_end {
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut state.stream).poll_read(context, buffer);
        state.is_at_end = matches!(polled, Poll::Ready(Ok(())))
            && buffer.filled().len() == before
            && 0 < buffer.remaining();
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReadAhead<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.lock().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.lock().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.lock().stream).poll_shutdown(context)
    }
}
