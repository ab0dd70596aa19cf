//! The spending of an instance that could not reach the store, and the charges it posts to the store later.
//!
//! A lump of everything that was spent would be wrong: while the store was away its buckets refilled, its windows moved
//! on, and charging the lump now would hold back for as long again what has come back already. So the instance keeps an
//! account ([`LocalSpending`]) that forgets as its share of each limit does, and posts what is left ([`Arrears`]).

use std::sync::Arc;

use super::Entry;
use crate::ask::Ask;
use crate::bounds::NUMBER_MAX;
use crate::costs::Costs;
use crate::decide::Grant;
use crate::error::Error;
use crate::id::Known;
use crate::operation::{Operation, apply};
use crate::policy::Policy;
use crate::rule::{ChargeTag, View, ViewMut};
use crate::time::{Span, Timestamp};
use crate::{Amounts, Permit};

/// The subject of the account's own asks, which no store sees.
const SUBJECT: &str = "local";

/// Amounts that were spent earlier, as each limit counts them, with their ages.
///
/// A bucket counts what has not refilled yet, a calendar window what was spent in the window that is open, both as
/// spent now. Charging them empties a bucket at most: an enforced bucket would not be in debt now either. A rolling window counts every amount at its own time, oldest first, so that it leaves the window when it
/// would have left. A concurrency limit counts nothing.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Arrears(Vec<(Arc<str>, Lumps)>);

/// Ages and amounts, oldest first.
type Lumps = Vec<(Span, u64)>;

impl Arrears {
    /// The amounts of the limit called `limit`, each with its age, oldest first; `None` if the limit is not part of it.
    #[must_use]
    pub fn for_limit(&self, limit: &str) -> Option<&[(Span, u64)]> {
        self.0.iter().find(|(name, _)| &**name == limit).map(|(_, lumps)| lumps.as_slice())
    }

    /// Returns the sum of what the limit called `limit` counts.
    #[must_use]
    pub fn sum_of(&self, limit: &str) -> u64 {
        let amounts = self.for_limit(limit).unwrap_or(&[]).iter().map(|(_, amount)| *amount);
        amounts.fold(0, u64::saturating_add).min(NUMBER_MAX)
    }
}

impl<L: Into<Arc<str>>> FromIterator<(L, Vec<(Span, u64)>)> for Arrears {
    fn from_iter<I: IntoIterator<Item = (L, Vec<(Span, u64)>)>>(limits: I) -> Self {
        Self(limits.into_iter().map(|(limit, lumps)| (limit.into(), lumps)).collect())
    }
}

/// The account of one of several instances that spend of a policy's limits without the store.
///
/// It starts empty. A bucket in it refills at the instance's part of the rate, as in [`Policy::share`]; other limits
/// forget as configured.
///
/// ```
/// use tollgate_core::{Costs, Grant, Limit, LocalSpending, Policy, Span, Timestamp, TokenBucket};
///
/// let rule = TokenBucket::per_second(20);
/// let policy = Policy::new("api", [Limit::new("rate", "requests", rule)])?;
/// let now = Timestamp::from_secs(1_000);
/// let mut spent = LocalSpending::new(&policy, 2, now);
/// let grant = Grant { at: now, stamp: 1, use_by: None, expires_at: None };
/// spent.admit(&Costs::new().with("requests", 8), &grant)?;
/// // This instance's half of the rate is 10 per second.
/// let left = |later| spent.arrears(now + Span::from_millis(later)).for_limit("rate").unwrap().to_vec();
/// assert_eq!(left(300), [(Span::ZERO, 5)]);
/// assert_eq!(left(800), []);
/// # Ok::<(), tollgate_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LocalSpending {
    entry: Entry,
    /// The admissions beyond each bucket, in its own units, by index of the limit.
    beyond: Vec<u64>,
}

impl LocalSpending {
    /// An account in which nothing is spent yet.
    #[must_use]
    pub fn new(policy: &Policy, instances: u64, now: Timestamp) -> Self {
        Self::fresh(&policy.drained_by_share(instances), now)
    }

    /// An account of the same limits in which nothing is spent yet.
    #[must_use]
    pub fn emptied(&self, now: Timestamp) -> Self {
        Self::fresh(&self.entry.policy, now)
    }

    /// Stamps are those of the permits, so they start below them.
    fn fresh(policy: &Policy, now: Timestamp) -> Self {
        let mut entry = Entry::fresh(policy, now);
        entry.next_stamp = 1;
        Self { beyond: vec![0; entry.limits().count()], entry }
    }

    /// Goes on in the numbers of `policy`. What was spent stays spent.
    pub fn change_policy(&mut self, policy: &Policy, instances: u64) {
        let carried = self.entry.carried_to(&policy.drained_by_share(instances));
        let beyond =
            carried.limits().map(|(limit, _)| limit.gauge.level_of(self.beyond(&limit.name)));
        self.beyond = beyond.collect();
        self.entry = carried;
    }

