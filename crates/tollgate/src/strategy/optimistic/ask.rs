//! Asks that only the store can decide: posts local admissions first, asks, and learns from the reply.

use tollgate_core::{Amounts, Ask, Decision, Policy, Timestamp, Wait};

use super::Optimistic;
use super::account::Account;
use super::view::{self, StoreReply};
use crate::error::Error;
use crate::gate::{Gate, decide};

/// How often an ask that only the store can answer waits for posts of asks that were admitted meanwhile. After that it
/// goes ahead, within the bound.
const FLUSHES_MAX: u32 = 8;

impl<G: Gate> Optimistic<G> {
    /// Acquires at the store, after posting everything that this instance admitted.
    pub(super) async fn ask_store(&self, ask: &Ask<'_>) -> Result<Decision, Error> {
        let (policy, subject) = (ask.policy(), ask.subject());
        if policy.has_slots() {
            return decide(&self.shared.gate, ask).await;
        }
        let caps = self.shared.options.caps(policy);
        let (mut version, mut asked) = (0, Amounts::default());
        for flushes in 0.. {
            // If posting fails, asking may still work, and is within the bound. A caller whose wait just failed does not
            // wait again.
            let failing =
                self.shared.ledger.with(policy, subject, |account| account.outbox().is_failing());
            let flushed = match self.shared.in_time(self.flush(policy, subject)).await {
                Err(error) if error.is_unavailable() && failing == Some(false) => {
                    return Err(error);
                }
                flushed => flushed,
            };
            if matches!(flushed, Ok(true))
                && let Some(decision) = self.local(ask)?
            {
                return Ok(decision);
            }
            let last = flushed.is_err() || flushes == FLUSHES_MAX;
            let now = self.shared.clock.now();
            let ready = self.shared.ledger.with(policy, subject, |account| {
                if account.has_unposted() && !last {
                    return false;
                }
                if account.change_policy(policy, &caps) {
                    account.begin_asking(ask.amounts(), now);
                    asked = *ask.amounts();
                }
                version = account.version();
                true
            });
            if ready != Some(false) {
                break;
            }
        }
        let asking = Asking { gate: self, policy, subject, amounts: asked };
        let decision = decide(&self.shared.gate, ask).await?;
        drop(asking);
        let (limits, at) = match &decision {
            Decision::Admitted(permit) => match &permit.shadow_denied {
                Some(denial) => (&denial.limits, denial.decided_at),
                None => (&permit.limits, permit.grant().at),
            },
            Decision::Denied(denial) => (&denial.limits, denial.decided_at),
        };
        let reply = StoreReply { policy, limits, at: Some(at) };
        self.learn(ask, reply, version, |account, now| {
            if let Decision::Denied(denial) = &decision
                && let Wait::Until(until) = denial.wait
                && ask.in_front().is_empty()
            {
                let recheck = now + self.shared.options.recheck_after;
                account.learn_denial(ask, denial, until.min(recheck));
            }
        });
        Ok(decision)
    }

    /// Updates the account from a reply of the store; creates the account if there is none.
    pub(super) fn learn(
        &self,
        ask: &Ask<'_>,
        reply: StoreReply<'_>,
        version: u64,
        then: impl FnOnce(&mut Account, Timestamp),
    ) {
        let now = self.shared.clock.now();
        let (policy, subject) = (ask.policy(), ask.subject());
        // Without an answer an account would believe that nothing is used.
        if view::entry(reply, now).is_none() {
            return;
        }
        let make = || Account::new(policy, subject, &self.shared.options.caps(policy), now);
        self.shared.ledger.with_new((policy, subject), now, make, |account| {
            account.learn(reply, version, now);
            then(account, now);
            // The store answers, so calls that failed before may succeed now.
            if account.has_calls() {
                account.outbox().urge();
            }
        });
    }
}

/// Counts the costs of an ask as used until it is dropped.
pub(super) struct Asking<'a, G: Gate> {
    pub(super) gate: &'a Optimistic<G>,
    pub(super) policy: &'a Policy,
    pub(super) subject: &'a str,
    pub(super) amounts: Amounts,
}

impl<G: Gate> Drop for Asking<'_, G> {
    fn drop(&mut self) {
        let ledger = &self.gate.shared.ledger;
        ledger.with(self.policy, self.subject, |account| account.end_asking(&self.amounts));
    }
}
