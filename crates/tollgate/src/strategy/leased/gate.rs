//! The verbs of a leased gate: what blocks have to do with each of them.

use tollgate_core::{Amounts, Ask, Costs, Decision, Permit, Policy, Standing, Timestamp};

use super::Leased;
use crate::error::Error;
use crate::gate::{BoxFuture, Gate};

impl<G: Gate> Gate for Leased<G> {
    fn acquire<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Decision, Error>> {
        Box::pin(self.decide(ask))
    }

    fn settle<'a>(
        &'a self,
        permit: &'a Permit,
        actual: &'a Costs,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            if !permit.is_local() {
                return self.0.gate.settle(permit, actual).await;
            }
            let actual = permit.charged().with_actual(actual)?;
            self.settle_local(permit, &actual).await
        })
    }

    fn release<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            if !permit.is_local() {
                return self.0.gate.release(permit).await;
            }
            self.settle_local(permit, &Amounts::default()).await
        })
    }

    /// A permit out of a block holds no slot and is returned as it is.
    fn renew<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<Permit, Error>> {
        if permit.is_local() {
            return Box::pin(async { Ok(permit.clone()) });
        }
        self.0.gate.renew(permit)
    }

    fn charge<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Permit, Error>> {
        self.0.gate.charge(ask)
    }

    /// Blocks of this instance are not spent from now on; those of others end within the `block_ttl`.
    fn close_until<'a>(
        &'a self,
        ask: &'a Ask<'a>,
        limit: &'a str,
        until: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            self.stop(ask.policy(), ask.subject());
            let closed = self.0.gate.close_until(ask, limit, until).await;
            // What was leased while the store was being told.
            self.stop(ask.policy(), ask.subject());
            closed
        })
    }

    /// As the store says: tokens that lie unspent in blocks, here or elsewhere, count as used.
    fn standing<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Standing>, Error>> {
        self.0.gate.standing(policy, subject)
    }

    /// Blocks of this instance are not spent from now on; what others hold comes on top for up to the `block_ttl`.
    fn reset<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            self.stop(policy, subject);
            let done = self.0.gate.reset(policy, subject).await;
            self.stop(policy, subject);
            done
        })
    }
}
