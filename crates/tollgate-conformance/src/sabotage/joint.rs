//! A gate that takes several charges apart, in one of the ways that seem to work.

use std::borrow::Cow;

use tollgate::gate::BoxFuture;
use tollgate::{Error, Gate};
use tollgate_core::{Ask, Decision, Operation, Outcome, Permit};

/// The defect of an [`Unjoined`] gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JointFault {
    /// None; the control.
    None,
    /// Leaves out the last charge, and says that it was charged.
    ChargesAllButTheLast,
    /// Acquires one charge after the other, and releases them if one is refused.
    RefundsByHand,
}

/// A gate with one fault in front of a correct one.
#[derive(Debug)]
pub struct Unjoined<G> {
    gate: G,
    fault: JointFault,
}

impl<G: Gate> Unjoined<G> {
    /// A gate with `fault` in front of `gate`.
    pub const fn new(fault: JointFault, gate: G) -> Self {
        Self { gate, fault }
    }

    async fn all_but_the_last(&self, ask: &Ask<'_>) -> Result<Outcome, Error> {
        let mut charges = ask.charges();
        let first = charges.next().expect("an ask has a charge");
        let last = charges.len() - 1;
        let mut fewer = Ask::new(first.policy(), first.subject()).with_costs(&ask.costs());
        for charge in charges.take(last) {
            let costs = charge.policy().costs(charge.amounts());
            fewer = fewer.and_costing(charge.policy(), charge.subject(), &costs);
        }
        let outcome = self.gate.run(Operation::Acquire(&fewer)).await?;
        let (Outcome::Decided(Decision::Admitted(permit)), Some(left)) =
            (&outcome, ask.part(last + 1))
        else {
            return Ok(outcome);
        };
        let claimed = Permit::for_ask(&left, *permit.grant(), Vec::new());
        let parts = permit.parts().map(Cow::into_owned);
        let permit = Permit::joined(parts.chain([claimed]).collect());
        Ok(Outcome::Decided(Decision::Admitted(permit)))
    }

    async fn by_hand(&self, ask: &Ask<'_>) -> Result<Outcome, Error> {
        let mut permits = Vec::new();
        for index in 0..ask.charges().len() {
            let part = ask.part(index).expect("it has as many charges");
            match self.gate.run(Operation::Acquire(&part)).await? {
                Outcome::Decided(Decision::Admitted(permit)) => permits.push(permit),
                refused => {
                    for permit in &permits {
                        self.gate.run(Operation::Release(permit)).await?;
                    }
                    return Ok(refused);
                }
            }
            tokio::task::yield_now().await;
        }
        Ok(Outcome::Decided(Decision::Admitted(Permit::joined(permits))))
    }
}

impl<G: Gate> Gate for Unjoined<G> {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        match (self.fault, operation) {
            (JointFault::ChargesAllButTheLast, Operation::Acquire(ask)) if operation.is_joint() => {
                Box::pin(self.all_but_the_last(ask))
            }
            (JointFault::RefundsByHand, Operation::Acquire(ask)) if operation.is_joint() => {
                Box::pin(self.by_hand(ask))
            }
            _ => self.gate.run(operation),
        }
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}
