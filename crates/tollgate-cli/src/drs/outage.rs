//! A line for each wait while the service does not answer.

use std::sync::{Arc, Mutex, PoisonError};

use tollgate_aws::monitor::{Event, Monitor};

use crate::view::View;

/// Shows waits in the view of the command.
#[derive(Debug)]
pub(super) struct Outage(pub(super) Arc<Mutex<View>>);

impl Monitor for Outage {
    fn observe(&self, event: &Event<'_>) {
        let Event::Retrying { attempt, at, failure, .. } = event else { return };
        // A refusal for the rate of calls is an answer.
        if !failure.is_ambiguous() {
            return;
        }
        let number = attempt + 1;
        let line =
            format!("DRS does not answer ({failure}); trying again at {at} (attempt {number})");
        self.0.lock().unwrap_or_else(PoisonError::into_inner).note(&line);
    }
}
