//! The body of a response: copied to the client while usage is read beside the copy.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tollgate::Span;
use tollgate_providers::{Dialect, StreamReader, UsageStripper};
use tollgate_server::Busy;

use crate::bounds::RESPONSE_BYTES_MAX;
use crate::call_timer::CallTimer;
use crate::gateway::Shared;
use crate::observe::Ending;
use crate::open_call::OpenCall;
use crate::upstream::Lease;

/// The error of a response that broke off.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a response to a client.
pub(crate) enum GatewayBody {
    /// A body of the gateway itself.
    Own(Option<Bytes>),
    /// A body of an upstream.
    Relay(Box<Relay>),
}

/// A response in progress.
pub(crate) struct Relay {
    incoming: Incoming,
    shared: Arc<Shared>,
    reader: Reader,
    stripper: Option<UsageStripper>,
    /// `None` after the end, and for calls that cost nothing.
    call: Option<OpenCall>,
    lease: Option<Lease>,
    /// How long the upstream may be silent.
    idle_max: Span,
    /// When it sent something last, on the monotonic clock.
    heard: Span,
    timer: CallTimer,
    busy: Busy,
}

/// What a response in progress takes over from the handler of its call.
pub(crate) struct During {
    pub(crate) busy: Busy,
    pub(crate) timer: CallTimer,
    /// How long the upstream may be silent.
    pub(crate) idle_max: Span,
}

/// Reads the usage of a response.
pub(crate) enum Reader {
    /// There is none to read.
    Nothing,
    /// At the end of the whole body, which is kept in the pieces that it arrived in.
    Whole(Vec<Bytes>, usize),
    /// As it streams.
    Stream(Box<StreamReader>),
}

impl Relay {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        (incoming, lease): (Incoming, Lease),
        (reader, stripper): (Reader, Option<UsageStripper>),
        call: Option<OpenCall>,
        During { busy, timer, idle_max }: During,
    ) -> Self {
        let mut relay = Self {
            heard: shared.app.clock().monotonic(),
            idle_max,
            timer,
            shared: Arc::clone(shared),
            incoming,
            reader,
            stripper,
            call,
            lease: Some(lease),
            busy,
        };
        if relay.incoming.is_end_stream() {
            relay.complete();
        }
        relay
    }

    /// Reads `bytes`, and returns what the client gets of them.
    fn pass(&mut self, bytes: Bytes) -> Bytes {
        match &mut self.reader {
            Reader::Nothing => {}
            Reader::Whole(pieces, size) => {
                *size += bytes.len();
                if *size <= RESPONSE_BYTES_MAX {
                    pieces.push(bytes.clone());
                } else {
                    self.reader = Reader::Nothing;
                }
            }
            Reader::Stream(reader) => reader.feed(&bytes),
        }
        let Some(stripper) = &mut self.stripper else { return bytes };
        let mut stripped = Vec::with_capacity(bytes.len());
        stripper.feed(&bytes, &mut stripped);
        stripped.into()
    }

    /// Ends the call after the whole response.
    fn complete(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.keep(self.shared.app.now());
        }
        let Some(call) = self.call.take() else { return };
        match &mut self.reader {
            Reader::Nothing => call.complete(None, None),
            Reader::Whole(pieces, _) => {
                let body = whole(pieces);
                match call.context.call.read_response(&body) {
                    // The client reads what there is; the provider may have processed the call.
                    None if !call.context.call.is_whole_response(&body) => {
                        call.broken(Ending::UpstreamFailed, None);
                    }
                    usage => call.complete(usage.as_ref(), None),
                }
            }
            Reader::Stream(reader) => {
                reader.finish();
                if is_final(&call, reader) {
                    call.complete(reader.usage().as_ref(), Some(reader));
                } else {
                    call.broken(Ending::UpstreamFailed, Some(reader));
                }
            }
        }
    }

    /// Ends the call in the middle of the response.
    fn break_off(&mut self, ending: Ending) {
        let Some(call) = self.call.take() else { return };
        match &mut self.reader {
            // A client may leave at the last event, without waiting for the end of the body.
            Reader::Stream(reader) if is_final(&call, reader) => {
                call.complete(reader.usage().as_ref(), Some(reader));
            }
            Reader::Stream(reader) => call.broken(ending, Some(reader)),
            _ => call.broken(ending, None),
        }
    }

    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.busy.resume();
        loop {
            let Poll::Ready(frame) = Pin::new(&mut self.incoming).poll_frame(context) else {
                let silent_until = self.heard.plus(self.idle_max);
                ready!(self.timer.poll(self.shared.app.clock(), silent_until, context));
                self.break_off(Ending::UpstreamFailed);
                return Poll::Ready(Some(Err("the upstream was silent for too long".into())));
            };
            match frame {
                Some(Ok(frame)) => {
                    self.heard = self.shared.app.clock().monotonic();
                    let frame = match frame.into_data() {
                        Ok(bytes) => {
                            let bytes = self.pass(bytes);
                            // The server may not poll again after the last byte that was announced.
                            if self.stripper.is_none() && self.incoming.is_end_stream() {
                                self.complete();
                            }
                            if bytes.is_empty() {
                                continue;
                            }
                            Frame::data(bytes)
                        }
                        Err(frame) => frame,
                    };
                    self.busy.hand_over();
                    return Poll::Ready(Some(Ok(frame)));
                }
                Some(Err(error)) => {
                    self.break_off(Ending::UpstreamFailed);
                    return Poll::Ready(Some(Err(error.into())));
                }
                None => {
                    self.complete();
                    let mut rest = Vec::new();
                    if let Some(mut stripper) = self.stripper.take() {
                        stripper.finish(&mut rest);
                    }
                    let rest = (!rest.is_empty()).then(|| Ok(Frame::data(rest.into())));
                    return Poll::Ready(rest);
                }
            }
        }
    }
}

/// The client disconnected.
impl Drop for Relay {
    fn drop(&mut self) {
        self.break_off(Ending::ClientGone);
    }
}

/// Returns whether the usage of a stream is that of the whole. A server that is compatible with OpenAI may omit the last event, but
/// reports usage only at the end.
fn is_final(call: &OpenCall, reader: &StreamReader) -> bool {
    let is_openai = call.context.call.dialect() == Dialect::OpenAi;
    reader.error().is_none() && (reader.is_complete() || is_openai && reader.usage().is_some())
}

/// Joins the pieces of a body; a single one is not copied.
fn whole(pieces: &[Bytes]) -> Bytes {
    match pieces {
        [piece] => piece.clone(),
        pieces => pieces.concat().into(),
    }
}

impl Body for GatewayBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Own(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Relay(relay) => relay.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(bytes) => bytes.is_none(),
            Self::Relay(relay) => relay.stripper.is_none() && relay.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(bytes) => {
                let bytes = bytes.as_ref().map_or(0, Bytes::len);
                SizeHint::with_exact(u64::try_from(bytes).unwrap_or(u64::MAX))
            }
            Self::Relay(relay) if relay.stripper.is_none() => relay.incoming.size_hint(),
            Self::Relay(_) => SizeHint::default(),
        }
    }
}
