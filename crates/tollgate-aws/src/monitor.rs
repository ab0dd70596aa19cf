//! What happens to calls, for metrics, logs and people. A monitor has no say in any call.

use std::fmt::Debug;
use std::sync::Arc;

use tollgate::{Span, Timestamp};

use crate::error::{Context, Error, RetryExhausted};
use crate::failure::Failure;

/// What happened.
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
        /// What it got instead of an answer, if it got none.
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
        /// What the last attempt got.
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
    /// A call with a lost answer was looked up before anything was sent again.
    LookedUp {
        /// Which call it was.
        context: &'a Context,
        /// The job that it had started after all, if it had.
        job: Option<&'a str>,
    },
    /// Jobs could not be counted, or no slot could be asked for; the job is let through.
    FailedOpen {
        /// Which call it was.
        context: &'a Context,
        /// Why.
        error: &'a Error,
    },
    /// A job waits for others to end.
    Throttled {
        /// Which call it was.
        context: &'a Context,
        /// How many jobs there are.
        current_jobs: u64,
        /// How many there may be.
        max_jobs: u64,
        /// How long until the next look.
        pause: Span,
    },
}

/// Sees what happens. It is called while a caller waits, so it must be quick.
pub trait Monitor: Debug + Send + Sync + 'static {
    /// `event` happened.
    fn observe(&self, event: &Event<'_>);
}

/// Many monitors as one.
impl Monitor for Vec<Arc<dyn Monitor>> {
    fn observe(&self, event: &Event<'_>) {
        self.iter().for_each(|monitor| monitor.observe(event));
    }
}
