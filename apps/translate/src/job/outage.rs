//! Outages of the server that stores jobs.

use std::sync::Arc;

use tokio::sync::watch;
use tollgate::{Span, Timestamp};

/// How long a call waits for the server by default: the time that a restart takes.
pub(super) const MAX_WAIT_DEFAULT: Span = Span::from_secs(10);

/// An outage of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// When it began, as far as is known.
    pub since: Timestamp,
    /// The error of the last call.
    pub error: String,
}

/// How long calls to a job store wait during an outage of its server, and the current outage. Clones share their state.
#[derive(Clone, Debug)]
pub struct OutageMonitor {
    max_wait: Arc<watch::Sender<Span>>,
    outage: Arc<watch::Sender<Option<Outage>>>,
}

impl Default for OutageMonitor {
    /// Waits ten seconds.
    fn default() -> Self {
        let max_wait = Arc::new(watch::Sender::new(MAX_WAIT_DEFAULT));
        Self { max_wait, outage: Arc::new(watch::Sender::new(None)) }
    }
}

impl OutageMonitor {
    /// Sets how long a call waits, pending calls included.
    pub fn set_max_wait(&self, max_wait: Span) {
        self.max_wait.send_replace(max_wait);
    }

    /// Sets how long a call waits, unless it waits less already.
    pub fn cap_max_wait(&self, max_wait: Span) {
        self.max_wait.send_modify(|now| *now = max_wait.min(*now));
    }

    /// Subscribes to the current outage.
    #[must_use]
    pub fn outage(&self) -> watch::Receiver<Option<Outage>> {
        self.outage.subscribe()
    }

    pub(super) fn max_wait(&self) -> watch::Receiver<Span> {
        self.max_wait.subscribe()
    }

    /// Records that a call that began at `since` failed again.
    pub(super) fn begin(&self, since: Timestamp, error: &str) {
        self.outage.send_if_modified(|outage| {
            let begins = outage.is_none();
            outage.get_or_insert_with(|| Outage { since, error: error.to_owned() });
            begins
        });
    }

    pub(super) fn end(&self) {
        self.outage.send_if_modified(|outage| outage.take().is_some());
    }
}
