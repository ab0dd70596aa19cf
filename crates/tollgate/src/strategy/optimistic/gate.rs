//! The verbs of an optimistic gate.
//!
//! What is not an admission goes to the store, after what was admitted. Permits of the store are the store's; those of
//! local decisions are settled here, where it is known in which post they are.

use std::sync::Arc;

use tollgate_core::{
    Ask, Costs, Decision, Entry, Permit, Policy, Standing, Timestamp, release, settle,
};

use super::Optimistic;
use super::account::{Settled, Sums};
use super::stamp::Giver;
use super::view::Seen;
use crate::error::Error;
use crate::gate::{BoxFuture, Gate};
use crate::strategy::elsewhere::charge_extra;

impl<G: Gate> Optimistic<G> {
    /// Settles a permit of a local decision, for `actual` or for nothing at all. It has a `number` if it was made here.
    async fn settle_local(
        &self,
        permit: &Permit,
        number: Option<u64>,
        actual: Option<&Costs>,
    ) -> Result<bool, Error> {
        let (policy, subject) = (permit.policy(), permit.subject());
        self.check(permit, actual)?;
        let (extra, less) = difference(permit, actual);
        let settle = |charged| {
            let known = number.and_then(|number| {
                self.shared.ledger.with(policy, subject, |account| {
                    let now = self.shared.clock.now();
                    account.settle((number, policy), (&extra, &less), charged, now)
                })
            });
            known.unwrap_or(Settled::Unknown)
        };
        let mut settled = settle(false);
        if matches!(settled, Settled::ChargeFirst | Settled::Unknown) {
            let extra = policy.units().zip(extra).collect();
            if !charge_extra(self, permit, &extra).await? {
                return Ok(false);
            }
            settled = settle(true);
        }
        match settled {
            Settled::First { wake } => {
                if wake {
                    self.wake(policy, subject);
                }
                Ok(true)
            }
            Settled::Before => Ok(false),
            Settled::ChargeFirst | Settled::Unknown => Ok(true),
        }
    }

    /// Settles a permit of the store, where it was given.
    fn settle_at_store<'a>(
        &'a self,
        permit: &'a Permit,
        actual: Option<&'a Costs>,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let done = match actual {
                Some(actual) => self.shared.gate.settle(permit, actual).await?,
                None => self.shared.gate.release(permit).await?,
            };
            if done {
                let (policy, now) = (permit.policy(), self.shared.clock.now());
                let (extra, _) = difference(permit, actual);
                self.shared.ledger.with(policy, permit.subject(), |account| {
                    account.settled_at_store(policy, &extra, now);
                });
            }
            Ok(done)
        })
    }

    /// What the core says to a wrong settlement, or to one that comes too late.
    fn check(&self, permit: &Permit, actual: Option<&Costs>) -> Result<(), Error> {
        let now = self.shared.clock.now();
        let (mut entry, charged) = (Entry::fresh(permit.policy(), now), permit.charged());
        match actual {
            Some(actual) => settle(&mut entry, now, &charged, actual)?,
            None => release(&mut entry, now, &charged)?,
        };
        Ok(())
    }
}

/// What the actual cost is over and under the estimate, by place.
fn difference(permit: &Permit, actual: Option<&Costs>) -> (Sums, Sums) {
    let (mut extra, mut less) = (Sums::default(), Sums::default());
    for (place, unit) in permit.policy().units().enumerate() {
        let estimate = permit.charged().amounts.at(place);
        let wanted = actual.map_or(0, |actual| actual.get(unit).unwrap_or(estimate));
        extra[place] = wanted.saturating_sub(estimate);
        less[place] = estimate.saturating_sub(wanted);
    }
    (extra, less)
}

impl<G: Gate> Gate for Optimistic<G> {
    fn acquire<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Decision, Error>> {
        Box::pin(async move {
            match self.local(ask)? {
                Some(decision) => Ok(decision),
                None => self.ask_store(ask).await,
            }
        })
    }

    fn settle<'a>(
        &'a self,
        permit: &'a Permit,
        actual: &'a Costs,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        match self.stamps.giver(permit) {
            Giver::Store => self.settle_at_store(permit, Some(actual)),
            Giver::Local(number) => Box::pin(self.settle_local(permit, number, Some(actual))),
        }
    }

    fn release<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<bool, Error>> {
        match self.stamps.giver(permit) {
            Giver::Store => self.settle_at_store(permit, None),
            Giver::Local(number) => Box::pin(self.settle_local(permit, number, None)),
        }
    }

    fn renew<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<Permit, Error>> {
        match self.stamps.giver(permit) {
            Giver::Store => self.shared.gate.renew(permit),
            // A local permit holds no slots, and such a permit is renewed as it is.
            Giver::Local(_) => Box::pin(async { Ok(permit.clone()) }),
        }
    }

    fn charge<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Permit, Error>> {
        Box::pin(async move {
            let (policy, subject) = (ask.policy(), ask.subject());
            let version = self.shared.ledger.with(policy, subject, |account| account.version());
            let permit = self.shared.gate.charge(ask).await?;
            if let Some(version) = version {
                let seen = Seen { policy, limits: &permit.limits, at: Some(permit.grant().at) };
                self.learn(ask, seen, version, |_, _| {});
            }
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
            let now = self.shared.clock.now();
            let closed = self
                .shared
                .ledger
                .with(ask.policy(), ask.subject(), |account| account.close(limit, until, now));
            closed.transpose()?;
            self.shared.gate.close_until(ask, limit, until).await
        })
    }

    fn standing<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Standing>, Error>> {
        Box::pin(async move {
            if !policy.has_slots() {
                self.flush(policy, subject).await?;
            }
            self.shared.gate.standing(policy, subject).await
        })
    }

    fn reset<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            self.flush(policy, subject).await?;
            let done = self.shared.gate.reset(policy, subject).await?;
            let now = self.shared.clock.now();
            self.shared.ledger.with(policy, subject, |account| account.reset(now));
            Ok(done)
        })
    }
}

// Shared by clones of an `Arc`, as every gate is.
const _: fn(Arc<Optimistic<Arc<dyn Gate>>>) = |_| {};
