//! Asks with several charges while the store is away: the shares of all of them are taken under one lock, or none.
//!
//! What the store may have charged before it failed is posted as the same charge with the same id, in full: a charge of
//! several subjects has no arrears by limit. Everything else is owed by each subject alone.

use std::sync::Arc;

use tollgate_core::{
    Ask, Costs, Decision, Denial, JoinedOutcome, Joint, JointDecision, Operation, Outcome, Permit,
    Policy,
};

use super::account::{degraded, unexpected};
use super::options::FallbackOptions;
use super::owed::{By, Job, JointCharge};
use super::state::{Key, State, key_of};
use super::{Fallback, Shared};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind};
use crate::gate::Gate;

impl<G: Gate> Shared<G> {
    /// Decides `operation`, an acquire or charge of `ask`, without the store.
    pub(super) fn jointly(
        self: &Arc<Self>,
        operation: &Operation<'_>,
        ask: &Ask<'_>,
        in_doubt: bool,
    ) -> Result<Outcome, Error> {
        let clock = self.clock.as_ref();
        let answer = self.state().decide_jointly(operation, ask, clock, &self.options, in_doubt);
        self.show();
        self.start_recovery();
        answer
    }
}

impl<G: Gate> Fallback<G> {
    /// Settles, releases or renews a permit of several charges.
    pub(super) async fn run_on_joint(
        &self,
        operation: Operation<'_>,
        permit: &Permit,
    ) -> Result<Outcome, Error> {
        let mut joined = JoinedOutcome::default();
        if permit.degraded {
            for part in operation.parts()? {
                joined.add(self.run(part.operation()).await);
            }
            return joined.finish();
        }
        if let Operation::Renew(_) = operation {
            let why = "has a slot there that only the store can renew";
            return self.run_at_store(operation, why).await;
        }
        if let Some(outcome) = self.try_store(operation).await? {
            return Ok(outcome);
        }
        for part in operation.parts()? {
            joined.add(match part.operation() {
                Operation::Settle(permit, actual) => self.keep_for_store(permit, Some(actual)),
                Operation::Release(permit) => self.keep_for_store(permit, None),
                other => Err(Error::new(ErrorKind::Corrupt, format!("unexpected part: {other:?}"))),
            });
        }
        joined.finish()
    }
}

impl State {
    fn decide_jointly(
        &mut self,
        operation: &Operation<'_>,
        ask: &Ask<'_>,
        clock: &dyn Clock,
        options: &FallbackOptions,
        in_doubt: bool,
    ) -> Result<Outcome, Error> {
        ask.check()?;
        let lost = || Error::new(ErrorKind::Corrupt, "an account was lost");
        let mut keys: Vec<Key> = Vec::new();
        let mut rules: Vec<Policy> = Vec::new();
        for charge in ask.charges() {
            let (policy, subject) = (charge.policy(), charge.subject());
            rules.push(self.open_account(policy, subject, clock, options)?.rules()?.clone());
            keys.push(key_of(policy, subject));
        }
        let now = self.now(clock);
        let asked = relabelled(ask, &rules);
        let (asked, by) = match operation {
            Operation::Acquire(_) => (Operation::Acquire(&asked), By::Admission),
            _ => (Operation::Charge(&asked), By::Charge),
        };
        let ids = self.account(&keys[0]).ok_or_else(lost)?.ids();
        let known = ids.known(&asked, now);
        let mut decision = JointDecision::new(&asked, known, ids.others(&asked), now)?;
        for key in &keys {
            let account = self.account(key).ok_or_else(lost)?;
            if account.is_open(now) {
                decision.judge_open(account.entry())?;
            } else {
                decision.judge(account.entry())?;
            }
        }
        let is_charged = decision.conclude()?;
        for key in &keys {
            decision.complete(self.account(key).ok_or_else(lost)?.entry());
        }
        let Joint { outcome, id, others } = decision.finish();
        self.account(&keys[0]).ok_or_else(lost)?.ids().carry_out_joint(&asked, id, others);
        let given = match outcome {
            Outcome::Decided(Decision::Admitted(permit)) | Outcome::Permitted(permit) => permit,
            Outcome::Decided(Decision::Denied(denial)) => {
                let denial = Denial { degraded: true, ..denial };
                return Ok(Outcome::Decided(Decision::Denied(denial)));
            }
            other => return Err(unexpected(&other)),
        };
        let id = ask.id_text().filter(|_| in_doubt);
        let same_charge = id.map(|_| Arc::new(JointCharge::new(ask.clone().into_owned())));
        let mut permits = Vec::new();
        for (index, (key, given)) in keys.iter().zip(given.parts()).enumerate() {
            let part = ask.part(index).ok_or_else(lost)?;
            let permit = match &given.shadow_denied {
                Some(denial) => Permit::in_shadow(&part, (**denial).clone()),
                None => Permit::for_ask(&part, *given.grant(), given.limits.clone()),
            };
            let permit = if ask.has_own_costs(index) { permit.with_own_costs() } else { permit };
            let permit = degraded(permit);
            if is_charged {
                let job = same_charge.as_ref().map(|charge| Job::Joint {
                    doubtful: permit.grant().stamp,
                    index,
                    charge: Arc::clone(charge),
                });
                self.counted(key, |account| account.owe(&permit, &part, by, job))
                    .ok_or_else(lost)??;
            }
            permits.push(permit);
        }
        let permit = Permit::joined(permits).with_id(ask.id_text());
        Ok(match operation {
            Operation::Acquire(_) => Outcome::Decided(Decision::Admitted(permit)),
            _ => Outcome::Permitted(permit),
        })
    }
}

/// `ask` in the numbers of `rules`, which have the same units.
fn relabelled<'a>(ask: &'a Ask<'_>, rules: &'a [Policy]) -> Ask<'a> {
    let costs = |policy: &Policy, index: usize| -> Costs {
        ask.part(index).map(|part| policy.costs(part.amounts())).unwrap_or_default()
    };
    let first = Ask::new(&rules[0], ask.subject()).with_costs(&costs(&rules[0], 0));
    let more = ask.charges().zip(rules).enumerate().skip(1);
    let asked = more.fold(first, |asked, (index, (charge, rules))| {
        asked.and_costing(rules, charge.subject(), &costs(rules, index))
    });
    match ask.id_text() {
        Some(id) => asked.id_for(id, ask.id_ttl()),
        None => asked,
    }
}
