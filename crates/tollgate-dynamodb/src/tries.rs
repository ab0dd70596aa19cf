//! What became of each request, told to whoever watches: how long the service took, how often a condition did not hold,
//! how many tries a call took (R000.15).

use std::sync::Arc;

use tollgate::{Clock, Event, Observer, Policy, Span, Tried};

/// Who is told, and the clock that times requests.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// The requests of one call.
#[derive(Debug)]
pub(crate) struct Tries<'a> {
    watch: &'a Watch,
    /// None for what no policy asked for, and nobody is told of.
    policy: Option<&'a Policy>,
    made: u32,
}

impl Watch {
    /// A call that asks on behalf of `policy`.
    pub(crate) const fn call<'a>(&'a self, policy: Option<&'a Policy>) -> Tries<'a> {
        Tries { watch: self, policy, made: 0 }
    }
}

impl Tries<'_> {
    /// Starts to time a request, on a clock that cannot be set.
    pub(crate) fn mark(&self) -> u64 {
        self.watch.clock.mark()
    }

    /// The time since [`mark`](Self::mark).
    pub(crate) fn passed_since(&self, mark: u64) -> Span {
        self.watch.clock.passed_since(mark)
    }

    /// The item of `subject` was from the future and is replaced.
    pub(crate) fn mended(&self, subject: &str, ahead: Span) {
        let Some(policy) = self.policy else { return };
        let name = policy.name();
        tracing::warn!(
            policy = name,
            subject,
            ahead = ahead.for_people(),
            "entry from the future is rewritten as used up"
        );
        if let Some(observer) = &self.watch.observer {
            observer.observe(&Event::Mended { policy, subject, ahead });
        }
    }

    /// A request ended like this.
    pub(crate) fn ended(&mut self, took: Span, result: Tried) {
        self.made += 1;
        if let (Some(observer), Some(policy)) = (&self.watch.observer, self.policy) {
            observer.observe(&Event::Tried { policy, attempt: self.made, took, result });
        }
    }
}
