//! Asks with several charges: the whole ask goes to the store, after the local admissions of its subjects.

use tollgate_core::{Amounts, Ask, Decision, Operation, Outcome, Standing, Timestamp};

use super::Optimistic;
use super::ask::Asking;
use super::gate::difference;
use super::view::StoreReply;
use crate::error::Error;
use crate::gate::Gate;

impl<G: Gate> Optimistic<G> {
    /// Runs an operation on several charges at the store, and learns from the reply.
    pub(super) async fn run_jointly(&self, operation: Operation<'_>) -> Result<Outcome, Error> {
        let (ask, is_acquire) = match operation {
            Operation::Acquire(ask) => (ask, true),
            Operation::Charge(ask) => (ask, false),
            _ => return self.settle_jointly(operation).await,
        };
        ask.check()?;
        let parts: Vec<Ask<'_>> =
            (0..ask.charges().len()).filter_map(|index| ask.part(index)).collect();
        let (mut asking, mut versions) = (Vec::new(), Vec::new());
        for part in &parts {
            let (policy, subject) = (part.policy(), part.subject());
            if is_acquire && !policy.has_slots() {
                asking.push(self.begin_asking(part).await?);
            }
            versions.push(self.shared.ledger.with(policy, subject, |account| account.version()));
        }
        let outcome = self.shared.gate.run(operation).await?;
        drop(asking);
        for (index, (part, version)) in parts.iter().zip(versions).enumerate() {
            let policy = part.policy();
            if policy.has_slots() || !is_acquire && version.is_none() {
                continue;
            }
            if let Some((limits, at)) = reply_of(&outcome, index) {
                let reply = StoreReply { policy, limits: &limits, at: Some(at) };
                self.learn(part, reply, version.unwrap_or(0), |_, _| {});
            }
        }
        Ok(outcome)
    }

    /// Posts the local admissions of the subject of `part`, and counts the part as used while the store decides.
    async fn begin_asking<'a>(&'a self, part: &'a Ask<'_>) -> Result<Asking<'a, G>, Error> {
        let (policy, subject) = (part.policy(), part.subject());
        let ledger = &self.shared.ledger;
        let failing = ledger.with(policy, subject, |account| account.outbox().is_failing());
        match self.shared.in_time(self.flush(policy, subject)).await {
            Err(error) if error.is_unavailable() && failing == Some(false) => return Err(error),
            // If posting fails, asking may still work, and is within the bound.
            _ => {}
        }
        let (caps, now) = (self.shared.options.caps(policy), self.shared.clock.now());
        let counted = ledger.with(policy, subject, |account| {
            let is_counted = account.change_policy(policy, &caps);
            if is_counted {
                account.begin_asking(part.amounts(), now);
            }
            is_counted
        });
        let amounts = if counted == Some(true) { *part.amounts() } else { Amounts::default() };
        Ok(Asking { gate: self, policy, subject, amounts })
    }

    /// Settles, releases or renews at the store, which gave the permit.
    async fn settle_jointly(&self, operation: Operation<'_>) -> Result<Outcome, Error> {
        let outcome = self.shared.gate.run(operation).await?;
        if outcome != Outcome::Changed(true) {
            return Ok(outcome);
        }
        let now = self.shared.clock.now();
        for part in operation.parts()? {
            let (permit, actual) = match part.operation() {
                Operation::Settle(permit, actual) => (permit, Some(actual)),
                Operation::Release(permit) => (permit, None),
                _ => continue,
            };
            let (policy, (extra, _)) = (permit.policy(), difference(permit, actual)?);
            self.shared.ledger.with(policy, permit.subject(), |account| {
                account.settled_at_store(policy, &extra, now);
            });
        }
        Ok(outcome)
    }
}

/// The standings of the charge at `index`, and when the store decided.
fn reply_of(outcome: &Outcome, index: usize) -> Option<(Vec<Standing>, Timestamp)> {
    match outcome {
        Outcome::Decided(Decision::Admitted(permit)) | Outcome::Permitted(permit) => {
            let part = permit.parts().nth(index)?;
            Some(match &part.shadow_denied {
                Some(denial) => (denial.limits.clone(), denial.decided_at),
                None => (part.limits.clone(), part.grant().at),
            })
        }
        Outcome::Decided(Decision::Denied(denial)) => {
            let charge = denial.joint.as_ref()?.charges.get(index)?;
            Some((charge.limits.clone(), denial.decided_at))
        }
        _ => None,
    }
}
