//! One connection: read what is there, answer all of it, write once.
//!
//! Room for reading grows with what a connection sends at once, so ten thousand idle ones cost little. One that stops in
//! the middle of a request, sends nothing for [`IDLE_MAX`], or does not take its answers within [`WRITE_WAIT_MAX`] is
//! closed.

use std::io;
use std::sync::Arc;

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
        loop {
            let read = tokio::select! {
                biased;
                read = self.stream.read_buf(&mut self.input) => read?,
                () = self.idle.reached(self.resp.app.clock()) => 0,
                // An error says that the server is gone, and so closed.
                _ = closing.wait_for(|closing| *closing) => 0,
            };
            if read == 0 {
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

    async fn reached(&mut self, clock: &dyn Clock) {
        loop {
            self.alarm.as_mut().await;
            let at = self.since + IDLE_MAX;
            if at <= clock.now() {
                return;
            }
            self.alarm = clock.sleep_until(at);
        }
    }
}
