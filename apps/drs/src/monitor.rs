//! Events of calls, for metrics, logs and notifications. A monitor does not affect calls.

use std::fmt::Debug;
use std::sync::Arc;

use tollgate::{Span, Timestamp};

use crate::error::{Context, Error, RetryExhausted};
use crate::failure::Failure;

/// An event.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// An attempt ended; the first is number 0.
    Attempted {
        /// Which call it was.
        context: &'a Context,
        /// The number of the attempt.
        attempt: u32,
        /// How long it took.
        took: Span,
        /// Why it failed, if it did.
        failure: Option<&'a Failure>,
    },
    /// An attempt failed, and another one follows.
    Retrying {
        /// Which call it is.
        context: &'a Context,
        /// The number of the attempt that follows; the first of a call is number 0.
        attempt: u32,
        /// When it is made.
        at: Timestamp,
        /// Why the last attempt failed.
        failure: &'a Failure,
    },
    /// All attempts were used.
    Exhausted(&'a RetryExhausted),
    /// A call ended, after however many attempts.
    Called {
        /// Which call it was.
        context: &'a Context,
        /// Why it did not succeed, if it did not.
        error: Option<&'a Error>,
    },
    /// The job of a call whose response was lost was looked up.
    LookedUp {
        /// Which call it was.
        context: &'a Context,
        /// The job that it had started after all, if it had.
        job: Option<&'a str>,
    },
    /// Jobs could not be counted, or no slot could be taken; the job is started all the same.
    FailedOpen {
        /// Which call it was.
        context: &'a Context,
        /// Why.
        error: &'a Error,
    },
    /// A job waits for others to complete.
    Throttled {
        /// Which call it was.
        context: &'a Context,
        /// How many jobs there are.
        current_jobs: u64,
        /// How many there may be.
        max_jobs: u64,
        /// The time until the next count.
        pause: Span,
    },
}

/// Observes calls. It is called while a caller waits, so it must be fast.
pub trait Monitor: Debug + Send + Sync + 'static {
    /// Observes `event`.
    fn observe(&self, event: &Event<'_>);
}

/// Passes events to each monitor.
impl Monitor for Vec<Arc<dyn Monitor>> {
    fn observe(&self, event: &Event<'_>) {
        self.iter().for_each(|monitor| monitor.observe(event));
    }
}
