//! Sending again what a store failed to answer: the same amount under the same id, so that nothing is lost and nothing
//! is charged twice.
//!
//! One layer does this. A store that resends by itself is told not to, or this layer is told to try once
//! ([`Attempts::once`]); otherwise three attempts become nine.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use tollgate_core::{Ask, Backoff, Costs, Decision, Permit, Policy, Span, Standing, Timestamp};

use super::chance::Chance;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind};
use crate::gate::{BoxFuture, Gate};
use crate::observe::{Event, Observer, Tried};

/// How often and how long a store is tried for one call. The default is that of R000.10 and R000.11.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempts {
    /// How many attempts may fail or go unanswered, at least one: 3.
    pub failed_max: u32,
    /// How often it is tried again while the store throttles: 5.
    pub throttle_retries_max: u32,
    /// How long one attempt may take, 500 ms: a slow store is as bad as a dead one.
    pub attempt_timeout: Span,
    /// The pauses between attempts.
    pub backoff: Backoff,
    /// How long all of it may take, 3 s. It is also how long the ids that are made here are remembered.
    pub deadline: Span,
}

impl Default for Attempts {
    fn default() -> Self {
        Self {
            failed_max: 3,
            throttle_retries_max: 5,
            attempt_timeout: Span::from_millis(500),
            backoff: PAUSES,
            deadline: Span::from_secs(3),
        }
    }
}

impl Attempts {
    /// The default with attempts of up to `attempt_timeout`, and a deadline that leaves room for three of them.
    #[must_use]
    pub fn of(attempt_timeout: Span) -> Self {
        let attempts = Self::default();
        let pauses = attempts.deadline.as_micros() - 3 * attempts.attempt_timeout.as_micros();
        let deadline = attempt_timeout.as_micros().saturating_mul(3).saturating_add(pauses);
        Self { attempt_timeout, deadline: Span::from_micros(deadline), ..attempts }
    }

    /// One attempt of up to `deadline`, for a store that tries again by itself.
    #[must_use]
    pub fn once(deadline: Span) -> Self {
        Self {
            failed_max: 1,
            throttle_retries_max: 0,
            attempt_timeout: deadline,
            deadline,
            ..Self::default()
        }
    }

    const fn is_once(&self) -> bool {
        self.failed_max <= 1 && self.throttle_retries_max == 0
    }
}

/// From 25 ms to 400 ms, times 0.5 to 1.5: five of them fit into the deadline.
const PAUSES: Backoff = Backoff {
    base: Span::from_millis(25),
    max: Span::from_millis(400),
    jitter_low: 500,
    jitter_high: 1_500,
    clamp: false,
};

/// A gate that tries again while its store fails.
///
/// An ask without an id gets one, which lives as long as the deadline. Its permit does not carry that id, so releasing it
/// leaves the id remembered, and an attempt that arrives late is not charged. A reset is never sent twice: it would
/// forget what came between.
#[derive(Debug)]
pub struct Resend<G> {
    gate: G,
    clock: Arc<dyn Clock>,
    attempts: Attempts,
    chance: Chance,
    observer: Option<Arc<dyn Observer>>,
}

impl<G: Gate> Resend<G> {
    /// Tries `gate` again as `attempts` says, timed by `clock`.
    pub fn new(gate: G, attempts: Attempts, clock: Arc<dyn Clock>) -> Self {
        Self { gate, clock, attempts, chance: Chance::default(), observer: None }
    }

    /// The same with another source of jitter and ids.
    #[must_use]
    pub fn chance(mut self, chance: Chance) -> Self {
        self.chance = chance;
        self
    }

    /// The same, telling `observer` of every attempt ([`Event::Tried`]).
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// On the clock that nobody can set.
    fn deadline(&self) -> Span {
        let began = self.clock.monotonic().as_micros();
        Span::from_micros(began.saturating_add(self.attempts.deadline.as_micros()))
    }

    fn time_left(&self, deadline: Span) -> Span {
        let now = self.clock.monotonic().as_micros();
        Span::from_micros(deadline.as_micros().saturating_sub(now))
    }

