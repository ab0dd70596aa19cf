//! The operations of a leased gate: how blocks take part in each of them.

use std::future::ready;

use tollgate_core::{Amounts, Operation, Outcome};

use super::Leased;
use crate::error::Error;
use crate::gate::{BoxFuture, Gate};

impl<G: Gate> Gate for Leased<G> {
    /// Standings are the store's: unspent tokens in blocks, here or elsewhere, count as used.
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        match operation {
            Operation::Acquire(ask) => {
                Box::pin(async move { self.decide(ask).await.map(Outcome::Decided) })
            }
            Operation::Settle(permit, actual) if permit.is_local() => Box::pin(async move {
                let actual = permit.charged().with_actual(actual)?;
                self.settle_local(permit, &actual).await.map(Outcome::Changed)
            }),
            Operation::Release(permit) if permit.is_local() => Box::pin(async move {
                self.settle_local(permit, &Amounts::default()).await.map(Outcome::Changed)
            }),
            // A permit out of a block holds no slot and is returned as it is.
            Operation::Renew(permit) if permit.is_local() => {
                Box::pin(ready(Ok(Outcome::Permitted(permit.clone()))))
            }
            // Blocks of this instance are not spent from now on; those of others end within the `block_ttl`.
            Operation::Close { policy, subject, .. } | Operation::Reset { policy, subject } => {
                Box::pin(async move {
                    self.stop(policy, subject);
                    let outcome = self.0.gate.run(operation).await;
                    // A block may have been leased while the store ran the operation.
                    self.stop(policy, subject);
                    outcome
                })
            }
            other => self.0.gate.run(other),
        }
    }

    fn try_run(&self, operation: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        match operation {
            Operation::Acquire(ask) => match self.try_decide(ask) {
                Ok(decision) => decision.map(|decision| Ok(Outcome::Decided(decision))),
                Err(error) => Some(Err(error)),
            },
            _ => None,
        }
    }
}
