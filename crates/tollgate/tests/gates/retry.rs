//! Retrying: R001.1 to R001.4, and what keeps it safe.

use std::cell::Cell;
use std::error::Error as _;
use std::sync::Arc;

use proptest::prelude::*;
use tollgate::clock::ManualClock;
use tollgate::retry::{Backoff, Budget, ErrorClass, Pause, Retry, RetryError, Stopped};
use tollgate::{Clock, Span, Timestamp};

/// A failure that knows whether it is worth another try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    Throttled,
    ThrottledFor(Span),
    Forbidden,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for Failure {}

const fn classify(failure: &Failure) -> ErrorClass {
    match failure {
        Failure::Throttled => ErrorClass::Retryable,
        Failure::ThrottledFor(span) => ErrorClass::RetryableAfter(*span),
        Failure::Forbidden => ErrorClass::Fatal,
    }
}

/// What came of running a script of failures that ends in success.
struct Ran {
    answer: Result<u32, RetryError<Failure>>,
    calls: u32,
    waits: Vec<Span>,
}

/// Runs `retry` on calls that fail as `failures` says and then succeed; the clock jumps to each alarm.
fn run(retry: &Retry, failures: &[Failure]) -> Ran {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let clock = ManualClock::new();
        let calls = Cell::new(0_u32);
        let waits = std::cell::RefCell::new(Vec::new());
        let work = retry.run(
            &clock,
            |attempt| {
                calls.set(calls.get() + 1);
                let failure = failures.get(attempt as usize).copied();
                async move { failure.map_or(Ok(attempt), Err) }
            },
            classify,
        );
        let mut work = std::pin::pin!(work);
        let answer = std::future::poll_fn(|context| {
            loop {
                if let std::task::Poll::Ready(answer) = work.as_mut().poll(context) {
                    return std::task::Poll::Ready(answer);
                }
                let alarm: Timestamp = clock.next_alarm().expect("a retry waits on the clock");
                waits.borrow_mut().push(alarm.since(clock.now()));
                clock.set(alarm);
            }
        })
        .await;
        Ran { answer, calls: calls.get(), waits: waits.into_inner() }
    })
}

proptest! {
    /// R001.1: a retryable error is retried until success, as long as there are retries.
    #[test]
    fn retries_what_is_retryable(max_retries in 0_u32..8, failing in 0_usize..8) {
        let retry = Retry { max_retries, ..Retry::default() };
        let ran = run(&retry, &vec![Failure::Throttled; failing]);
        if failing <= max_retries as usize {
            prop_assert_eq!(ran.answer.ok(), u32::try_from(failing).ok());
            prop_assert_eq!(ran.calls as usize, failing + 1);
        } else {
            prop_assert!(ran.answer.is_err());
        }
    }

    /// R001.3: exactly max_retries + 1 calls when every one of them fails.
    #[test]
    fn makes_exactly_the_configured_number_of_calls(max_retries in 0_u32..12) {
        let retry = Retry { max_retries, ..Retry::default() };
        let ran = run(&retry, &[Failure::Throttled; 20]);
        prop_assert_eq!(ran.calls, max_retries + 1);
    }

    /// R001.4: exhaustion is typed, with the last error and the number of attempts.
    #[test]
    fn exhaustion_tells_the_last_error_and_the_attempts(max_retries in 0_u32..8, seconds in 1_u64..50) {
        let last = Failure::ThrottledFor(Span::from_secs(seconds));
        let mut failures = vec![Failure::Throttled; max_retries as usize];
        failures.push(last);
        let error = run(&Retry { max_retries, ..Retry::default() }, &failures).answer.unwrap_err();
        prop_assert_eq!(&error, &RetryError { last, attempts: max_retries + 1, stopped: Stopped::Exhausted });
        prop_assert!(error.source().is_some());
        let mentions_attempts = error.to_string().contains(&format!("{} attempts", max_retries + 1));
        prop_assert!(mentions_attempts);
    }

    /// R001.2: each wait is min(base · 2^attempt, max) times a factor from the jitter range.
    #[test]
    fn waits_grow_within_their_jitter(base_ms in 1_u64..5_000, max_ms in 1_u64..60_000) {
        let backoff = Backoff { base: Span::from_millis(base_ms), max: Span::from_millis(max_ms), ..Backoff::CALL };
        let retry = Retry { max_retries: 6, backoff, ..Retry::default() };
        let ran = run(&retry, &[Failure::Throttled; 7]);
        prop_assert_eq!(ran.waits.len(), 6);
        for (attempt, wait) in ran.waits.iter().enumerate() {
            let plain = (base_ms * 1_000 * (1 << attempt)).min(max_ms * 1_000);
            prop_assert!(plain / 2 <= wait.as_micros() && wait.as_micros() <= plain * 3 / 2);
        }
    }
}

