//! Whether a call was sent, decided once: either the connection took the body first, or the call was given up first.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};

const UNSENT: u8 = 0;
const SENT: u8 = 1;
const GIVEN_UP: u8 = 2;

/// Shared by a call and the body of its request.
#[derive(Debug, Default)]
pub(crate) struct SendState(AtomicU8);

impl SendState {
    fn decide(&self, to: u8) -> u8 {
        let (order, failed) = (Ordering::AcqRel, Ordering::Acquire);
        self.0.compare_exchange(UNSENT, to, order, failed).err().unwrap_or(to)
    }

    /// Gives up sending. Returns whether nothing was sent, and nothing will be.
    pub(crate) fn give_up(&self) -> bool {
        self.decide(GIVEN_UP) == GIVEN_UP
    }

    pub(crate) fn is_sent(&self) -> bool {
        self.0.load(Ordering::Acquire) == SENT
    }
}

/// The body of a request. The connection asks for it after it has encoded the head, so the call counts as sent from then on. A call
/// that was given up before is cut off without its body, so no provider processes it.
#[derive(Debug)]
pub(crate) struct RequestBody {
    bytes: Option<Bytes>,
    state: Arc<SendState>,
}

impl RequestBody {
    pub(crate) fn new(bytes: Bytes, state: &Arc<SendState>) -> Self {
        if bytes.is_empty() {
            // Never polled.
            let _sent = state.decide(SENT);
            return Self { bytes: None, state: Arc::clone(state) };
        }
        Self { bytes: Some(bytes), state: Arc::clone(state) }
    }
}

/// The call was given up before it was sent.
#[derive(Debug)]
pub(crate) struct GivenUp;

impl fmt::Display for GivenUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the call was given up before it was sent")
    }
}

impl std::error::Error for GivenUp {}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = GivenUp;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, GivenUp>>> {
        let Some(bytes) = self.bytes.take() else { return Poll::Ready(None) };
        if self.state.decide(SENT) == SENT {
            Poll::Ready(Some(Ok(Frame::data(bytes))))
        } else {
            Poll::Ready(Some(Err(GivenUp)))
        }
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let bytes = self.bytes.as_ref().map_or(0, Bytes::len);
        SizeHint::with_exact(u64::try_from(bytes).unwrap_or(u64::MAX))
    }
}
