//! One connection: reads what is there, answers all of it, writes once.
//!
//! The read buffer grows with what a connection sends at once, so that ten thousand idle ones cost little. A connection
//! that misses its [`ReadDeadline`], or does not accept replies within [`WRITE_WAIT_MAX`], is closed. A client that
//! disconnects while its ask waits for room cancels the ask.
//!
//! Once the server shuts down or no longer trusts the client, buffered requests are answered and nothing more is read.

use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::{io, mem};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tollgate::internal::timeout;

use super::RespService;
use super::args::Args;
use super::commands::{self, Flow};
use super::frame;
use super::read_deadline::ReadDeadline;
use super::replies::Replies;
use crate::access::{Certificate, Session};
use crate::bounds::{
    AHEAD_BYTES_MAX, LINGER_MAX, READ_BYTES_MAX, READ_BYTES_MIN, WRITE_BYTES_MAX, WRITE_WAIT_MAX,
};

/// Serves `stream` until its client disconnects or misbehaves, or `shutdown` resolves.
pub(super) async fn serve<S>(
    stream: S,
    certificate: Option<Arc<Certificate>>,
    service: Arc<RespService>,
    shutdown: impl Future<Output = ()>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let is_guarded = service.app.access().is_guarded();
    let read_deadline = ReadDeadline::new(service.app.clock(), is_guarded);
    let mut connection = Connection {
        input: Vec::with_capacity(READ_BYTES_MIN),
        ahead: Vec::new(),
        arg_ranges: Vec::new(),
        replies: Replies::default(),
        session: Session::new(certificate),
        read_deadline,
        stream,
        service,
    };
    let may_send = connection.run(pin!(shutdown)).await.unwrap_or_else(|error| {
        tracing::debug!(%error, "a connection ended early");
        false
    });
    connection.close(may_send).await;
}

struct Connection<S> {
    stream: S,
    service: Arc<RespService>,
    input: Vec<u8>,
    /// Input that arrived while a request waited.
    ahead: Vec<u8>,
    arg_ranges: Vec<Range<usize>>,
    replies: Replies,
    session: Session,
    read_deadline: ReadDeadline,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Answers requests until the connection ends. Returns whether the client may still be sending.
    async fn run(&mut self, mut shutdown: Pin<&mut impl Future<Output = ()>>) -> io::Result<bool> {
        loop {
            let mut reading = pin!(self.stream.read_buf(&mut self.input));
            let clock = self.service.app.clock();
            let mut is_idle = false;
            let read = poll_fn(|context| {
                // Before the read: a client that always has more to send would starve it.
                if shutdown.as_mut().poll(context).is_ready() {
                    is_idle &= reading.as_mut().poll(context).is_pending();
                    return Poll::Ready(Ok(0));
                }
                if let Poll::Ready(read) = reading.as_mut().poll(context) {
                    return Poll::Ready(read);
                }
                is_idle = true;
                if self.read_deadline.is_over(clock, context) {
                    return Poll::Ready(Ok(0));
                }
                Poll::Pending
            });
            if read.await? == 0 {
                return Ok(!is_idle);
            }
            let is_full = self.input.len() == self.input.capacity();
            let flow = self.answer_all().await?;
            self.flush().await?;
            if flow == Flow::Close {
                return Ok(true);
            }
            if is_full {
                self.input.reserve(READ_BYTES_MAX.max(self.input.len()));
            }
        }
    }

    /// Answers every complete request that was read.
    async fn answer_all(&mut self) -> io::Result<Flow> {
        let (mut done, mut has_ended) = (0, false);
        let flow = loop {
            match frame::find(&self.input[done..], &mut self.arg_ranges) {
                Ok(None) => break Flow::Continue,
                Ok(Some(used)) => {
                    let request = done..done + used;
                    done += used;
                    // A request that waits must not delay the replies to those before it.
                    if !self.replies.bytes().is_empty() && commands::may_wait(self.args(&request)) {
                        self.flush().await?;
                    }
                    let args = Args { bytes: &self.input[request], ranges: &self.arg_ranges };
                    has_ended = true;
                    let (session, replies) = (&mut self.session, &mut self.replies);
                    let mut command = pin!(commands::run(&self.service, args, session, replies));
                    let first = poll_fn(|context| Poll::Ready(command.as_mut().poll(context)));
                    let flow = match first.await {
                        Poll::Ready(flow) => flow,
                        Poll::Pending if commands::waits(args) => {
                            let room = AHEAD_BYTES_MAX.saturating_sub(self.input.len() - done);
                            let (stream, ahead) = (&mut self.stream, &mut self.ahead);
                            let flow = while_connected(command, stream, ahead, room).await;
                            flow.unwrap_or(Flow::Close)
                        }
                        Poll::Pending => command.await,
                    };
                    if flow == Flow::Close {
                        break flow;
                    }
                }
                Err(frame::Malformed(text)) => {
                    self.replies.error("ERR", &format!("Protocol error: {text}"));
                    break Flow::Close;
                }
            }
            if !self.ahead.is_empty() {
                self.input.drain(..done);
                done = 0;
                self.input.append(&mut mem::take(&mut self.ahead));
            }
            if WRITE_BYTES_MAX <= self.replies.bytes().len() {
                self.flush().await?;
            }
        };
        self.input.drain(..done);
        let app = &self.service.app;
        let is_unauthenticated = self.session.check(None, app.access(), || app.now()).is_err();
        let is_midway = !self.input.is_empty();
        self.read_deadline.extend(app.clock(), has_ended, is_midway, is_unauthenticated);
        Ok(flow)
    }

