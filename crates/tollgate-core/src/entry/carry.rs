//! Replacements of an entry: after a reset, after a repair, or in the numbers of another policy.

use super::extra::Changed;
use super::{Entry, Settled};
use crate::policy::Policy;
use crate::rule::State;
use crate::time::Timestamp;

impl Entry {
    /// An empty entry in place of this one. The permits that were given count as settled, so that none of them gives
    /// back a second time what the emptying gave back already.
    pub(crate) fn forgotten(&self, now: Timestamp) -> Self {
        let now = self.effective(now);
        let mut empty = Self::fresh(&self.policy, now);
        // One stamp is left free, so that no run of later permits joins the one of the reset.
        empty.next_stamp = empty.next_stamp.max(self.next_stamp + 1);
        empty.extra_mut().settled = Settled::all_before(self.next_stamp, now);
        empty
    }

    /// The replacement for an entry from the future, which a wrong clock wrote: every limit is used up at `now`, since
    /// the times of its charges are unknown. The permits that were given count as settled and give nothing back. A closed
    /// limit stays closed for as long as it had left at the entry's own time.
    #[must_use]
    pub fn repaired(&self, now: Timestamp) -> Self {
        let mut repaired = Self::fresh(&self.policy, now);
        repaired.next_stamp = repaired.next_stamp.max(self.next_stamp);
        let closed = self.extra().map_or(&[][..], |extra| &extra.closed);
        let closed = closed.iter().filter(|(_, until)| self.at < *until);
        let closed = closed.map(|(index, until)| (*index, now + until.since(self.at)));
        let extra = repaired.extra_mut();
        extra.settled = Settled::all_before(self.next_stamp, now);
        extra.closed = closed.collect();
        repaired.use_up(now);
        repaired
    }

    /// This entry in the numbers of `policy`. What was used stays used, limit by limit as they are named, so a change
    /// of numbers gives no free burst; the result depends on no clock, so a promised wait stays true. A continuous bucket
    /// that counts another unit now keeps the instant at which it is full again instead of the amount.
    #[must_use]
    pub fn carried_to(&self, policy: &Policy) -> Self {
        let states = policy.metered().iter().map(|limit| {
            match self.limits().find(|(old, _)| old.name == limit.name) {
                Some((old, state)) if old.unit == limit.unit => {
                    limit.gauge.carry(&old.gauge, state, self.at)
                }
                Some((old, state)) => limit.gauge.carry_time(&old.gauge, state, self.at),
                None => limit.gauge.fresh(),
            }
        });
        let states: Vec<State> = states.collect();
        let mut extra = self.extra().cloned().unwrap_or_default();
        let closed = extra.closed.iter().filter_map(|(index, until)| {
            let name = &self.policy.metered().get(*index)?.name;
            let index = policy.metered().iter().position(|limit| limit.name == *name)?;
            Some((index, *until))
        });
        extra.closed = closed.collect();
        if !policy.gives_back_like(&self.policy) {
            extra.changed = Some(Changed { stamp: self.next_stamp, at: self.at });
        }
        Self::from_parts(policy, self.at, self.next_stamp, states, extra)
            .unwrap_or_else(|| Self::fresh(policy, self.at))
    }
}
