//! One connection of HTTP, in either version.
//!
//! The bound on an idle connection and on the head of a request is one alarm on the server's clock: it counts from the
//! end of the last answer, so a client that sends its head byte by byte, or never takes its answer, does not put it off.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::Request;
use futures_util::FutureExt as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tollgate::Timestamp;

use super::Calls;
use super::peer::{Peer, ReadAhead};
use crate::access::Certificate;
use crate::app::App;
use crate::bounds::{HEAD_BYTES_MAX, HEAD_WAIT_MAX, STREAMS_MAX};

/// Serves `stream` until its client leaves or is idle for too long, or until `ends` resolves and what is in flight is done.
pub(crate) async fn serve<S>(
    stream: S,
    certificate: Option<Arc<Certificate>>,
    calls: Arc<Calls>,
    app: Arc<App>,
    ends: impl Future<Output = ()>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stream = ReadAhead::new(stream);
    let peer: Arc<dyn Peer> = Arc::new(stream.clone());
    let pulse = Arc::new(Pulse::new(Arc::clone(&app)));
    let counted = Arc::clone(&pulse);
    let service = service_fn(move |mut request: Request<Incoming>| {
        if let Some(certificate) = &certificate {
            request.extensions_mut().insert(Arc::clone(certificate));
        }
        let busy = Busy::begin(Arc::clone(&counted));
        let answer = calls.answer(request, Some(&peer));
        answer.map(move |response| {
            drop(busy);
            Ok::<_, Infallible>(response)
        })
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .half_close(true)
        .header_read_timeout(None)
        .max_buf_size(HEAD_BYTES_READ_MAX)
        .writev(false);
    builder.http2().max_concurrent_streams(STREAMS_MAX).max_header_list_size(HEAD_LIST_BYTES_MAX);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut ends = pin!(ends.fuse());
    let served = poll_fn(|context| {
        if ends.as_mut().poll(context).is_ready() {
            connection.as_mut().graceful_shutdown();
        }
        connection.as_mut().poll(context)
    });
    tokio::select! {
        // The time counts from before the first answer, after which a test may let it pass.
        biased;
        () = pulse.fades() => tracing::debug!("a connection was idle for too long"),
        ended = served => {
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended early");
            }
        }
    }
}

/// What is read of a head. It is more than a head may have, so that who sends a little too much is told so; what is
/// beyond it hyper refuses by status alone.
const HEAD_BYTES_READ_MAX: usize = 2 * HEAD_BYTES_MAX;

/// The same, as HTTP/2 counts it.
#[allow(clippy::cast_possible_truncation, reason = "the bound is small")]
const HEAD_LIST_BYTES_MAX: u32 = HEAD_BYTES_READ_MAX as u32;

/// Whether a connection does anything.
#[derive(Debug)]
struct Pulse {
    app: Arc<App>,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// Requests that are being answered.
    busy: usize,
    /// When the last one ended.
    since: Timestamp,
}

impl Pulse {
    fn new(app: Arc<App>) -> Self {
        let state = Mutex::new(State { busy: 0, since: app.now() });
        Self { app, state }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Resolves when nothing was being answered for [`HEAD_WAIT_MAX`].
    async fn fades(&self) {
        let clock = self.app.clock();
        loop {
            let State { busy, since } = *self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let (now, at) = (clock.now(), since + HEAD_WAIT_MAX);
            match (busy, at <= now) {
                (0, true) => return,
                (0, false) => clock.sleep_until(at).await,
                _ => clock.sleep_until(now + HEAD_WAIT_MAX).await,
            }
        }
    }
}

/// A request that is being answered.
struct Busy(Arc<Pulse>);

impl Busy {
    fn begin(pulse: Arc<Pulse>) -> Self {
        pulse.change(|state| state.busy += 1);
        Self(pulse)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let since = self.0.app.now();
        self.0.change(|state| *state = State { busy: state.busy - 1, since });
    }
}
