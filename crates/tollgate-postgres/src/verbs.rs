//! The verbs of a gate, each one operation on one row.

use tollgate::{
    Ask, BoxFuture, Costs, Decision, Error, Gate, Operation, Outcome, Permit, Policy, Standing,
    Timestamp,
};

use crate::gate::{Postgres, unexpected};

impl Gate for Postgres {
    fn acquire<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Decision, Error>> {
        Box::pin(async move {
            match self.run(Operation::Acquire(ask)).await? {
                Outcome::Decided(decision) => Ok(decision),
                other => Err(unexpected(&other)),
            }
        })
    }

    fn settle<'a>(
        &'a self,
        permit: &'a Permit,
        actual: &'a Costs,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(self.flag(Operation::Settle(permit, actual)))
    }

    fn release<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(self.flag(Operation::Release(permit)))
    }

    fn renew<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<Permit, Error>> {
        Box::pin(self.permit(Operation::Renew(permit)))
    }

    fn charge<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Permit, Error>> {
        Box::pin(self.permit(Operation::Charge(ask)))
    }

    fn close_until<'a>(
        &'a self,
        ask: &'a Ask<'a>,
        limit: &'a str,
        until: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        let (policy, subject) = (ask.policy(), ask.subject());
        Box::pin(self.flag(Operation::Close { policy, subject, limit, until }))
    }

    fn standing<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Standing>, Error>> {
        Box::pin(async move {
            let policy = policy.for_subject(subject);
            match self.run(Operation::Standing { policy, subject }).await? {
                Outcome::Stands(standings) => Ok(standings),
                other => Err(unexpected(&other)),
            }
        })
    }

    fn reset<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(self.flag(Operation::Reset { policy, subject }))
    }
}
