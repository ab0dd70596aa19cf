//! Waiting for a server of jobs that is away.

use std::sync::Arc;

use tokio::sync::watch;
use tollgate::{Span, Timestamp};

/// How long a call waits for the server, unless it is told otherwise: the time that a restart takes.
pub(super) const SHORT: Span = Span::from_secs(10);

/// An outage of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Away {
    /// When it began, as far as is known.
    pub since: Timestamp,
    /// The error of the last call.
    pub why: String,
}

/// How long the calls of a job store wait for a server that is away, and whether it is. Clones share their state.
#[derive(Clone, Debug)]
pub struct Patience(Arc<State>);

#[derive(Debug)]
struct State {
    longest: watch::Sender<Span>,
    away: watch::Sender<Option<Away>>,
}

impl Default for Patience {
    /// Ten seconds.
    fn default() -> Self {
        let (longest, away) = (watch::Sender::new(SHORT), watch::Sender::new(None));
        Self(Arc::new(State { longest, away }))
    }
}

impl Patience {
    /// Sets how long a call waits, calls that wait already included.
    pub fn set(&self, longest: Span) {
        self.0.longest.send_replace(longest);
    }

    /// Sets how long a call waits, unless that is less already.
    pub fn shorten(&self, longest: Span) {
        self.0.longest.send_modify(|now| *now = longest.min(*now));
    }

    /// The outage that lasts, if there is one, as it changes.
    #[must_use]
    pub fn away(&self) -> watch::Receiver<Option<Away>> {
        self.0.away.subscribe()
    }

    pub(super) fn longest(&self) -> watch::Receiver<Span> {
        self.0.longest.subscribe()
    }

    /// Notes that a call of `since` failed again.
    pub(super) fn lost(&self, since: Timestamp, why: &str) {
        self.0.away.send_if_modified(|away| {
            let began = away.is_none();
            if began {
                *away = Some(Away { since, why: why.to_owned() });
            }
            began
        });
    }

    pub(super) fn answered(&self) {
        self.0.away.send_if_modified(|away| away.take().is_some());
    }
}
