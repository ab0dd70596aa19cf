//! The clock of one call's retries: reports each wait before it begins.

use std::sync::{Arc, Mutex, PoisonError};

use tollgate::gate::BoxFuture;
use tollgate::{Clock, Span, Timestamp};

use super::DrsClient;
use crate::error::Context;
use crate::failure::Failure;
use crate::monitor::Event;

/// The client's clock. The retry layer sleeps on it only between two attempts, so a sleep is a wait for the next one.
#[derive(Debug)]
pub(super) struct RetryClock {
    client: DrsClient,
    context: Context,
    failures: Mutex<(u32, Option<Failure>)>,
}

impl RetryClock {
    pub(super) fn new(client: &DrsClient, context: &Context) -> Self {
        Self { client: client.clone(), context: context.clone(), failures: Mutex::default() }
    }

    /// Records the failure of an attempt.
    pub(super) fn failed(&self, failure: &Failure) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        *failures = (failures.0 + 1, Some(failure.clone()));
    }

    fn clock(&self) -> &Arc<dyn Clock> {
        self.client.clock()
    }
}

impl Clock for RetryClock {
    fn now(&self) -> Timestamp {
        self.clock().now()
    }

    fn monotonic(&self) -> Span {
        self.clock().monotonic()
    }

    fn sleep_until(&self, at: Timestamp) -> BoxFuture<'static, ()> {
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let (attempt, Some(failure)) = &failures {
            let (context, attempt) = (&self.context, *attempt);
            self.client.observe(&Event::Retrying { context, attempt, at, failure });
        }
        self.clock().sleep_until(at)
    }
}
