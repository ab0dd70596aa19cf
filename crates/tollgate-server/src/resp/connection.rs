//! One connection: read what is there, answer all of it, write once.
//!
//! Room for reading grows with what a connection sends at once, so ten thousand idle ones cost little. One that tries the
//! server's [`Patience`], or does not take its answers within [`WRITE_WAIT_MAX`], is closed. One that closes while its ask
//! waits for room takes the ask with it.
//!
//! Once the server closes or no longer trusts the client, what was read is answered and nothing more is read, however much a client sends.

use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::{io, mem};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::ahead::unless_left;
use super::frame::{self, Places};
use super::patience::Patience;
use super::reply::Replies;
use super::{Resp, Words, native};
use crate::access::{Certificate, Session};
use crate::bounds::{
    AHEAD_BYTES_MAX, LINGER_MAX, READ_BYTES_MAX, READ_BYTES_MIN, WRITE_BYTES_MAX, WRITE_WAIT_MAX,
};
use tollgate::within;

/// Serves `stream` until its client leaves or misbehaves, or `ends` resolves.
pub(crate) async fn serve<S>(
    stream: S,
    certificate: Option<Arc<Certificate>>,
    resp: Arc<Resp>,
    ends: impl Future<Output = ()>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut connection = Connection {
        input: Vec::with_capacity(READ_BYTES_MIN),
        ahead: Vec::new(),
        places: Places::new(),
        replies: Replies::default(),
        session: Session::new(certificate),
        patience: Patience::new(resp.app.clock(), resp.app.access().is_guarded()),
        stream,
        resp,
    };
    let is_talking = connection.run(pin!(ends)).await.unwrap_or_else(|error| {
        tracing::debug!(%error, "a connection ended early");
        false
    });
    connection.close(is_talking).await;
}

struct Connection<S> {
    stream: S,
    resp: Arc<Resp>,
    input: Vec<u8>,
    /// What came while an answer waited.
    ahead: Vec<u8>,
    places: Places,
    replies: Replies,
    session: Session,
    patience: Patience,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Answers until the connection ends. Says whether the client may be sending still.
    async fn run(&mut self, mut ends: Pin<&mut impl Future<Output = ()>>) -> io::Result<bool> {
        loop {
            let mut reading = pin!(self.stream.read_buf(&mut self.input));
            let clock = self.resp.app.clock();
            let mut is_idle = false;
            let read = poll_fn(|context| {
                // Before the read: a client that always has more to say would never let it come to this.
                if ends.as_mut().poll(context).is_ready() {
                    is_idle &= reading.as_mut().poll(context).is_pending();
                    return Poll::Ready(Ok(0));
                }
                if let Poll::Ready(read) = reading.as_mut().poll(context) {
                    return Poll::Ready(read);
                }
                is_idle = true;
                if self.patience.is_over(clock, context) {
                    return Poll::Ready(Ok(0));
                }
                Poll::Pending
            });
            if read.await? == 0 {
                return Ok(!is_idle);
            }
            let is_full = self.input.len() == self.input.capacity();
            let goes_on = self.answer_all().await?;
            self.flush().await?;
            if !goes_on {
                return Ok(true);
            }
            if is_full {
                self.input.reserve(READ_BYTES_MAX.max(self.input.len()));
            }
        }
    }

    /// Answers every whole request that was read. Says whether the connection goes on.
    async fn answer_all(&mut self) -> io::Result<bool> {
        let (mut done, mut has_ended) = (0, false);
        let goes_on = loop {
            match frame::find(&self.input[done..], &mut self.places) {
                Ok(None) => break true,
                Ok(Some(used)) => {
                    let request = done..done + used;
                    done += used;
                    // Nobody waits for the answers to those in front.
                    if !self.replies.bytes().is_empty() && native::may_wait(self.words(&request)) {
                        self.flush().await?;
                    }
                    let words = Words { bytes: &self.input[request], places: &self.places };
                    has_ended = true;
                    let answer = self.resp.answer(words, &mut self.session, &mut self.replies);
                    let mut answer = pin!(answer);
                    let first = poll_fn(|context| Poll::Ready(answer.as_mut().poll(context)));
                    let goes_on = match first.await {
                        Poll::Ready(goes_on) => goes_on,
                        Poll::Pending if native::waits(words) => {
                            let room = AHEAD_BYTES_MAX.saturating_sub(self.input.len() - done);
                            let (stream, ahead) = (&mut self.stream, &mut self.ahead);
                            unless_left(answer, stream, ahead, room).await.unwrap_or(false)
                        }
                        Poll::Pending => answer.await,
                    };
                    if !goes_on {
                        break false;
                    }
                }
                Err(frame::Malformed(text)) => {
                    self.replies.error("ERR", &format!("Protocol error: {text}"));
                    break false;
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
        let app = &self.resp.app;
        let is_stranger = self.session.check(None, app.access(), || app.now()).is_err();
        self.patience.heard(app.clock(), has_ended, !self.input.is_empty(), is_stranger);
        Ok(goes_on)
    }

    /// The words of the request that was found last.
    fn words(&self, request: &Range<usize>) -> Words<'_> {
        Words { bytes: &self.input[request.clone()], places: &self.places }
    }

    /// Says goodbye, which with TLS tells a client that nothing was cut off. To close while something of a client that
    /// `is_talking` is unread would be a reset, which takes answers with it that are on their way; so it is heard out.
    async fn close(&mut self, is_talking: bool) {
        let clock = self.resp.app.clock();
        let is_shut = within(clock, WRITE_WAIT_MAX, self.stream.shutdown()).await;
        if !is_talking || !matches!(is_shut, Some(Ok(()))) {
            return;
        }
        let hear_out = async {
            loop {
                self.input.clear();
                if !matches!(self.stream.read_buf(&mut self.input).await, Ok(1..)) {
                    break;
                }
            }
        };
        within(clock, LINGER_MAX, hear_out).await;
    }

    async fn flush(&mut self) -> io::Result<()> {
        let writing = self.stream.write_all(self.replies.bytes());
        let written = within(self.resp.app.clock(), WRITE_WAIT_MAX, writing).await;
        let late = || io::Error::new(io::ErrorKind::TimedOut, "answers were not taken");
        written.ok_or_else(late)??;
        self.replies.clear();
        Ok(())
    }
}
