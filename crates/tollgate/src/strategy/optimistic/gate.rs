//! The operations of an optimistic gate.
//!
//! Operations other than acquires go to the store, after the local admissions. A permit of the store is settled by the
//! store; a permit of a local decision is settled here, where its post is known.

use std::sync::Arc;

use tollgate_core::{Amounts, Ask, Costs, Entry, Operation, Outcome, Permit, release, settle};

use super::Optimistic;
use super::account::Settled;
use super::stamp::Giver;
use super::view::StoreReply;
use crate::error::Error;
use crate::gate::{BoxFuture, Gate};
use crate::strategy::foreign_permit::charge_extra;

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
        let (extra, less) = difference(permit, actual)?;
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
            if !charge_extra(self, permit, &policy.costs(&extra)).await? {
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

    /// Settles `permit` where it was given, for `actual` or for nothing at all.
    async fn settle_permit(
        &self,
        operation: Operation<'_>,
        permit: &Permit,
        actual: Option<&Costs>,
    ) -> Result<Outcome, Error> {
        if let Giver::Local(number) = self.stamps.giver(permit) {
            return self.settle_local(permit, number, actual).await.map(Outcome::Changed);
        }
        let outcome = self.shared.gate.run(operation).await?;
        if outcome == Outcome::Changed(true) {
            let (policy, now) = (permit.policy(), self.shared.clock.now());
            let (extra, _) = difference(permit, actual)?;
            self.shared.ledger.with(policy, permit.subject(), |account| {
                account.settled_at_store(policy, &extra, now);
            });
        }
        Ok(outcome)
    }

    /// Charges at the store, and learns from the standings in its answer.
    async fn charge_at_store(
        &self,
        operation: Operation<'_>,
        ask: &Ask<'_>,
    ) -> Result<Outcome, Error> {
        let (policy, subject) = (ask.policy(), ask.subject());
        let version = self.shared.ledger.with(policy, subject, |account| account.version());
        let outcome = self.shared.gate.run(operation).await?;
        if let (Some(version), Outcome::Permitted(permit)) = (version, &outcome) {
            let reply = StoreReply { policy, limits: &permit.limits, at: Some(permit.grant().at) };
            self.learn(ask, reply, version, |_, _| {});
        }
        Ok(outcome)
    }

    /// Rejects a wrong settlement, or one that comes too late.
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

/// Returns by how much the actual cost is over and under the estimate.
pub(super) fn difference(
    permit: &Permit,
    actual: Option<&Costs>,
) -> Result<(Amounts, Amounts), Error> {
    let charged = permit.charged();
    let wanted = actual.map(|actual| charged.with_actual(actual)).transpose()?.unwrap_or_default();
    Ok((wanted.minus(charged.amounts), charged.amounts.minus(&wanted)))
}

impl<G: Gate> Gate for Optimistic<G> {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(async move {
            match operation {
                joint if joint.is_joint() => self.run_jointly(joint).await,
                Operation::Acquire(ask) => match self.local(ask)? {
                    Some(decision) => Ok(Outcome::Decided(decision)),
                    None => self.ask_store(ask).await.map(Outcome::Decided),
                },
                Operation::Settle(permit, actual) => {
                    self.settle_permit(operation, permit, Some(actual)).await
                }
                Operation::Release(permit) => self.settle_permit(operation, permit, None).await,
                // A local permit holds no slots, and is renewed as it is.
                Operation::Renew(permit)
                    if matches!(self.stamps.giver(permit), Giver::Local(_)) =>
                {
                    Ok(Outcome::Permitted(permit.clone()))
                }
                Operation::Renew(_) => self.shared.gate.run(operation).await,
                Operation::Charge(ask) => self.charge_at_store(operation, ask).await,
                Operation::Close { policy, subject, limit, until } => {
                    let now = self.shared.clock.now();
                    let closed = self
                        .shared
                        .ledger
                        .with(policy, subject, |account| account.close(limit, until, now));
                    closed.transpose()?;
                    self.shared.gate.run(operation).await
                }
                Operation::Standing { policy, subject } => {
                    if !policy.has_slots() {
                        self.flush(policy, subject).await?;
                    }
                    self.shared.gate.run(operation).await
                }
                Operation::Reset { policy, subject } => {
                    self.flush(policy, subject).await?;
                    let outcome = self.shared.gate.run(operation).await?;
                    let now = self.shared.clock.now();
                    self.shared.ledger.with(policy, subject, |account| account.reset(now));
                    Ok(outcome)
                }
            }
        })
    }

    fn try_run(&self, operation: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        match operation {
            Operation::Acquire(ask) => {
                self.local(ask).transpose().map(|decision| decision.map(Outcome::Decided))
            }
            _ => None,
        }
    }
}

// Shared by clones of an `Arc`, as every gate is.
const _: fn(Arc<Optimistic<Arc<dyn Gate>>>) = |_| {};
