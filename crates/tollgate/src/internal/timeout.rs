//! A timeout by a [`Clock`].
//!
//! Most futures are ready at the first poll. The timer is made only for the others, because making one costs more than
//! many a decision.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use tollgate_core::{Span, Timestamp};

use crate::clock::Clock;

/// Runs `work`; `None` on timeout. A result that is ready counts even if the time is up: after a suspend, both are found at
/// once.
///
/// Not an `async fn`, which would store `work` once more: nested timeouts would exhaust the stack of a debug build.
pub fn timeout<T>(
    clock: &dyn Clock,
    span: Span,
    work: impl Future<Output = T>,
) -> impl Future<Output = Option<T>> {
    run(clock, move || clock.now() + span, work)
}

/// Runs `work`; `None` once `clock` reaches `deadline`.
pub fn timeout_at<T>(
    clock: &dyn Clock,
    deadline: Timestamp,
    work: impl Future<Output = T>,
) -> impl Future<Output = Option<T>> {
    run(clock, move || deadline, work)
}

async fn run<T>(
    clock: &dyn Clock,
    deadline: impl Fn() -> Timestamp,
    work: impl Future<Output = T>,
) -> Option<T> {
    let (mut work, mut timer) = (pin!(work), None);
    poll_fn(|context| {
        if let Poll::Ready(done) = work.as_mut().poll(context) {
            return Poll::Ready(Some(done));
        }
        let timer = timer.get_or_insert_with(|| clock.sleep_until(deadline()));
        timer.as_mut().poll(context).map(|()| None)
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::sync::oneshot;

    use super::*;
    use crate::clock::ManualClock;

    #[tokio::test]
    async fn a_ready_result_counts_after_the_timeout() {
        let (clock, (sender, answer)) = (ManualClock::new(), oneshot::channel());
        let mut waiting = pin!(timeout(&clock, Span::from_secs(1), answer));
        assert!(poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context))).await.is_pending());
        clock.advance(Span::from_secs(2));
        sender.send(7).expect("it is waited for");
        assert_eq!(waiting.await, Some(Ok(7)));
    }

    #[tokio::test]
    async fn a_pending_future_times_out() {
        let clock = ManualClock::new();
        let mut waiting = pin!(timeout(&clock, Span::from_secs(1), pending::<()>()));
        assert!(poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context))).await.is_pending());
        clock.advance(Span::from_secs(1));
        assert_eq!(waiting.await, None);
    }
}
