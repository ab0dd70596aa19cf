//! Calling again what failed for a passing reason.
//!
//! One layer of retries, with everything that makes them safe in one place: which errors are worth it, how often, how
//! long in all, how long the other side asked us to wait, and a budget that keeps a broken dependency from being hit
//! with a multiple of the traffic it failed under.

mod acquire;
mod budget;

pub use acquire::acquire_with_backoff;
pub use budget::{Budget, PERCENT_MAX};

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

pub use tollgate_core::Backoff;
use tollgate_core::{Span, Timestamp};

use crate::clock::Clock;
use crate::internal::edge;

/// Classifies an error for retrying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// Trying again will not help.
    Fatal,
    /// It may pass.
    Retryable,
    /// It may pass, and the other side said when (`Retry-After`).
    RetryableAfter(Span),
}

/// How to retry. By default five retries, from 1 s to 60 s, times 0.5 to 1.5.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use std::sync::Arc;
/// use tollgate::retry::{Retry, RetryError, ErrorClass};
/// use tollgate::clock::ManualClock;
///
/// let retry = Retry { max_retries: 0, ..Retry::default() };
/// let answer: Result<(), RetryError<&str>> = retry
///     .run(&ManualClock::new(), |_attempt| async { Err("throttled") }, |_error| ErrorClass::Retryable)
///     .await;
/// let exhausted = answer.unwrap_err();
/// assert_eq!((exhausted.attempts, exhausted.last), (1, "throttled"));
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Retry {
    /// How many times to try again; there are at most `max_retries + 1` calls.
    pub max_retries: u32,
    /// How long to wait between calls.
    pub backoff: Backoff,
    /// How long everything may take: no wait begins that would end later than this after the first call.
    pub deadline: Option<Span>,
    /// Shared by clones: how many retries all calls together may make.
    pub budget: Option<Arc<Budget>>,
}

impl Default for Retry {
    fn default() -> Self {
        Self { max_retries: 5, backoff: Backoff::CALL, deadline: None, budget: None }
    }
}

/// Why retrying ended without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The last error was not worth another try.
    Fatal,
    /// All retries were used.
    Exhausted,
    /// The next wait would have passed the deadline.
    DeadlineExceeded,
    /// The budget that all calls share had nothing left.
    BudgetSpent,
}

/// The call did not succeed: the last error, how often it was tried, and why not more often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryError<E> {
    /// The error of the last call.
    pub last: E,
    /// How many calls were made.
    pub attempts: u32,
    /// Why there was no further call.
    pub stopped: Stopped,
}

/// The delay before a retry.
#[derive(Clone, Copy, Debug)]
pub struct Pause<'a, E> {
    /// How many calls were made.
    pub attempts: u32,
    /// When the next call is due.
    pub until: Timestamp,
    /// The error of the last call.
    pub error: &'a E,
}

impl<E> fmt::Display for RetryError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.stopped {
            Stopped::Fatal => "the error is not worth another try",
            Stopped::Exhausted => "all retries were used",
            Stopped::DeadlineExceeded => "the next wait would pass the deadline",
            Stopped::BudgetSpent => "the retry budget is spent",
        };
        write!(f, "gave up after {} attempts: {why}", self.attempts)
    }
}

impl<E: StdError + 'static> StdError for RetryError<E> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.last)
    }
}

impl Retry {
    /// Returns retries without a bound: `classify` or the deadline ends them.
    #[must_use]
    pub const fn unlimited(backoff: Backoff) -> Self {
        Self { max_retries: u32::MAX, backoff, deadline: None, budget: None }
    }

    /// Runs `call` until it succeeds, fails for good, or may not be retried. `call` gets the number of the attempt,
    /// from 0; `classify` classifies an error. A wait is the longer of the backoff and what the other side asked
    /// for.
    ///
    /// # Errors
    /// [`RetryError`] with the last error.
    pub fn run<T, E, F>(
        &self,
        clock: &dyn Clock,
        call: impl FnMut(u32) -> F,
        classify: impl Fn(&E) -> ErrorClass,
    ) -> impl Future<Output = Result<T, RetryError<E>>>
    where
        F: Future<Output = Result<T, E>>,
    {
        self.run_with(clock, edge::random, call, classify)
    }

    /// [`run`](Self::run) with jitter from `random`, for the simulation.
    pub(crate) async fn run_with<T, E, F>(
        &self,
        clock: &dyn Clock,
        random: impl Fn() -> u32,
        call: impl FnMut(u32) -> F,
        classify: impl Fn(&E) -> ErrorClass,
    ) -> Result<T, RetryError<E>>
    where
        F: Future<Output = Result<T, E>>,
    {
        let pause = |pause: Pause<'_, E>| clock.sleep_until(pause.until);
        self.run_with_both(clock, random, call, classify, pause).await
    }

    /// Like [`run`](Self::run); before each retry, awaits the future that `pause` returns instead of sleeping. For
    /// callers that report retries, or that end a delay early.
    ///
    /// # Errors
    /// [`RetryError`] with the last error.
    pub fn run_with_pause<T, E, F, P>(
        &self,
        clock: &dyn Clock,
        call: impl FnMut(u32) -> F,
        classify: impl Fn(&E) -> ErrorClass,
        pause: impl FnMut(Pause<'_, E>) -> P,
    ) -> impl Future<Output = Result<T, RetryError<E>>>
    where
        F: Future<Output = Result<T, E>>,
        P: Future<Output = ()>,
    {
        self.run_with_both(clock, edge::random, call, classify, pause)
    }

    async fn run_with_both<T, E, F, P>(
        &self,
        clock: &dyn Clock,
        random: impl Fn() -> u32,
        mut call: impl FnMut(u32) -> F,
        classify: impl Fn(&E) -> ErrorClass,
        mut pause: impl FnMut(Pause<'_, E>) -> P,
    ) -> Result<T, RetryError<E>>
    where
        F: Future<Output = Result<T, E>>,
        P: Future<Output = ()>,
    {
        let started = clock.now();
        if let Some(budget) = &self.budget {
            budget.deposit();
        }
        let mut attempts = 0;
        loop {
            let last = match call(attempts).await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let failed = attempts;
            attempts = attempts.saturating_add(1);
            let stop = |stopped, last| Err(RetryError { last, attempts, stopped });
            let hint = match classify(&last) {
                ErrorClass::Fatal => return stop(Stopped::Fatal, last),
                ErrorClass::Retryable => Span::ZERO,
                ErrorClass::RetryableAfter(hint) => hint,
            };
            if self.max_retries <= failed {
                return stop(Stopped::Exhausted, last);
            }
            let until = clock.now() + self.backoff.delay(failed, random()).max(hint);
            if self.deadline.is_some_and(|deadline| started + deadline < until) {
                return stop(Stopped::DeadlineExceeded, last);
            }
            if self.budget.as_ref().is_some_and(|budget| !budget.withdraw()) {
                return stop(Stopped::BudgetSpent, last);
            }
            let delay = pause(Pause { attempts, until, error: &last });
            drop(last);
            delay.await;
        }
    }
}
