//! Sends a call to the store or to a broker, and waits for room in the same way for both.

use std::sync::Arc;

use tollgate::internal::edge::random;
use tollgate::retry::Backoff;
use tollgate::{Clock, Span, Timestamp};
use tollgate_protocol::json::{AcquireRequest, AcquireResponse, Denied};
use tollgate_server::bounds::WAIT_MAX;

use crate::call::Call;
use crate::call::Reply;
use crate::local::Local;
use crate::remote::Remote;
use tollgate_terminal::Failure;

/// How often a command that waits for a slot asks again: another process may release one at any time.
const SLOT_POLL_INTERVAL: Span = Span::from_millis(250);

/// Commands that wait for the same instant are spread over this time.
const JITTER_MICROS_MAX: u32 = 20_000;

/// Where calls go.
#[derive(Debug)]
pub(crate) enum Backend {
    Local(Box<Local>),
    Remote(Box<Remote>),
}

impl Backend {
    /// Makes `call`, and repeats an ask that is denied until its `wait_ms` has passed, after the delays of `backoff` if there
    /// is one.
    pub(crate) async fn answer(
        &self,
        call: &Call,
        backoff: Option<Backoff>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Reply, Failure> {
        match call {
            Call::Acquire(request) if request.wait_ms.is_some_and(|wait| 0 < wait) => {
                self.answer_until(request.clone(), backoff, clock).await
            }
            call => self.answer_once(call).await,
        }
    }

    async fn answer_once(&self, call: &Call) -> Result<Reply, Failure> {
        match self {
            Self::Local(local) => local.answer(call).await,
            Self::Remote(remote) => remote.answer(call).await,
        }
    }

    /// Asks, sleeps until the promised time or longer with `backoff`, and asks again, until the deadline. The store is closed
    /// while it sleeps.
    async fn answer_until(
        &self,
        mut request: AcquireRequest,
        backoff: Option<Backoff>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Reply, Failure> {
        let deadline = clock.now() + Span::from_millis(request.wait_ms.unwrap_or(0));
        // Not `tollgate::retry::Retry`: a broker waits itself, for the time that is left at each attempt.
        let mut attempt = 0;
        loop {
            let left = deadline.since(clock.now());
            // With a back-off the broker must not wait until the promised time.
            request.wait_ms = if backoff.is_some() { None } else { self.broker_wait_ms(left) };
            let reply = self.answer_once(&Call::Acquire(request.clone())).await?;
            let Reply::Decided(AcquireResponse::Denied(denied)) = &reply else { return Ok(reply) };
            let now = clock.now();
            let pause = backoff.map_or(Span::ZERO, |backoff| backoff.delay(attempt, random()));
            let retry_at = self.retry_at(denied, now).map(|at| at.max(now + pause));
            let Some(retry_at) = retry_at.filter(|at| *at <= deadline) else {
                return Ok(reply);
            };
            attempt = attempt.saturating_add(1);
            let jitter = Span::from_micros(u64::from(random() % JITTER_MICROS_MAX));
            clock.sleep_until((retry_at + jitter).min(deadline)).await;
        }
    }

    /// Returns how long a broker waits by itself, which keeps waiting asks in order.
    fn broker_wait_ms(&self, left: Span) -> Option<u64> {
        match self {
            Self::Local(_) => None,
            Self::Remote(_) => Some(left.min(WAIT_MAX).as_millis_ceil()),
        }
    }

    /// Returns when to ask again; `None` if that cannot help.
    fn retry_at(&self, denied: &Denied, now: Timestamp) -> Option<Timestamp> {
        let at = match self {
            Self::Local(_) => denied.reset_at?,
            // The clock of a broker may differ, so a duration counts there.
            Self::Remote(_) => now + Span::from_millis(denied.retry_after_ms?),
        };
        Some(if denied.estimated { at.min(now + SLOT_POLL_INTERVAL) } else { at })
    }
}
