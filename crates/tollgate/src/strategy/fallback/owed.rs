//! What one subject owes to the store: a sum that still changes as permits are settled, and calls in the order they are
//! to be posted. A sum that becomes a call is frozen: it has an id, so that it can be sent twice and count once.

use std::collections::VecDeque;

use tollgate_core::bounds::NUMBER_MAX;
use tollgate_core::{Ask, Costs, Permit, Span, Timestamp};

use crate::strategy::chance::Chance;

/// How long the store recognises a posted debt that is sent again.
const POSTED_TTL: Span = Span::from_hours(1);

/// One call that the store is still to get.
#[derive(Clone, Debug)]
pub(super) enum Job {
    Settle(Permit, Costs),
    Release(Permit),
    Close { limit: String, until: Timestamp },
    Charge { id: String, ttl: Span, costs: Costs },
}

/// What the store is still to be told of one subject.
#[derive(Debug, Default)]
pub(super) struct Owed {
    last_stamp: u64,
    /// What was admitted here and is not in a job yet.
    sum: Costs,
    /// Admissions with a stamp below this are in a job, or posted: they cannot shrink any more.
    frozen_below: u64,
    jobs: VecDeque<Job>,
}

impl Owed {
    pub(super) fn is_any(&self) -> bool {
        !self.jobs.is_empty() || self.has_sum()
    }

    fn has_sum(&self) -> bool {
        self.sum.iter().any(|(_, amount)| 0 < amount)
    }

    pub(super) fn jobs(&self) -> usize {
        self.jobs.len()
    }

    /// The stamp of the last admission that is owed, or was.
    pub(super) const fn last_stamp(&self) -> u64 {
        self.last_stamp
    }

    /// The limit that the store is to be told is closed for longest, if one still is.
    pub(super) fn closed_at(&self, now: Timestamp) -> Option<(&str, Timestamp)> {
        let closed = self.jobs.iter().filter_map(|job| match job {
            Job::Close { limit, until } if now < *until => Some((limit.as_str(), *until)),
            _ => None,
        });
        closed.max_by_key(|(_, until)| *until)
    }

    /// Owes what was admitted, once. What the store may have charged already is posted under its own id.
    pub(super) fn admit(
        &mut self,
        permit: &Permit,
        ask: &Ask<'_>,
        in_doubt: bool,
        chance: &Chance,
    ) {
        let stamp = permit.grant().stamp;
        if stamp <= self.last_stamp {
            return;
        }
        self.last_stamp = stamp;
        match ask.id_text().filter(|_| in_doubt) {
            Some(id) => {
                self.freeze(chance);
                let (id, ttl) = (id.to_owned(), ask.id_ttl());
                self.jobs.push_back(Job::Charge { id, ttl, costs: ask.costs() });
                self.frozen_below = stamp + 1;
            }
            None => change(&mut self.sum, &Costs::new(), &ask.costs()),
        }
    }

    /// Has an admission cost `is` instead of `was`.
    pub(super) fn settle(&mut self, stamp: u64, was: &Costs, is: &Costs) {
        if stamp < self.frozen_below {
            // What is posted, or on its way, stays; what the call cost beyond it is owed.
            change(&mut self.sum, &Costs::new(), &beyond(is, was));
        } else {
            change(&mut self.sum, was, is);
        }
    }

    /// Keeps a call for the store.
    pub(super) fn keep(&mut self, job: Job) {
        self.jobs.push_back(job);
    }

    /// The next call that the store is to get; the same until it is [`done`](Self::done).
    pub(super) fn next_job(&mut self, chance: &Chance) -> Option<Job> {
        if self.jobs.is_empty() {
            self.freeze(chance);
        }
        self.jobs.front().cloned()
    }

    pub(super) fn done(&mut self) {
        self.jobs.pop_front();
    }

    /// Makes one job of the sum. From now on it has an id and does not change.
    fn freeze(&mut self, chance: &Chance) {
        if self.has_sum() {
            let costs = std::mem::take(&mut self.sum);
            self.jobs.push_back(Job::Charge { id: chance.id(), ttl: POSTED_TTL, costs });
            self.frozen_below = self.last_stamp + 1;
        }
    }
}

/// `sum` with `was` replaced by `is`.
fn change(sum: &mut Costs, was: &Costs, is: &Costs) {
    for (unit, amount) in is.iter() {
        let rest = sum.get(unit).unwrap_or(0).saturating_add(amount);
        let rest = rest.saturating_sub(was.get(unit).unwrap_or(0));
        sum.set(unit, rest.min(NUMBER_MAX));
    }
}

/// What `is` has more than `was`.
fn beyond(is: &Costs, was: &Costs) -> Costs {
    let more = |unit: &str, amount: u64| amount.saturating_sub(was.get(unit).unwrap_or(0));
    is.iter().map(|(unit, amount)| (unit, more(unit, amount))).collect()
}
