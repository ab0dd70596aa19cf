//! Sending again what a store failed to answer: the same amount under the same id, so that nothing is lost and nothing
//! is charged twice.
//!
//! One layer does this. Either a store that resends on its own is configured not to, or this layer tries once
//! ([`ResendOptions::once`]); otherwise three attempts become nine.

use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{Backoff, Operation, Outcome, Span};

use super::random::RandomSource;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind};
use crate::gate::{BoxFuture, Gate};
use crate::internal::timeout_at;
use crate::observe::{AttemptResult, Event, Observer};

/// How often and how long a store is tried for one call. By default three attempts of 500 ms within 3 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResendOptions {
    /// How many attempts may fail or go unanswered, at least one: 3.
    pub failed_max: u32,
    /// How often it is tried again while the store throttles: 5.
    pub throttle_retries_max: u32,
    /// How long one attempt may take, 500 ms: a slow store is as bad as a dead one.
    pub attempt_timeout: Duration,
    /// The pauses between attempts.
    pub backoff: Backoff,
    /// How long all of it may take, 3 s. It is also how long the ids that are made here are remembered.
    pub deadline: Duration,
}

impl Default for ResendOptions {
    fn default() -> Self {
        Self {
            failed_max: 3,
            throttle_retries_max: 5,
            attempt_timeout: Duration::from_millis(500),
            backoff: PAUSES,
            deadline: Duration::from_secs(3),
        }
    }
}

impl ResendOptions {
    /// The default with attempts of up to `attempt_timeout`, and a deadline that leaves room for three of them.
    #[must_use]
    pub fn with_attempt_timeout(attempt_timeout: impl Into<Duration>) -> Self {
        let attempt_timeout = attempt_timeout.into();
        let attempts = Self::default();
        let pauses = attempts.deadline - 3 * attempts.attempt_timeout;
        let deadline = attempt_timeout.saturating_mul(3).saturating_add(pauses);
        Self { attempt_timeout, deadline, ..attempts }
    }

    /// Makes one attempt of up to `deadline`, for a store that retries on its own.
    #[must_use]
    pub fn once(deadline: impl Into<Duration>) -> Self {
        let deadline = deadline.into();
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
    options: ResendOptions,
    random: RandomSource,
    observer: Option<Arc<dyn Observer>>,
}

impl<G: Gate> Resend<G> {
    /// Tries `gate` again as `options` configure, timed by `clock`.
    pub fn new(gate: G, options: ResendOptions, clock: Arc<dyn Clock>) -> Self {
        Self { gate, clock, options, random: RandomSource::default(), observer: None }
    }

    /// The same with another source of jitter and ids.
    #[must_use]
    pub fn random(mut self, random: RandomSource) -> Self {
        self.random = random;
        self
    }

    /// The same, telling `observer` of every attempt ([`Event::Tried`]).
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// The deadline of a call, on the monotonic clock.
    fn deadline(&self) -> Span {
        self.clock.monotonic().plus(self.options.deadline.into())
    }

    fn time_left(&self, deadline: Span) -> Span {
        let now = self.clock.monotonic().as_micros();
        Span::from_micros(deadline.as_micros().saturating_sub(now))
    }

    /// Runs `operation` until the store answers or no attempt is left. Also returns whether an attempt before the last
    /// may have been carried out.
    async fn resend(
        &self,
        operation: Operation<'_>,
        deadline: Span,
    ) -> Result<(Outcome, bool), Error> {
        // Not `Retry`: failures and throttling have a bound each, and the deadline is on the monotonic clock.
        let (mut failed, mut throttled) = (0, 0);
        loop {
            let attempt = failed + throttled + 1;
            let error = match self.attempt(operation, attempt, deadline).await {
                Ok(outcome) => return Ok((outcome, 0 < failed)),
                Err(error) => error,
            };
            match error.kind() {
                ErrorKind::Unavailable | ErrorKind::TimedOut => failed += 1,
                ErrorKind::Throttled => throttled += 1,
                _ => return Err(error),
            }
            let spent =
                self.options.failed_max <= failed || self.options.throttle_retries_max < throttled;
            let pause = self.options.backoff.delay(failed + throttled - 1, self.random.draw());
            if spent || self.time_left(deadline) <= pause {
                return Err(error);
            }
            self.clock.sleep_until(self.clock.now() + pause).await;
        }
    }

    /// Makes one attempt, bounded in time.
    async fn attempt(
        &self,
        operation: Operation<'_>,
        attempt: u32,
        deadline: Span,
    ) -> Result<Outcome, Error> {
        let (now, since) = self.clock.both();
        let most = self.time_left(deadline).min(self.options.attempt_timeout.into());
        let answer = timeout_at(&*self.clock, now + most, self.gate.run(operation)).await;
        let took = self.clock.monotonic().as_micros().saturating_sub(since.as_micros());
        let took = Span::from_micros(took);
        let answer = answer.unwrap_or_else(|| {
            let text = format!(
                "the store had no answer within {}; whether it was carried out is not known",
                most.humanize()
            );
            Err(Error::new(ErrorKind::TimedOut, text))
        });
        if let Some(observer) = &self.observer {
            let result = match answer.as_ref().map_err(Error::kind) {
                Err(ErrorKind::Throttled) => AttemptResult::Throttled,
                Err(ErrorKind::Unavailable | ErrorKind::TimedOut | ErrorKind::Misconfigured) => {
                    AttemptResult::Failed
                }
                _ => AttemptResult::Answered,
            };
            let policy = operation.policy();
            observer.observe(&Event::Tried { policy, attempt, took, result });
        }
        answer
    }
}

impl<G: Gate> Gate for Resend<G> {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(async move {
            let deadline = self.deadline();
            match operation {
                Operation::Acquire(ask) | Operation::Charge(ask)
                    if ask.id_text().is_none() && !self.options.is_once() =>
                {
                    let named = ask.clone().id_for(self.random.id(), self.options.deadline);
                    let operation = match operation {
                        Operation::Acquire(_) => Operation::Acquire(&named),
                        _ => Operation::Charge(&named),
                    };
                    let (outcome, _) = self.resend(operation, deadline).await?;
                    Ok(outcome.without_id())
                }
                Operation::Reset { .. } => self.attempt(operation, 1, deadline).await,
                // After a lost reply, an operation that changes nothing the second time was done by the first.
                operation => Ok(match self.resend(operation, deadline).await? {
                    (Outcome::Changed(_), true) => Outcome::Changed(true),
                    (outcome, _) => outcome,
                }),
            }
        })
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}
