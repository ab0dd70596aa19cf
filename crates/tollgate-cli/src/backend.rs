//! Who answers: the store that is opened here, or a broker; and waiting, which is the same for both.

use std::sync::Arc;

use tollgate::edge::random;
use tollgate::{Backoff, Clock, Span, Timestamp};
use tollgate_server::bounds::WAIT_MAX;
use tollgate_server::wire::{AcquireRequest, Answer, Denied};

use crate::failure::Failure;
use crate::intent::Call;
use crate::local::Local;
use crate::remote::Remote;
use crate::reply::Reply;

/// How long a command waits at most before it looks whether somebody in another process released a slot.
const SLOT_LOOK: Span = Span::from_millis(250);

/// Commands that wait for the same moment come back spread over this time.
const JITTER_MICROS_MAX: u32 = 20_000;

/// Who answers.
#[derive(Debug)]
pub(crate) enum Backend {
    Local(Box<Local>),
    Remote(Remote),
}

impl Backend {
    /// The answer to `call`, which may take as long as the call says that it waits, asking again by `backoff` if there
    /// is one.
    pub(crate) async fn answer(
        &self,
        call: Call,
        backoff: Option<Backoff>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Reply, Failure> {
        match call {
            Call::Acquire(AcquireRequest { wait_ms: Some(wait_ms), .. }) if 0 < wait_ms => {
                let deadline = clock.now() + Span::from_millis(wait_ms);
                self.answer_by(call, backoff, deadline, clock).await
            }
            call => self.answer_now(&call).await,
        }
    }

    async fn answer_now(&self, call: &Call) -> Result<Reply, Failure> {
        match self {
            Self::Local(local) => local.answer(call).await,
            Self::Remote(remote) => remote.answer(call),
        }
    }

    /// Asks, sleeps until the promised time, or longer if `backoff` says so, and asks again, as long as that is before
    /// `deadline`. Nothing is held while sleeping.
    async fn answer_by(
        &self,
        mut call: Call,
        backoff: Option<Backoff>,
        deadline: Timestamp,
        clock: &Arc<dyn Clock>,
    ) -> Result<Reply, Failure> {
        let mut attempt = 0;
        loop {
            if let Call::Acquire(request) = &mut call {
                let left = deadline.since(clock.now());
                // A broker would answer at the promised time.
                request.wait_ms = if backoff.is_some() { None } else { self.wait_there(left) };
            }
            let reply = self.answer_now(&call).await?;
            let Reply::Decided(Answer::Denied(denied)) = &reply else { return Ok(reply) };
            let now = clock.now();
            let pause = backoff.map_or(Span::ZERO, |backoff| backoff.delay(attempt, random()));
            let look_at = self.look_at(denied, now).map(|at| at.max(now + pause));
            let Some(look_at) = look_at.filter(|at| *at <= deadline) else {
                return Ok(reply);
            };
            attempt = attempt.saturating_add(1);
            let jitter = Span::from_micros(u64::from(random() % JITTER_MICROS_MAX));
            clock.sleep_until((look_at + jitter).min(deadline)).await;
        }
    }

    /// How long the other side may wait. A broker keeps those who wait in order, so it does as much as it can.
    fn wait_there(&self, left: Span) -> Option<u64> {
        match self {
            Self::Local(_) => None,
            Self::Remote(_) => Some(left.min(WAIT_MAX).as_millis_ceil()),
        }
    }

    /// When to ask again; never, if asking again cannot help.
    fn look_at(&self, denied: &Denied, now: Timestamp) -> Option<Timestamp> {
        let at = match self {
            Self::Local(_) => denied.reset_at?,
            // The clock of a broker may differ from ours, so there it is a length of time that counts.
            Self::Remote(_) => now + Span::from_millis(denied.retry_after_ms?),
        };
        // Another process may release a slot at any time, and cannot notify this one.
        Some(if denied.estimated { at.min(now + SLOT_LOOK) } else { at })
    }
}
