//! Settles local permits: before the post by changing the post, after it by a later refund.

use tollgate_core::{Policy, Timestamp};

use super::{Account, Sums};

/// How a settlement of a local permit went.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) enum Settled {
    /// Settled for the first time; `wake` if a poster must run.
    First {
        wake: bool,
    },
    Before,
    /// The extra cost does not fit into what may be unposted: charge it first.
    ChargeFirst,
    /// The permit is unknown here.
    Unknown,
}

impl Account {
    /// Replaces the cost of the admission with this number, which was of `policy`: `extra` on top, unless it was
    /// `charged` already, and `less` given back.
    pub(in super::super) fn settle(
        &mut self,
        (number, policy): (u64, &Policy),
        (extra, less): (&Sums, &Sums),
        charged: bool,
        now: Timestamp,
    ) -> Settled {
        if number < self.cold.reset_before {
            return Settled::Before;
        }
        let is_open = self.cold.open.first <= number && number < self.next;
        let cold = &mut self.cold;
        let batch = if is_open {
            Some(&mut cold.open)
        } else {
            let sent = cold.sent.iter_mut();
            sent.chain(cold.posted.iter_mut().rev()).find(|batch| batch.holds(number))
        };
        let Some(batch) = batch else { return Settled::Unknown };
        if batch.settled.contains(&number) {
            return Settled::Before;
        }
        let costs_more = !charged && extra.iter().any(|sum| 0 < *sum);
        if costs_more {
            let short = self.allowances.iter().zip(extra).any(|(left, extra)| left.room < *extra);
            // Once it was tried that way it may have been charged, and must not be posted as well.
            if short || self.view.policy() != policy || batch.charging.contains(&number) {
                batch.charging.insert(number);
                return Settled::ChargeFirst;
            }
            for (left, extra) in self.allowances.iter_mut().zip(extra) {
                left.room -= extra;
            }
        }
        batch.settled.insert(number);
        if !is_open {
            batch.give_back(less);
        }
        let owed = batch.due(cold.is_ending);
        let wake = costs_more || owed.is_some();
        cold.owed.extend(owed);
        cold.denied = None;
        if is_open {
            self.allow(less);
        }
        if costs_more {
            self.charge(extra, now);
        }
        Settled::First { wake }
    }
}
