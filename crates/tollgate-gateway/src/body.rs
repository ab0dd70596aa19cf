//! Reading of request bodies, bounded each and all together.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http_body_util::BodyExt as _;
use hyper::HeaderMap;
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::CONTENT_ENCODING;
use tollgate::Span;
use tollgate_providers::ErrorCode;

use crate::bounds::{BODY_IDLE_MAX, BODY_WAIT_MAX, REFUSED_BODY_BYTES_MAX, REFUSED_BODY_IDLE_MAX};
use crate::call_timer::CallTimer;
use crate::config::Limits;
use crate::gateway::Shared;
use crate::observe::RefusalReason;
use crate::refusal::Refusal;

/// A request body, which counts against the bytes that the gateway holds until it is dropped.
#[derive(Debug)]
pub(crate) struct HeldBody {
    shared: Arc<Shared>,
    held: usize,
    pub(crate) bytes: Bytes,
}

impl HeldBody {
    /// Reserves `more` bytes.
    fn hold(&mut self, more: usize, limits: &Limits) -> Result<(), Refusal> {
        let held = self.shared.held_bytes.fetch_add(more, Ordering::Relaxed);
        self.held += more;
        if limits.queue_bytes_max < held.saturating_add(more) {
            return Err(Refusal::full("bytes of requests"));
        }
        Ok(())
    }

    /// Reads `body`, bounded in size and time.
    pub(crate) async fn read(
        shared: &Arc<Shared>,
        limits: &Limits,
        headers: &HeaderMap,
        body: &mut Incoming,
        timer: &mut CallTimer,
    ) -> Result<Self, Refusal> {
        let until = shared.app.clock().monotonic().plus(BODY_WAIT_MAX);
        if let Some(coding) = headers.get(CONTENT_ENCODING).filter(|coding| *coding != "identity") {
            let text = format!("send the body as it is, without content-encoding: {coding:?}");
            return Err(Refusal::invalid(text));
        }
        let mut held = Self { shared: Arc::clone(shared), held: 0, bytes: Bytes::new() };
        let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        if limits.body_bytes_max < announced {
            return Err(too_large(limits));
        }
        held.hold(announced, limits)?;
        let mut whole = Vec::new();
        while let Some(frame) = next(shared, body, timer, (BODY_IDLE_MAX, until)).await? {
            let size = held.bytes.len() + whole.len() + frame.len();
            if limits.body_bytes_max < size {
                return Err(too_large(limits));
            }
            if held.held < size {
                held.hold(size - held.held, limits)?;
            }
            if held.bytes.is_empty() && whole.is_empty() {
                // Most bodies arrive in one piece, which is not copied.
                held.bytes = frame;
            } else {
                if whole.is_empty() {
                    whole.reserve_exact(announced.max(size));
                    whole.extend_from_slice(&std::mem::take(&mut held.bytes));
                }
                whole.extend_from_slice(&frame);
            }
        }
        if !whole.is_empty() {
            held.bytes = whole.into();
        }
        Ok(held)
    }
}

impl Drop for HeldBody {
    fn drop(&mut self) {
        self.shared.held_bytes.fetch_sub(self.held, Ordering::Relaxed);
    }
}

fn too_large(limits: &Limits) -> Refusal {
    let text = format!("a body has at most {} bytes; send less at once", limits.body_bytes_max);
    Refusal::new(ErrorCode::TooLarge, RefusalReason::Invalid, text)
}

/// Reads the next part of `body`: within `idle_max`, and before the monotonic time `until`.
async fn next(
    shared: &Shared,
    body: &mut Incoming,
    timer: &mut CallTimer,
    (idle_max, until): (Span, Span),
) -> Result<Option<Bytes>, Refusal> {
    let clock = shared.app.clock();
    loop {
        let idle_until = clock.monotonic().plus(idle_max);
        let frame = timer.timeout_at(clock, idle_until.min(until), body.frame()).await;
        let frame = frame.ok_or_else(|| {
            Refusal::invalid(if until <= idle_until {
                format!("the body did not arrive within {BODY_WAIT_MAX}")
            } else {
                format!("the body did not arrive: nothing for {idle_max}")
            })
        })?;
        match frame {
            None => return Ok(None),
            Some(Err(_)) => return Err(Refusal::invalid("the body did not arrive whole")),
            Some(Ok(frame)) => {
                if let Ok(bytes) = frame.into_data() {
                    return Ok(Some(bytes));
                }
            }
        }
    }
}

/// Reads and discards the rest of a refused request, up to a bound: a client that is still sending would not read the refusal.
pub(crate) async fn discard(shared: &Shared, body: &mut Incoming) {
    let until = shared.app.clock().monotonic().plus(BODY_IDLE_MAX);
    let (mut timer, bounds) = (CallTimer::default(), (REFUSED_BODY_IDLE_MAX, until));
    let mut left = REFUSED_BODY_BYTES_MAX;
    while let Ok(Some(bytes)) = next(shared, body, &mut timer, bounds).await {
        left = left.saturating_sub(bytes.len());
        if left == 0 {
            return;
        }
    }
}
