//! A gate that is watched: every verb goes through to the gate inside, and its answer is told on the way back.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tollgate_core::{Ask, Costs, Decision, Permit, Policy, Standing, Timestamp};

use super::{Event, Observer};
use crate::clock::Clock;
use crate::error::Error;
use crate::gate::{BoxFuture, Gate};

/// A gate that is watched.
#[derive(Debug)]
pub struct Observed<G> {
    gate: G,
    observer: Arc<dyn Observer>,
    clock: Arc<dyn Clock>,
}

impl<G: Gate> Observed<G> {
    /// Tells `observer` what happens at `gate`, timed by `clock`.
    pub fn new(gate: G, observer: Arc<dyn Observer>, clock: Arc<dyn Clock>) -> Self {
        Self { gate, observer, clock }
    }

    /// Tells of the answer to `ask`.
    fn answered(&self, ask: &Ask<'_>, since: u64, answer: &Result<Decision, Error>) {
        let took = self.clock.passed_since(since);
        self.observer.observe(&match answer {
            Ok(Decision::Admitted(permit)) => Event::Admitted { ask, permit, took },
            Ok(Decision::Denied(denial)) => Event::Denied { ask, denial, took },
            Err(error) => {
                let (policy, subject) = of_ask(ask);
                Event::Failed { policy, subject, error, took }
            }
        });
    }

    /// Reports a failure of `answer`, and passes it on.
    fn checked<T>(
        &self,
        (policy, subject): (&Policy, &str),
        since: u64,
        answer: Result<T, Error>,
    ) -> Result<T, Error> {
        answer.inspect_err(|error| {
            let took = self.clock.passed_since(since);
            self.observer.observe(&Event::Failed { policy, subject, error, took });
        })
    }
}

fn of_ask<'a>(ask: &'a Ask<'_>) -> (&'a Policy, &'a str) {
    (ask.policy(), ask.subject())
}

fn of_permit(permit: &Permit) -> (&Policy, &str) {
    (permit.policy(), permit.subject())
}

impl<G: Gate> Gate for Observed<G> {
    fn acquire<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Decision, Error>> {
        Box::pin(Watched { observed: self, ask, since: self.clock.mark(), answer: None })
    }

    fn acquire_at_once(&self, ask: &Ask<'_>) -> Option<Result<Decision, Error>> {
        let since = self.clock.mark();
        let answer = self.gate.acquire_at_once(ask)?;
        self.answered(ask, since, &answer);
        Some(answer)
    }

    fn settle<'a>(
        &'a self,
        permit: &'a Permit,
        actual: &'a Costs,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let since = self.clock.mark();
            let answer = self.gate.settle(permit, actual).await;
            let first = self.checked(of_permit(permit), since, answer)?;
            self.observer.observe(&Event::Settled { permit, actual, first });
            Ok(first)
        })
    }

    fn release<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let since = self.clock.mark();
            let answer = self.gate.release(permit).await;
            let first = self.checked(of_permit(permit), since, answer)?;
            self.observer.observe(&Event::Released { permit, first });
            Ok(first)
        })
    }

    fn renew<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<Permit, Error>> {
        Box::pin(async move {
            let since = self.clock.mark();
            let answer = self.gate.renew(permit).await;
            let renewed = self.checked(of_permit(permit), since, answer)?;
            self.observer.observe(&Event::Renewed { permit: &renewed });
            Ok(renewed)
        })
    }

    fn charge<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Permit, Error>> {
        Box::pin(async move {
            let since = self.clock.mark();
            let answer = self.gate.charge(ask).await;
            let permit = self.checked(of_ask(ask), since, answer)?;
            self.observer.observe(&Event::Charged { ask });
            Ok(permit)
        })
    }

    fn close_until<'a>(
        &'a self,
        ask: &'a Ask<'a>,
        limit: &'a str,
        until: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let since = self.clock.mark();
            let answer = self.gate.close_until(ask, limit, until).await;
            let done = self.checked(of_ask(ask), since, answer)?;
            self.observer.observe(&Event::Closed { ask, limit, until });
            Ok(done)
        })
    }

    fn standing<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Standing>, Error>> {
        Box::pin(async move {
            let since = self.clock.mark();
            let answer = self.gate.standing(policy, subject).await;
            self.checked((policy, subject), since, answer)
        })
    }

    fn reset<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let since = self.clock.mark();
            let answer = self.gate.reset(policy, subject).await;
            let done = self.checked((policy, subject), since, answer)?;
            self.observer.observe(&Event::Reset { policy, subject });
            Ok(done)
        })
    }
}

/// The answer to an ask, on its way through. Written by hand, because the answer is large, and a block of `async` would
/// move it several times.
struct Watched<'a, G> {
    observed: &'a Observed<G>,
    ask: &'a Ask<'a>,
    since: u64,
    /// From a gate that was not able to answer at once.
    answer: Option<BoxFuture<'a, Result<Decision, Error>>>,
}

impl<G: Gate> Future for Watched<'_, G> {
    type Output = Result<Decision, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Observed { gate, .. } = self.observed;
        let ask = self.ask;
        let answer = match &mut self.answer {
            Some(answer) => answer.as_mut().poll(context),
            answer @ None => match gate.acquire_at_once(ask) {
                Some(answer) => Poll::Ready(answer),
                None => answer.insert(gate.acquire(ask)).as_mut().poll(context),
            },
        };
        if let Poll::Ready(answer) = &answer {
            self.observed.answered(ask, self.since, answer);
        }
        answer
    }
}
