//! Reports the latency and the result of each request to the observer.

use std::sync::Arc;

use tollgate::observe::{AttemptResult, Event, Observer};
use tollgate::{Clock, Policy, Span};

/// The observer of requests, and the clock that measures them.
#[derive(Debug)]
pub(crate) struct RequestObserver {
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// The requests of one call.
#[derive(Debug)]
pub(crate) struct Attempts<'a> {
    requests: &'a RequestObserver,
    /// `None` for requests without a policy, which are not reported.
    policy: Option<&'a Policy>,
    made: u32,
}

impl RequestObserver {
    /// Starts a call for `policy`.
    pub(crate) const fn call<'a>(&'a self, policy: Option<&'a Policy>) -> Attempts<'a> {
        Attempts { requests: self, policy, made: 0 }
    }
}

impl Attempts<'_> {
    /// Starts to measure a request, on a monotonic clock.
    pub(crate) fn mark(&self) -> u64 {
        self.requests.clock.mark()
    }

    /// Returns the time since [`mark`](Self::mark).
    pub(crate) fn passed_since(&self, mark: u64) -> Span {
        self.requests.clock.passed_since(mark)
    }

    /// Reports that an item from the future was replaced.
    pub(crate) fn repaired(&self, subject: &str, ahead: Span) {
        let Some(policy) = self.policy else { return };
        let name = policy.name();
        tracing::warn!(
            policy = name,
            subject,
            ahead = ahead.humanize(),
            "entry from the future is rewritten as used up"
        );
        if let Some(observer) = &self.requests.observer {
            observer.observe(&Event::Repaired { policy, subject, ahead });
        }
    }

    /// Reports the end of a request.
    pub(crate) fn ended(&mut self, took: Span, result: AttemptResult) {
        self.made += 1;
        if let (Some(observer), Some(policy)) = (&self.requests.observer, self.policy) {
            observer.observe(&Event::Tried { policy, attempt: self.made, took, result });
        }
    }
}