    /// Returns the arguments of the request that was found last.
    fn args(&self, request: &Range<usize>) -> Args<'_> {
        Args { bytes: &self.input[request.clone()], ranges: &self.arg_ranges }
    }

    /// Shuts the stream down; with TLS that tells the client that nothing was truncated. Closing a socket with unread
    /// input resets the connection, which discards replies in flight, so the input of a client that `may_send` is
    /// drained first.
    async fn close(&mut self, may_send: bool) {
        let clock = self.service.app.clock();
        let is_shut = timeout(clock, WRITE_WAIT_MAX, self.stream.shutdown()).await;
        if !may_send || !matches!(is_shut, Some(Ok(()))) {
            return;
        }
        let drain = async {
            loop {
                self.input.clear();
                if !matches!(self.stream.read_buf(&mut self.input).await, Ok(1..)) {
                    break;
                }
            }
        };
        timeout(clock, LINGER_MAX, drain).await;
    }

    async fn flush(&mut self) -> io::Result<()> {
        let writing = self.stream.write_all(self.replies.bytes());
        let written = timeout(self.service.app.clock(), WRITE_WAIT_MAX, writing).await;
        let late = || io::Error::new(io::ErrorKind::TimedOut, "replies were not accepted");
        written.ok_or_else(late)??;
        self.replies.clear();
        Ok(())
    }
}

/// Runs `command`, reading ahead to notice a disconnect; `None` if the client disconnects first.
///
/// Only asks that wait are cancelled: other commands run to completion even if the client disconnects. Input goes to
/// `ahead`, at most `room` bytes; a client that has sent as much is no longer watched.
async fn while_connected<T>(
    mut command: Pin<&mut impl Future<Output = T>>,
    stream: &mut (impl AsyncRead + Unpin),
    ahead: &mut Vec<u8>,
    room: usize,
) -> Option<T> {
    let mut stream = stream.take(u64::try_from(room).unwrap_or(u64::MAX));
    while 0 < stream.limit() {
        tokio::select! {
            biased;
            output = &mut command => return Some(output),
            read = stream.read_buf(ahead) => match read {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            },
        }
    }
    Some(command.await)
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_disconnect_ends_the_wait() {
        let (mut client, mut stream) = tokio::io::duplex(64);
        client.write_all(b"PING\r\n").await.unwrap();
        drop(client);
        let mut ahead = Vec::new();
        let command = pin!(pending::<()>());
        assert_eq!(while_connected(command, &mut stream, &mut ahead, 64).await, None);
    }

    /// No more than there is room for is read, and no byte is lost.
    #[tokio::test]
    async fn reading_ahead_is_bounded() {
        let (mut client, mut stream) = tokio::io::duplex(64);
        client.write_all(&[b'x'; 10]).await.unwrap();
        let mut ahead = vec![b'a'];
        let (sender, receiver) = oneshot::channel();
        let mut receiver = pin!(receiver);
        {
            let mut waiting = pin!(while_connected(receiver.as_mut(), &mut stream, &mut ahead, 7));
            let polled = poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context))).await;
            assert!(polled.is_pending());
            sender.send(3).unwrap();
            assert_eq!(waiting.await, Some(Ok(3)));
        }
        assert_eq!(ahead, b"axxxxxxx");
        let mut left = [0; 3];
        stream.read_exact(&mut left).await.unwrap();
        assert_eq!(&left, b"xxx");
    }
}
