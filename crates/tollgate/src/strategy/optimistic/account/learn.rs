//! Updates an account from the answers of the store and from local events that the store does not know yet.

use tollgate_core::{Ask, Denial, Entry, Known, Policy, Refusal, Timestamp, close_until};

use super::super::view::{self, Seen};
use super::{Account, Allowance, Denied, Sums, add};
use crate::error::Error;

impl Account {
    /// The version to send a question under.
    pub(in super::super) const fn version(&self) -> u64 {
        self.cold.version
    }

    /// Counts the costs of an ask as used while it is on its way to the store.
    pub(in super::super) fn begin_asking(&mut self, sums: &Sums, now: Timestamp) {
        add(&mut self.cold.asking, sums);
        self.charge(sums, now);
    }

    pub(in super::super) fn end_asking(&mut self, sums: &Sums) {
        for (asking, sum) in self.cold.asking.iter_mut().zip(sums) {
            *asking = asking.saturating_sub(*sum);
        }
    }

    pub(super) fn charge(&mut self, sums: &Sums, now: Timestamp) {
        if *sums != Sums::default() {
            let policy = self.view.policy().clone();
            let ask = view::ask_for(&policy, &self.subject, sums);
            let _ = tollgate_core::charge(&mut self.view, now, &ask, Known::New);
        }
    }

    /// Takes over what the store answered to a question that was sent under `version`.
    pub(in super::super) fn learn(&mut self, seen: Seen<'_>, version: u64, now: Timestamp) {
        if seen.policy != self.view.policy() {
            return;
        }
        let Some(fresh) = view::entry(seen, now.max(self.view.at())) else { return };
        let in_order =
            version == self.cold.version || seen.at.is_some_and(|store| self.cold.seen_at < store);
        if in_order {
            self.view = fresh;
            self.recharge(now);
        } else {
            view::raise(&mut self.view, &fresh, &self.subject, now);
        }
        self.cold.seen_at = self.cold.seen_at.max(seen.at.unwrap_or_default());
        self.cold.version += 1;
        self.cold.denied = None;
    }

    /// Adds to the view what no answer of the store includes: unposted and pending costs, and limits closed here.
    fn recharge(&mut self, now: Timestamp) {
        let mut unknown = self.unposted();
        add(&mut unknown, &self.cold.asking);
        self.charge(&unknown, now);
        self.cold.closed.retain(|(_, until)| now < *until);
        for (limit, until) in &self.cold.closed {
            let _ = close_until(&mut self.view, now, limit, *until);
        }
    }

    /// Remembers that the store denied `ask` up to `until`.
    pub(in super::super) fn learn_denial(
        &mut self,
        ask: &Ask<'_>,
        denial: &Denial,
        until: Timestamp,
    ) {
        let limit = ask.policy().limits().position(|limit| *limit.name() == *denial.limit);
        if let (Some(limit), false) = (limit, ask.policy().is_shadow()) {
            let refusal = Refusal { limit, wait: denial.wait };
            let (amounts, denial) = (*ask.amounts(), denial.clone());
            self.cold.denied = Some(Denied { amounts, denial, refusal, until });
        }
    }

    /// Counts the `extra` cost of a permit that the store settled. The next answer includes its refund.
    pub(in super::super) fn settled_at_store(
        &mut self,
        policy: &Policy,
        extra: &Sums,
        now: Timestamp,
    ) {
        if self.view.policy() == policy {
            self.charge(extra, now);
        }
        self.cold.denied = None;
    }

    /// Decides by other numbers of the policy from now on, if nothing is under way in the old ones.
    pub(in super::super) fn change_policy(&mut self, policy: &Policy, caps: Sums) -> bool {
        if self.view.policy() == policy {
            return true;
        }
        if self.has_unposted() {
            return false;
        }
        self.view = self.view.carried_to(policy);
        self.allowances = Allowance::full(&caps);
        // Every answer so far was about the old numbers.
        self.cold.version += 1;
        self.cold.denied = None;
        self.close_batch();
        true
    }

    /// Closes a limit here, whatever the store knows of it.
    pub(in super::super) fn close(
        &mut self,
        limit: &str,
        until: Timestamp,
        now: Timestamp,
    ) -> Result<(), Error> {
        if close_until(&mut self.view, now, limit, until)? {
            self.cold.closed.retain(|(known, _)| **known != *limit);
            self.cold.closed.push((limit.into(), until));
            self.cold.denied = None;
        }
        Ok(())
    }

    /// Forgets everything after the store did. Permits that were given count as settled.
    pub(in super::super) fn reset(&mut self, now: Timestamp) {
        self.view = Entry::fresh(self.view.policy(), now.max(self.view.at()));
        let cold = &mut self.cold;
        (cold.reset_before, cold.denied) = (self.next, None);
        cold.version += 1;
        cold.closed.clear();
        cold.posted.clear();
        cold.owed.clear();
        self.recharge(now);
    }
}
