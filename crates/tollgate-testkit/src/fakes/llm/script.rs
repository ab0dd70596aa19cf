//! A response body as a list of pieces: bytes, waits, and how it ends.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame};
use tollgate::gate::BoxFuture;
use tollgate::{Clock, Span};

use super::call::Call;

/// What happens next on a response body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Sends bytes that bring so many tokens of output.
    Send(Bytes, u64),
    Wait(Span),
    /// Lets the server write what it has before an error discards it.
    Flush,
    /// Sends nothing more and leaves the connection open.
    Stall,
    /// Closes the connection.
    Cut,
    /// Ends the answer as the provider sees it.
    Complete,
}

/// A body that performs its pieces.
pub(super) struct Script {
    pieces: VecDeque<Piece>,
    clock: Arc<dyn Clock>,
    sleep: Option<BoxFuture<'static, ()>>,
    call: Option<Call>,
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script").field("pieces", &self.pieces).finish_non_exhaustive()
    }
}

impl Script {
    pub(super) fn new(pieces: Vec<Piece>, clock: Arc<dyn Clock>, call: Option<Call>) -> Self {
        Self { pieces: pieces.into(), clock, sleep: None, call }
    }

    fn complete(&mut self) {
        if let Some(call) = self.call.take() {
            call.complete();
        }
    }
}

impl Body for Script {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let script = self.get_mut();
        loop {
            if let Some(sleep) = &mut script.sleep {
                std::task::ready!(sleep.as_mut().poll(context));
                script.sleep = None;
            }
            match script.pieces.pop_front() {
                None => return Poll::Ready(None),
                Some(Piece::Send(bytes, output)) => {
                    if let Some(call) = &mut script.call {
                        call.sent(output);
                    }
                    // A body of known length is not asked again after its last byte.
                    if script.pieces.front() == Some(&Piece::Complete) {
                        script.complete();
                    }
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                Some(Piece::Wait(span)) => {
                    script.sleep = Some(script.clock.sleep_until(script.clock.now() + span));
                }
                Some(Piece::Flush) => {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Some(Piece::Stall) => {
                    script.pieces.push_front(Piece::Stall);
                    return Poll::Pending;
                }
                Some(Piece::Cut) => {
                    let cut = io::Error::other("the fake closes the connection");
                    return Poll::Ready(Some(Err(cut)));
                }
                Some(Piece::Complete) => script.complete(),
            }
        }
    }
}