    /// Tries `call` until it is answered or may not be tried again. Also says whether an attempt before the last may have
    /// been carried out.
    async fn run<'a, T>(
        &'a self,
        policy: &Policy,
        deadline: Span,
        call: impl Fn() -> BoxFuture<'a, Result<T, Error>>,
    ) -> Result<(T, bool), Error> {
        let (mut failed, mut throttled) = (0, 0);
        loop {
            let error = match self.attempt(policy, failed + throttled + 1, deadline, call()).await {
                Ok(answer) => return Ok((answer, 0 < failed)),
                Err(error) => error,
            };
            match error.kind() {
                ErrorKind::Unavailable | ErrorKind::TimedOut => failed += 1,
                ErrorKind::Throttled => throttled += 1,
                _ => return Err(error),
            }
            let spent = self.attempts.failed_max <= failed
                || self.attempts.throttle_retries_max < throttled;
            let pause = self.attempts.backoff.delay(failed + throttled - 1, self.chance.draw());
            if spent || self.time_left(deadline) <= pause {
                return Err(error);
            }
            self.clock.sleep_until(self.clock.now() + pause).await;
        }
    }

    /// One attempt, bounded in time.
    async fn attempt<'a, T>(
        &'a self,
        policy: &Policy,
        attempt: u32,
        deadline: Span,
        call: BoxFuture<'a, Result<T, Error>>,
    ) -> Result<T, Error> {
        let (now, since) = self.clock.both();
        let most = self.time_left(deadline).min(self.attempts.attempt_timeout);
        let answer = within(call, self.clock.sleep_until(now + most)).await;
        let took = self.clock.monotonic().as_micros().saturating_sub(since.as_micros());
        let took = Span::from_micros(took);
        let answer = answer.unwrap_or_else(|| {
            let text = format!(
                "the store had no answer within {}; whether it was carried out is not known",
                most.for_people()
            );
            Err(Error::new(ErrorKind::TimedOut, text))
        });
        if let Some(observer) = &self.observer {
            let result = match answer.as_ref().map_err(Error::kind) {
                Err(ErrorKind::Throttled) => Tried::Throttled,
                Err(ErrorKind::Unavailable | ErrorKind::TimedOut | ErrorKind::Misconfigured) => {
                    Tried::Failed
                }
                _ => Tried::Answered,
            };
            observer.observe(&Event::Tried { policy, attempt, took, result });
        }
        answer
    }

    /// Asks `ask` under an id: the caller's, or one that is made here and [taken off](Permit::with_id) the answer.
    async fn recognisably<'a, T>(
        &'a self,
        ask: &'a Ask<'a>,
        call: impl Fn(&'a G, Ask<'a>) -> BoxFuture<'a, Result<T, Error>>,
        take_id_off: impl Fn(T) -> T,
    ) -> Result<T, Error> {
        let (policy, deadline) = (ask.policy(), self.deadline());
        if ask.id_text().is_some() || self.attempts.is_once() {
            return Ok(self.run(policy, deadline, || call(&self.gate, ask.clone())).await?.0);
        }
        let named = ask.clone().id_for(self.chance.id(), self.attempts.deadline);
        let (answer, _) = self.run(policy, deadline, || call(&self.gate, named.clone())).await?;
        Ok(take_id_off(answer))
    }
}

fn without_id(permit: Permit) -> Permit {
    permit.with_id(None::<&str>)
}

/// What `work` comes to, or nothing if `alarm` comes first.
pub(crate) async fn within<T>(
    work: impl Future<Output = T> + Send,
    mut alarm: BoxFuture<'static, ()>,
) -> Option<T> {
    let mut work = Box::pin(work);
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => alarm.as_mut().poll(context).map(|()| None),
    })
    .await
}

impl<G: Gate> Gate for Resend<G> {
    fn acquire<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Decision, Error>> {
        Box::pin(self.recognisably(
            ask,
            |gate, ask| Box::pin(async move { gate.acquire(&ask).await }),
            |decision| match decision {
                Decision::Admitted(permit) => Decision::Admitted(without_id(permit)),
                denied @ Decision::Denied(_) => denied,
            },
        ))
    }

    /// After a lost reply a permit that is settled already was settled by this call, as far as anybody can tell.
    fn settle<'a>(
        &'a self,
        permit: &'a Permit,
        actual: &'a Costs,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let settled = self
                .run(permit.policy(), self.deadline(), || self.gate.settle(permit, actual))
                .await?;
            Ok(settled.0 || settled.1)
        })
    }

    /// As [`settle`](Self::settle).
    fn release<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let released =
                self.run(permit.policy(), self.deadline(), || self.gate.release(permit)).await?;
            Ok(released.0 || released.1)
        })
    }

    fn renew<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<Permit, Error>> {
        Box::pin(async move {
            Ok(self.run(permit.policy(), self.deadline(), || self.gate.renew(permit)).await?.0)
        })
    }

    fn charge<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Permit, Error>> {
        Box::pin(self.recognisably(
            ask,
            |gate, ask| Box::pin(async move { gate.charge(&ask).await }),
            without_id,
        ))
    }

    fn close_until<'a>(
        &'a self,
        ask: &'a Ask<'a>,
        limit: &'a str,
        until: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let call = || self.gate.close_until(ask, limit, until);
            let closed = self.run(ask.policy(), self.deadline(), call).await?;
            Ok(closed.0 || closed.1)
        })
    }

    fn standing<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Standing>, Error>> {
        Box::pin(async move {
            Ok(self.run(policy, self.deadline(), || self.gate.standing(policy, subject)).await?.0)
        })
    }

    fn reset<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            self.attempt(policy, 1, self.deadline(), self.gate.reset(policy, subject)).await
        })
    }
}
