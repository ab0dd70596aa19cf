//! Work that may take so long and no longer, by a clock.
//!
//! Nearly all of it is done at once: what was sent has arrived, and answers are taken. An alarm is made only for the rest,
//! because making one costs more than many a decision.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use tollgate_core::Span;

use crate::clock::Clock;

/// What `work` comes to within `span`; nothing, if it takes longer. An answer that is there counts: a machine that stood
/// still for a while finds it together with the end of its time.
pub async fn within<T>(clock: &dyn Clock, span: Span, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    if let Poll::Ready(done) = poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await {
        return Some(done);
    }
    let mut alarm = clock.sleep_until(clock.now() + span);
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => alarm.as_mut().poll(context).map(|()| None),
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::sync::oneshot;

    use super::*;
    use crate::ManualClock;

    #[tokio::test]
    async fn an_answer_that_is_there_counts_though_its_time_is_over() {
        let (clock, (sender, answer)) = (ManualClock::new(), oneshot::channel());
        let mut waiting = pin!(within(&clock, Span::from_secs(1), answer));
        assert!(poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context))).await.is_pending());
        clock.advance(Span::from_secs(2));
        sender.send(7).expect("it is waited for");
        assert_eq!(waiting.await, Some(Ok(7)));
    }

    #[tokio::test]
    async fn what_takes_longer_comes_to_nothing() {
        let clock = ManualClock::new();
        let mut waiting = pin!(within(&clock, Span::from_secs(1), pending::<()>()));
        assert!(poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context))).await.is_pending());
        clock.advance(Span::from_secs(1));
        assert_eq!(waiting.await, None);
    }
}
