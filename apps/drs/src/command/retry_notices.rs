//! A line for each retry while the service does not respond.

use std::sync::{Arc, Mutex, PoisonError};

use crate::monitor::{Event, Monitor};

use tollgate_terminal::ProgressDisplay;

/// A monitor that prints a line for each retry after a lost response.
#[derive(Debug)]
pub(super) struct RetryNotices(pub(super) Arc<Mutex<ProgressDisplay>>);

impl Monitor for RetryNotices {
    fn observe(&self, event: &Event<'_>) {
        let Event::Retrying { attempt, at, failure, .. } = event else { return };
        // Throttling is a response.
        if !failure.is_ambiguous() {
            return;
        }
        let number = attempt + 1;
        let line = format!("DRS does not respond ({failure}); retrying at {at} (attempt {number})");
        self.0.lock().unwrap_or_else(PoisonError::into_inner).note(&line);
    }
}
