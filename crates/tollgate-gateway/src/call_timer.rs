//! One timer for all bounds of a call.
//!
//! A call waits for its body, for the head of the response and for each of its chunks. Each wait is bounded, and hardly any reaches
//! its bound. Making a timer costs more than many a decision, so a call has one: it is set at the first wait, a later deadline leaves
//! it as it is, and if it rings early it is set again.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tollgate::gate::BoxFuture;
use tollgate::{Clock, Span};

/// A timer whose deadline may change between polls. Deadlines are on the monotonic clock: a step of the wall clock ends nothing.
#[derive(Default)]
pub(crate) struct CallTimer {
    /// When it rings, and what resolves then.
    alarm: Option<(Span, BoxFuture<'static, ()>)>,
}

impl CallTimer {
    /// Ready once the monotonic time of `clock` has reached `deadline`.
    pub(crate) fn poll(
        &mut self,
        clock: &dyn Clock,
        deadline: Span,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        loop {
            if self.alarm.as_ref().is_none_or(|(at, _)| deadline < *at) {
                let left = deadline.as_micros().saturating_sub(clock.monotonic().as_micros());
                let alarm = clock.sleep_until(clock.now() + Span::from_micros(left));
                self.alarm = Some((deadline, alarm));
            }
            if let Some((_, alarm)) = &mut self.alarm {
                ready!(alarm.as_mut().poll(context));
            }
            self.alarm = None;
            if deadline <= clock.monotonic() {
                return Poll::Ready(());
            }
        }
    }

    /// Runs `work`; `None` on timeout. A result that is ready counts even if the time is up.
    pub(crate) fn timeout_at<T>(
        &mut self,
        clock: &dyn Clock,
        deadline: Span,
        mut work: impl Future<Output = T> + Unpin,
    ) -> impl Future<Output = Option<T>> {
        poll_fn(move |context| match Pin::new(&mut work).poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => self.poll(clock, deadline, context).map(|()| None),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tollgate::clock::ManualClock;

    use super::*;

    fn is_over(timer: &mut CallTimer, clock: &ManualClock, deadline: Span) -> bool {
        timer.poll(clock, deadline, &mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_later_deadline_leaves_the_alarm_and_an_earlier_one_moves_it() {
        let (clock, mut timer) = (ManualClock::new(), CallTimer::default());
        let [soon, late, sooner] = [10, 60, 1].map(Span::from_secs);
        let begun = clock.now();
        assert!(!is_over(&mut timer, &clock, soon));
        assert!(!is_over(&mut timer, &clock, late));
        assert_eq!(clock.next_alarm(), Some(begun + soon));
        clock.advance(soon);
        assert!(!is_over(&mut timer, &clock, late), "it rang early");
        assert_eq!(clock.next_alarm(), Some(begun + late));
        clock.advance(Span::from_secs(50));
        assert!(is_over(&mut timer, &clock, late));
        assert!(!is_over(&mut timer, &clock, late.plus(late)));
        assert!(!is_over(&mut timer, &clock, late.plus(sooner)));
        assert_eq!(clock.next_alarm(), Some(begun + late.plus(sooner)));
    }

    #[test]
    fn a_step_of_the_wall_clock_ends_nothing() {
        let (clock, mut timer) = (ManualClock::new(), CallTimer::default());
        let minute = Span::from_mins(1);
        assert!(!is_over(&mut timer, &clock, minute));
        clock.step(clock.now() + Span::from_hours(1));
        assert!(!is_over(&mut timer, &clock, minute));
        clock.advance(minute);
        assert!(is_over(&mut timer, &clock, minute));
    }
}