#[test]
fn what_is_not_retryable_is_called_once() {
    let ran = run(&Retry::default(), &[Failure::Forbidden]);
    let error = ran.answer.unwrap_err();
    assert_eq!((ran.calls, error.stopped, error.attempts), (1, Stopped::Fatal, 1));
    assert!(ran.waits.is_empty());
}

#[test]
fn a_retry_after_hint_is_honoured_when_it_is_longer() {
    let hint = Span::from_secs(90);
    let ran =
        run(&Retry::default(), &[Failure::ThrottledFor(hint), Failure::ThrottledFor(Span::ZERO)]);
    assert!(ran.answer.is_ok());
    assert_eq!(ran.waits[0], hint);
    assert!(Span::ZERO < ran.waits[1]);
}

#[test]
fn no_wait_begins_that_would_end_after_the_deadline() {
    let retry = Retry { deadline: Some(Span::from_secs(10)), ..Retry::default() };
    let ran = run(
        &retry,
        &[Failure::ThrottledFor(Span::from_secs(9)), Failure::ThrottledFor(Span::from_secs(9))],
    );
    let error = ran.answer.unwrap_err();
    assert_eq!((ran.calls, error.stopped), (2, Stopped::DeadlineExceeded));
    assert_eq!(ran.waits, [Span::from_secs(9)]);
}

#[test]
fn the_budget_bounds_the_retries_of_all_calls_together() {
    let budget = Arc::new(Budget::new(20, 3));
    let retry = Retry { budget: Some(Arc::clone(&budget)), ..Retry::default() };
    let calls: u32 = (0..50).map(|_| run(&retry, &[Failure::Throttled; 10]).calls).sum();
    // 50 first calls, 3 retries saved up, and one retry for every five of the 49 calls that found it not full.
    assert_eq!(calls, 50 + 3 + 9);
    assert_eq!(budget.left(), 0);
    let error = run(&retry.clone(), &[Failure::Throttled; 10]).answer.unwrap_err();
    assert_eq!(error.stopped, Stopped::BudgetSpent, "a clone shares the budget");
}

/// A pause that ends early retries at once, and each pause gets the error and the time of the next call.
#[tokio::test]
async fn a_pause_replaces_the_sleep_between_two_calls() {
    let (clock, pauses) = (ManualClock::new(), std::cell::RefCell::new(Vec::new()));
    let hint = Span::from_secs(90);
    let failures = [Failure::ThrottledFor(hint), Failure::ThrottledFor(hint)];
    let call = |attempt: u32| {
        let failure = failures.get(attempt as usize).copied();
        async move { failure.map_or(Ok(attempt), Err) }
    };
    let pause = |pause: Pause<'_, Failure>| {
        pauses.borrow_mut().push((pause.attempts, pause.until, *pause.error));
        std::future::ready(())
    };
    let answer =
        Retry::unlimited(Backoff::QUOTA).run_with_pause(&clock, call, classify, pause).await;
    assert_eq!(answer, Ok(2), "the clock did not move");
    let until = clock.now() + hint;
    assert_eq!(*pauses.borrow(), [(1, until, failures[0]), (2, until, failures[1])]);
}
