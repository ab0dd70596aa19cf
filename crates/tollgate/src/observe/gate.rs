//! [`Observed`]: passes every operation on to the gate inside and reports its outcome to an observer.

use std::sync::Arc;

use tollgate_core::{Decision, Operation, Outcome};

use super::{Event, Observer};
use crate::clock::Clock;
use crate::error::Error;
use crate::gate::{BoxFuture, Gate};

/// A gate that reports every outcome to an [`Observer`].
#[derive(Debug)]
pub struct Observed<G> {
    gate: G,
    observer: Arc<dyn Observer>,
    clock: Arc<dyn Clock>,
}

impl<G: Gate> Observed<G> {
    /// Reports what happens at `gate` to `observer`, timed by `clock`.
    pub fn new(gate: G, observer: Arc<dyn Observer>, clock: Arc<dyn Clock>) -> Self {
        Self { gate, observer, clock }
    }

    /// Reports the outcome of `operation`.
    fn report(&self, operation: &Operation<'_>, since: u64, outcome: &Result<Outcome, Error>) {
        let took = self.clock.passed_since(since);
        let (policy, subject) = (operation.policy(), operation.subject());
        self.observer.observe(&match (*operation, outcome) {
            (_, Err(error)) => Event::Failed { policy, subject, error, took },
            (Operation::Acquire(ask), Ok(Outcome::Decided(Decision::Admitted(permit)))) => {
                Event::Admitted { ask, permit, took }
            }
            (Operation::Acquire(ask), Ok(Outcome::Decided(Decision::Denied(denial)))) => {
                Event::Denied { ask, denial, took }
            }
            (Operation::Settle(permit, actual), Ok(Outcome::Changed(first))) => {
                Event::Settled { permit, actual, first: *first }
            }
            (Operation::Release(permit), Ok(Outcome::Changed(first))) => {
                Event::Released { permit, first: *first }
            }
            (Operation::Renew(_), Ok(Outcome::Permitted(permit))) => Event::Renewed { permit },
            (Operation::Charge(ask), Ok(Outcome::Permitted(_))) => Event::Charged { ask },
            (Operation::Close { limit, until, .. }, Ok(_)) => {
                Event::Closed { policy, subject, limit, until }
            }
            (Operation::Reset { .. }, Ok(_)) => Event::Reset { policy, subject },
            _ => return,
        });
    }
}

impl<G: Gate> Gate for Observed<G> {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(async move {
            let since = self.clock.mark();
            let outcome = self.gate.run(operation).await;
            self.report(&operation, since, &outcome);
            outcome
        })
    }

    fn try_run(&self, operation: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        let since = self.clock.mark();
        // An outcome is large. It is inspected where it is, since `?` would copy it twice.
        let outcome = self.gate.try_run(operation);
        if let Some(outcome) = &outcome {
            self.report(operation, since, outcome);
        }
        outcome
    }
}
