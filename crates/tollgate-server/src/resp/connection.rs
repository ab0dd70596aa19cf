//! One connection: read what is there, answer all of it, write once.
//!
//! Room for reading grows with what a connection sends at once, so ten thousand idle ones cost little. One that stops in
//! the middle of a request, sends nothing for [`IDLE_MAX`], or does not take its answers within [`WRITE_WAIT_MAX`] is
//! closed.

use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tollgate::{BoxFuture, Clock, Timestamp};

use super::frame::{self, Places};
use super::reply::Replies;
use super::{Resp, Words};
use crate::access::Session;
use crate::bounds::{IDLE_MAX, READ_BYTES_MAX, READ_BYTES_MIN, WRITE_BYTES_MAX, WRITE_WAIT_MAX};
use crate::within::within;

/// Serves `stream` until its client leaves, misbehaves or the server closes.
pub(crate) async fn serve<S>(stream: S, resp: Arc<Resp>, mut closing: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut connection = Connection {
        input: Vec::with_capacity(READ_BYTES_MIN),
        places: Places::new(),
        replies: Replies::default(),
        session: Session::new(),
        idle: Idle::new(resp.app.clock()),
        stream,
        resp,
    };
    if let Err(error) = connection.run(&mut closing).await {
        tracing::debug!(%error, "a connection ended early");
    }
    connection.close().await;
}

struct Connection<S> {
    stream: S,
    resp: Arc<Resp>,
    input: Vec<u8>,
    places: Places,
    replies: Replies,
    session: Session,
    idle: Idle,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    async fn run(&mut self, closing: &mut watch::Receiver<bool>) -> io::Result<()> {
        // One for all requests: to wait anew for each is to queue up anew. An error says that the server is gone, and so
        // closed.
        let mut closed = pin!(closing.wait_for(|closing| *closing));
        loop {
            let mut reading = pin!(self.stream.read_buf(&mut self.input));
            let clock = self.resp.app.clock();
            let read = poll_fn(|context| {
                if let Poll::Ready(read) = reading.as_mut().poll(context) {
                    return Poll::Ready(read);
                }
                let is_over = self.idle.is_over(clock, context);
                if is_over || closed.as_mut().poll(context).is_ready() {
                    return Poll::Ready(Ok(0));
                }
                Poll::Pending
            });
            if read.await? == 0 {
                return Ok(());
            }
            self.idle.touch(self.resp.app.now());
            let is_full = self.input.len() == self.input.capacity();
            let goes_on = self.answer_all().await?;
            self.flush().await?;
            if !goes_on {
                return Ok(());
            }
            if is_full {
                self.input.reserve(READ_BYTES_MAX.max(self.input.len()));
            }
        }
    }

    /// Answers every whole request that was read. Says whether the connection goes on.
    async fn answer_all(&mut self) -> io::Result<bool> {
        let mut done = 0;
        let goes_on = loop {
            match frame::find(&self.input[done..], &mut self.places) {
                Ok(None) => break true,
                Ok(Some(used)) => {
                    let words =
                        Words { bytes: &self.input[done..done + used], places: &self.places };
                    done += used;
                    if !self.resp.answer(words, &mut self.session, &mut self.replies).await {
                        break false;
                    }
                }
                Err(frame::Malformed(text)) => {
                    self.replies.error("ERR", &format!("Protocol error: {text}"));
                    break false;
                }
            }
            if WRITE_BYTES_MAX <= self.replies.bytes().len() {
                self.flush().await?;
            }
        };
        self.input.drain(..done);
        Ok(goes_on)
    }

    /// Says goodbye, which with TLS tells a client that nothing was cut off.
    async fn close(&mut self) {
        within(self.resp.app.clock(), WRITE_WAIT_MAX, self.stream.shutdown()).await;
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

/// When a connection has been idle for too long. One alarm serves many requests: it is set again only when it goes off.
struct Idle {
    since: Timestamp,
    alarm: BoxFuture<'static, ()>,
}

impl Idle {
    fn new(clock: &dyn Clock) -> Self {
        let since = clock.now();
        Self { since, alarm: clock.sleep_until(since + IDLE_MAX) }
    }

    fn touch(&mut self, now: Timestamp) {
        self.since = now;
    }

    /// Whether it has been; if not, `context` hears of it when it might.
    fn is_over(&mut self, clock: &dyn Clock, context: &mut Context<'_>) -> bool {
        while self.alarm.as_mut().poll(context).is_ready() {
            let at = self.since + IDLE_MAX;
            if at <= clock.now() {
                return true;
            }
            self.alarm = clock.sleep_until(at);
        }
        false
    }
}
