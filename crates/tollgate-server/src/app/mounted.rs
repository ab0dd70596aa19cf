//! What a mounted protocol needs: its calls wait in the queue of all protocols, and are counted and recorded like theirs.

use std::task::{Context, Waker};

use tokio::sync::watch;
use tollgate::audit::{Outcome, Record};
use tollgate::gate::{Alternatives, BoxFuture};
use tollgate::incident::{Incident, Violation, report_violation};
use tollgate::queue::Ticket;
use tollgate::{Ask, Costs, Decision, Error, GateExt, Permit, Timestamp};

use super::{App, Incidents};

impl App {
    /// Returns a receiver that is notified after each change of the policies from now on.
    #[must_use]
    pub fn policy_changes(&self) -> watch::Receiver<()> {
        self.live_policies.changes()
    }

    /// Waits until one of `alternatives` is admitted, at most until `deadline`, at the place of `ticket` in the queue of all
    /// protocols. The audit names the key `by`. Returns also the index of the alternative that was decided.
    ///
    /// # Errors
    /// As [`Queue::acquire_any_in_turn`](tollgate::Queue::acquire_any_in_turn).
    pub async fn acquire_any_in_turn(
        &self,
        alternatives: &Alternatives<'_>,
        deadline: Timestamp,
        ticket: &mut Ticket,
        by: &str,
    ) -> Result<(usize, Decision), Error> {
        let decided = self.gate.acquire_any_in_turn(alternatives, deadline, ticket).await;
        let ask = decided.as_ref().map_or(0, |(index, _)| *index);
        if let Some(ask) = alternatives.asks().get(ask) {
            self.record_decision(ask, decided.as_ref().map(|(_, decision)| decision), by);
        }
        decided
    }

    /// Settles `permit` to `actual`, within the bound of
    /// [`settle_excess_max`](crate::ServerOptions::settle_excess_max). Returns whether anything changed.
    ///
    /// # Errors
    /// Errors of the gate.
    pub async fn settle_permit(&self, permit: &Permit, actual: &Costs) -> Result<bool, Error> {
        self.settle_whole(permit, actual).await
    }

    /// Charges what a call cost beyond the estimate of `permit`, which is too old to be settled, within the bound of
    /// [`settle_excess_max`](crate::ServerOptions::settle_excess_max). Nothing is given back. Returns whether there was anything
    /// to charge. Not idempotent.
    ///
    /// # Errors
    /// Errors of the gate.
    pub async fn charge_excess(&self, permit: &Permit, actual: &Costs) -> Result<bool, Error> {
        let mut is_charged = false;
        for part in permit.parts() {
            let is_free = part.shadow_denied.is_some() || part.policy().is_unlimited();
            if is_free || part.has_own_costs() {
                continue;
            }
            let (bounded, estimate) = (self.bounded(&part, actual), part.costs());
            // Every unit is named: one that is not would cost one request.
            let mut excess = Costs::new();
            for unit in part.policy().units() {
                let [actual, charged] = [&*bounded, &estimate].map(|it| it.get(unit).unwrap_or(0));
                excess.set(unit, actual.saturating_sub(charged));
            }
            if excess.iter().any(|(_, amount)| 0 < amount) {
                let ask = Ask::new_costing(part.policy(), part.subject(), &excess);
                self.gate.charge(&ask).await?;
                is_charged = true;
            }
        }
        Ok(is_charged)
    }

    /// Releases `permit`: the call was not made. Returns whether anything changed.
    ///
    /// # Errors
    /// Errors of the gate.
    pub async fn release_permit(&self, permit: &Permit) -> Result<bool, Error> {
        self.gate.release(permit).await
    }

    /// Extends the slots of `permit` by another time to live.
    ///
    /// # Errors
    /// Errors of the gate.
    pub async fn renew_permit(&self, permit: &Permit) -> Result<Permit, Error> {
        self.gate.renew(permit).await
    }

    /// Closes `limit` of the policy and subject of `ask`, which has one charge, until a time. Returns whether anything changed.
    ///
    /// # Errors
    /// Errors of the gate.
    pub async fn close_limit(
        &self,
        ask: &Ask<'_>,
        limit: &str,
        until: Timestamp,
    ) -> Result<bool, Error> {
        self.gate.close_until(ask, limit, until).await
    }

    /// Reports that a provider refused an admitted call of the key `by`, and closes the limit for as long as the provider said.
    ///
    /// # Errors
    /// As [`report_violation`].
    pub async fn report_violation(
        &self,
        violation: &Violation<'_>,
        by: &str,
    ) -> Result<Incident, Error> {
        let Incidents { recorder, observer } = &self.incidents;
        let (gate, clock) = (&self.gate, &*self.clock);
        let incident = report_violation(gate, recorder, &**observer, clock, violation).await?;
        let Violation { ask, retry_after, .. } = violation;
        self.audit.violated(ask, &incident, *retry_after, by, clock.now());
        self.count_action(Outcome::Violated, by);
        Ok(incident)
    }

    /// Counts and records a failed authentication; `by` is the name of an expired key, or empty.
    pub fn record_unauthenticated(&self, by: &str) {
        let what = Outcome::Unauthenticated;
        self.count_action(what, by);
        if self.may_record_refusal() {
            self.audit.record_action(Record::action(what, "", "", by, self.now()));
        }
    }

    /// Runs `work` to completion even if its client disconnects: at once if it is ready, otherwise in a task that shutdown waits
    /// for.
    pub fn finish_in_background(&self, mut work: BoxFuture<'static, ()>) {
        let mut context = Context::from_waker(Waker::noop());
        if work.as_mut().poll(&mut context).is_pending() {
            drop(self.run_to_completion(work));
        }
    }

    /// Returns whether the server closes: nothing waits any more.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }
}