    /// Counts an admission. Admissions empty a bucket at most, however many there are.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if the policy does not know a unit of `costs`.
    pub fn admit(&mut self, costs: &Costs, grant: &Grant) -> Result<(), Error> {
        self.entry.advance(self.entry.effective(grant.at));
        let levels: Vec<u64> = self.entry.limits().map(|(_, state)| level(state)).collect();
        // Settling finds the charge by the stamp of the permit.
        self.entry.next_stamp = self.entry.next_stamp.max(grant.stamp);
        self.add(costs, grant.at)?;
        let mut levels = levels.into_iter().zip(&mut self.beyond);
        self.entry.change_limits(|limit, state| {
            let Some((before, beyond)) = levels.next() else { return };
            if let ViewMut::Bucket(used, _) = state {
                let kept = (*used).min(limit.gauge.level_of(limit.gauge.most()).max(before));
                *beyond = beyond.saturating_add(*used - kept);
                *used = kept;
            }
        });
        Ok(())
    }

    /// Returns the admissions beyond the bucket called `limit`, which are no part of the [arrears](Self::arrears); 0 for other
    /// rules.
    #[must_use]
    pub fn beyond(&self, limit: &str) -> u64 {
        let limits = self.entry.limits().zip(&self.beyond);
        let mut found = limits.filter(|((known, _), _)| &*known.name == limit);
        found.next().map_or(0, |((known, _), beyond)| known.gauge.tokens_of(*beyond))
    }

    /// Counts what was spent without an admission, such as costs beyond an estimate: all of it, as debt if need be.
    ///
    /// # Errors
    /// As [`admit`](Self::admit).
    pub fn charge(&mut self, costs: &Costs, now: Timestamp) -> Result<(), Error> {
        let next_stamp = self.entry.next_stamp;
        self.add(costs, now)?;
        // The next admission brings its own stamp, which may be this one.
        self.entry.next_stamp = next_stamp;
        Ok(())
    }

    fn add(&mut self, costs: &Costs, now: Timestamp) -> Result<(), Error> {
        let policy = self.entry.policy.clone();
        let ask = Ask::new(&policy, SUBJECT).with_costs(costs);
        apply(&Operation::Charge(&ask), &mut self.entry, Known::New, now).map(drop)
    }

    /// Replaces what an admission cost, as a store does when its permit is settled.
    ///
    /// # Errors
    /// As settling a permit; nothing is changed then.
    pub fn settle(
        &mut self,
        (estimate, actual): (&Costs, &Costs),
        grant: &Grant,
        now: Timestamp,
    ) -> Result<(), Error> {
        let policy = self.entry.policy.clone();
        let permit = Permit::new(&policy, SUBJECT, policy.amounts(estimate)?, *grant);
        apply(&Operation::Settle(&permit, actual), &mut self.entry, Known::New, now).map(drop)
    }

    /// Returns what the store has to be charged at `now` for everything in the account.
    #[must_use]
    pub fn arrears(&self, now: Timestamp) -> Arrears {
        let now = self.entry.effective(now);
        let lumps = self.entry.limits().map(|(limit, state)| {
            (Arc::clone(&limit.name), limit.gauge.lumps(state, self.entry.at, now))
        });
        lumps.collect()
    }

    /// The cost by unit of what still counts at `now`: the most that one of the unit's limits counts.
    #[must_use]
    pub fn costs(&self, now: Timestamp) -> Costs {
        let (arrears, policy) = (self.arrears(now), &self.entry.policy);
        let most = |unit: &str| {
            let limits = policy.limits().filter(|limit| limit.unit() == unit);
            limits.map(|limit| arrears.sum_of(limit.name())).max().unwrap_or(0)
        };
        policy.units().map(|unit| (unit, most(unit))).collect()
    }
}

const fn level(state: View<'_>) -> u64 {
    match state {
        View::Bucket(used, _) => used,
        _ => 0,
    }
}

impl Entry {
    /// Brings the entry to `now`, charges every limit with what `arrears` say of it, and returns the stamp of the charge.
    /// A limit that they do not name is charged its cost in `amounts`. Takes no slots. The charge counts as settled: its
    /// amounts are not those of the ask, so nothing could be given back exactly.
    pub(crate) fn charge_arrears(
        &mut self,
        arrears: &Arrears,
        amounts: &Amounts,
        now: Timestamp,
    ) -> u64 {
        let tag = ChargeTag { stamp: self.next_stamp, refundable: false };
        self.full_mut();
        self.next_stamp += 1;
        self.advance_and(now, |limit, mut state| {
            if limit.gauge.is_slots() {
                return;
            }
            let cost = [(Span::ZERO, amounts.at(limit.unit_index))];
            for (age, amount) in arrears.for_limit(&limit.name).unwrap_or(&cost) {
                limit.gauge.add_earlier(state.reborrow(), now - *age, now, *amount, tag);
            }
        });
        self.extra_mut().settled.insert(tag.stamp, now, now);
        self.tidy();
        tag.stamp
    }
}
