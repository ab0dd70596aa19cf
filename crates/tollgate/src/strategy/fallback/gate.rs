//! The operations of a fallback: which of them are answered locally while the store is away, which are kept for it, and
//! which fail.

use tollgate_core::{Costs, OnStoreFailure, Operation, Outcome, Permit, Policy};

use super::Fallback;
use super::account::Account;
use super::owed::Job;
use super::state::key_of;
use super::suspicion::may_be_of_store;
use crate::error::{Error, ErrorKind};
use crate::gate::{BoxFuture, Gate};

impl<G: Gate> Fallback<G> {
    /// Runs `operation` at the store. Returns `None` if the store is cut off or fails.
    pub(super) async fn try_store(
        &self,
        operation: Operation<'_>,
    ) -> Result<Option<Outcome>, Error> {
        if self.0.is_cut() {
            return Ok(None);
        }
        let since = self.0.clock.now();
        match self.0.gate.run(operation).await {
            Err(error) if may_be_of_store(&error) => {
                let (policy, subject) = (operation.policy(), operation.subject());
                let error = self.0.attribute(error, since, policy).await?;
                self.0.fail(&error, (policy, subject));
                Ok(None)
            }
            outcome => outcome.map(Some),
        }
    }

    async fn settle_permit(
        &self,
        operation: Operation<'_>,
        permit: &Permit,
        actual: Option<&Costs>,
    ) -> Result<Outcome, Error> {
        if permit.degraded {
            return self.settle_local(permit, actual).await.map(Outcome::Changed);
        }
        if let Some(outcome) = self.try_store(operation).await? {
            return Ok(outcome);
        }
        self.keep_for_store(permit, actual)
    }

    /// Keeps a settlement for a store that is away.
    pub(super) fn keep_for_store(
        &self,
        permit: &Permit,
        actual: Option<&Costs>,
    ) -> Result<Outcome, Error> {
        let job = match actual {
            Some(actual) => Job::Settle(permit.clone(), actual.clone()),
            None => Job::Release(permit.clone()),
        };
        self.0.keep(permit, job).map(Outcome::Changed)
    }

    fn renew_local(&self, permit: &Permit) -> Result<Outcome, Error> {
        let mut state = self.0.state();
        let now = state.now(self.0.clock.as_ref());
        match state.account(&key_of(permit.policy(), permit.subject())) {
            Some(account) if account.gave(permit) => {
                account.renew(permit, now).map(Outcome::Permitted)
            }
            _ => Err(Error::new(
                ErrorKind::Expired,
                "the permit was given without the store, by another instance or in another outage; acquire a new one",
            )),
        }
    }

    /// Runs at the store what only the store can do.
    pub(super) async fn run_at_store(
        &self,
        operation: Operation<'_>,
        why: &str,
    ) -> Result<Outcome, Error> {
        if self.0.is_cut() {
            return Err(self.0.closed(operation.policy(), why));
        }
        self.0.gate.run(operation).await
    }

    /// Returns the standing on this instance's share of the limits.
    fn local_standing(&self, policy: &Policy, subject: &str) -> Result<Outcome, Error> {
        if policy.on_store_failure() != OnStoreFailure::Fallback {
            return Err(self.0.closed(policy, "has no local share to report a standing on"));
        }
        let mut state = self.0.state();
        let now = state.now(self.0.clock.as_ref());
        let began = state.began.map_or(now, |began| began.wall);
        Ok(Outcome::Standings(match state.account(&key_of(policy, subject)) {
            Some(account) => account.standing(now),
            // Reading leaves no trace.
            None => Account::new(policy, &self.0.options, began).standing(now),
        }))
    }
}

impl<G: Gate> Gate for Fallback<G> {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(async move {
            match operation {
                Operation::Acquire(ask) => {
                    self.answer(operation, ask, |account, now, in_doubt| {
                        account.decide(ask, now, in_doubt).map(Outcome::Decided)
                    })
                    .await
                }
                Operation::Charge(ask) => {
                    self.answer(operation, ask, |account, now, in_doubt| {
                        account.charge(ask, now, in_doubt).map(Outcome::Permitted)
                    })
                    .await
                }
                Operation::Settle(permit, _)
                | Operation::Release(permit)
                | Operation::Renew(permit)
                    if permit.has_several_charges() =>
                {
                    self.run_on_joint(operation, permit).await
                }
                Operation::Settle(permit, actual) => {
                    self.settle_permit(operation, permit, Some(actual)).await
                }
                Operation::Release(permit) => self.settle_permit(operation, permit, None).await,
                Operation::Renew(permit) if permit.degraded => self.renew_local(permit),
                Operation::Renew(_) => {
                    self.run_at_store(operation, "has a slot there that only the store can renew")
                        .await
                }
                // Closes here at once if the store is away, whatever the policy says, and there once it is back.
                Operation::Close { policy, subject, limit, until } => {
                    if let Some(outcome) = self.try_store(operation).await? {
                        return Ok(outcome);
                    }
                    self.0.has_room()?;
                    let closed = self.0.locally(policy, subject, |account, now| {
                        account.close(subject, limit, until, now)
                    });
                    closed.map(Outcome::Changed)
                }
                Operation::Standing { policy, subject } => {
                    if let Some(outcome) = self.try_store(operation).await? {
                        return Ok(outcome);
                    }
                    self.0.start_recovery();
                    self.local_standing(policy, subject)
                }
                Operation::Reset { .. } => {
                    self.run_at_store(operation, "can be reset by the store only").await
                }
            }
        })
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}
