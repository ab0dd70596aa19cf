//! Seeing what a gate does, without a say in it.
//!
//! [`Observed`] wraps a gate and tells an [`Observer`] what happened. An observer cannot fail or change a decision; one
//! that is slow slows the caller, so sinks that write elsewhere hand events to a bounded queue of their own.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tollgate_core::{
    Amounts, Ask, Costs, Decision, Denial, Permit, Policy, Span, Standing, Timestamp,
};

use crate::clock::Clock;
use crate::error::Error;
use crate::gate::{BoxFuture, Gate};
use crate::incident::Incident;

/// What happened at a gate.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// An ask was admitted. A permit with `shadow_denied` is what shadow mode let through.
    Admitted {
        /// What was asked.
        ask: &'a Ask<'a>,
        /// What was given.
        permit: &'a Permit,
        /// How long the gate took.
        took: Span,
    },
    /// An ask was denied.
    Denied {
        /// What was asked.
        ask: &'a Ask<'a>,
        /// Why not.
        denial: &'a Denial,
        /// How long the gate took.
        took: Span,
    },
    /// A permit was settled with its actual cost.
    Settled {
        /// The permit.
        permit: &'a Permit,
        /// What it really cost.
        actual: &'a Costs,
        /// Whether it was the first time.
        first: bool,
    },
    /// A permit was released.
    Released {
        /// The permit.
        permit: &'a Permit,
        /// Whether it was the first time.
        first: bool,
    },
    /// A permit's slots were renewed.
    Renewed {
        /// The permit, renewed.
        permit: &'a Permit,
    },
    /// An ask was charged without deciding.
    Charged {
        /// What was charged.
        ask: &'a Ask<'a>,
    },
    /// A limit was closed.
    Closed {
        /// For which policy and subject.
        ask: &'a Ask<'a>,
        /// The name of the limit.
        limit: &'a str,
        /// Until when.
        until: Timestamp,
    },
    /// An entry was forgotten on an operator's word.
    Reset {
        /// The policy.
        policy: &'a Policy,
        /// For whom.
        subject: &'a str,
    },
    /// The gate could not decide.
    Failed {
        /// The policy.
        policy: &'a Policy,
        /// For whom.
        subject: &'a str,
        /// Why not.
        error: &'a Error,
        /// How long it took to fail.
        took: Span,
    },
    /// The store was tried once on behalf of a caller.
    Tried {
        /// The policy.
        policy: &'a Policy,
        /// Which try of one call it was, from 1.
        attempt: u32,
        /// How long the store took.
        took: Span,
        /// How it ended.
        result: Tried,
    },
    /// The store failed so often that decisions are made without it from now on.
    DegradedBegan {
        /// The last failure.
        error: &'a Error,
    },
    /// The store answers again, and what was spent without it has been posted.
    DegradedEnded {
        /// How long decisions were made without it.
        lasted: Span,
    },
    /// A leased gate asked the store for a block: one write.
    BlockAsked {
        /// The policy.
        policy: &'a Policy,
        /// How much of each unit.
        amounts: &'a Amounts,
        /// Whether the store gave it.
        admitted: bool,
    },
    /// A block ended, and what was left of it went back.
    BlockReturned {
        /// The policy.
        policy: &'a Policy,
        /// What it held.
        taken: &'a Amounts,
        /// What nobody spent.
        unspent: &'a Amounts,
        /// Whether that was written to the store; if not, time had given it back already, or nothing was left.
        posted: bool,
    },
    /// What an optimistic gate has admitted and not yet posted to the store changed.
    Unposted {
        /// The policy.
        policy: &'a Policy,
        /// The admitted requests that the store does not know of.
        unposted: u64,
        /// The most that this instance lets them become: its share of the possible over-issue.
        unposted_max: u64,
    },
    /// A provider refused what was admitted.
    Violated {
        /// The policy.
        policy: &'a Policy,
        /// What was known about it.
        incident: &'a Incident,
    },
}

/// How one try of a store ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tried {
    /// The store answered.
    Answered,
    /// Another caller changed the entry first, so the store must be asked again.
    Raced,
    /// The store refused for its own load.
    Throttled,
    /// The store failed or did not answer in time.
    Failed,
}

/// Is told what happens at a gate. Must return quickly, and cannot fail.
pub trait Observer: Debug + Send + Sync + 'static {
    /// Something happened.
    fn observe(&self, event: &Event<'_>);
}

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
