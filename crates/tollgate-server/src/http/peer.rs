//! Whether the client of a connection of HTTP/1 still sends.
//!
//! A client may shut down its sending side after its request and still wants the answer, so hyper is told to go on. One that
//! left looks the same. So an ask that waits for room reads ahead: once its client sends no more, it stops waiting.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::bounds::AHEAD_BYTES_MAX;

/// The other end of a connection.
pub(crate) trait Peer: Send + Sync {
    /// Ready once it sends no more.
    fn poll_silent(&self, context: &mut Context<'_>) -> Poll<()>;
}

/// A stream that can be read ahead of whoever reads it. Clones share it.
pub(super) struct ReadAhead<S>(Arc<Mutex<Inner<S>>>);

struct Inner<S> {
    stream: S,
    ahead: Vec<u8>,
    is_over: bool,
}

impl<S> ReadAhead<S> {
    pub(super) fn new(stream: S) -> Self {
        Self(Arc::new(Mutex::new(Inner { stream, ahead: Vec::new(), is_over: false })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner<S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S> Clone for ReadAhead<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: AsyncRead + Unpin + Send> Peer for ReadAhead<S> {
    fn poll_silent(&self, context: &mut Context<'_>) -> Poll<()> {
        let inner = &mut *self.lock();
        while !inner.is_over {
            // Who sends so much is there.
            if AHEAD_BYTES_MAX <= inner.ahead.len() {
                return Poll::Pending;
            }
            let mut room = [0; 512];
            let mut chunk = ReadBuf::new(&mut room);
            match Pin::new(&mut inner.stream).poll_read(context, &mut chunk) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(read) => {
                    inner.is_over = read.is_err() || chunk.filled().is_empty();
                    inner.ahead.extend_from_slice(chunk.filled());
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
        let inner = &mut *self.lock();
        if !inner.ahead.is_empty() {
            let count = buffer.remaining().min(inner.ahead.len());
            buffer.put_slice(&inner.ahead[..count]);
            inner.ahead.drain(..count);
            return Poll::Ready(Ok(()));
        }
        if inner.is_over {
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut inner.stream).poll_read(context, buffer);
        inner.is_over = matches!(polled, Poll::Ready(Ok(())))
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
