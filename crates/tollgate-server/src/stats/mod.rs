//! Counts of this server's decisions by policy since it started, and their latency.
//!
//! Counting takes no lock, because every ask does it: a policy finds its counters by its hash in a bounded table that only
//! fills. Policies beyond the bound are counted together.

mod latency;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tollgate::core::bounds::LIMITS_MAX;
use tollgate::policy::Policies;
use tollgate::{Ask, Decision, Error, Policy, Span, Timestamp};
use tollgate_protocol::json::{LatencyStats, PolicyCounts, status_of};
use tollgate_protocol::permit_token::charges_of;

use crate::bounds::COUNTED_POLICIES_MAX;
use crate::history::PolicyTotals;
use latency::Latency;

/// Twice the bound, so that a search is short.
const TABLE_SIZE: usize = (COUNTED_POLICIES_MAX * 2).next_power_of_two();

/// Counts of decisions by policy.
#[derive(Debug)]
pub(crate) struct Stats {
    since: Timestamp,
    table: Box<[OnceLock<Counters>]>,
    used: AtomicUsize,
    others: Counters,
    latency: Latency,
}

#[derive(Debug, Default)]
struct Counters {
    name: Box<str>,
    admitted: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    shadow_denied: AtomicU64,
    degraded: AtomicU64,
    /// The limits that refused, in the order of their first refusal. A reload may rename them, so the names come with the refusals.
    limits: Box<[OnceLock<LimitCounter>]>,
}

#[derive(Debug)]
struct LimitCounter {
    name: Box<str>,
    refused: AtomicU64,
}

impl Stats {
    pub(crate) fn since(now: Timestamp) -> Self {
        Self {
            since: now,
            table: (0..TABLE_SIZE).map(|_| OnceLock::new()).collect(),
            used: AtomicUsize::new(0),
            others: Counters::default(),
            latency: Latency::since(now),
        }
    }

    /// Counts the decision about `ask` under the policy of each charge. A denial counts for the charges that refuse.
    pub(crate) fn count(&self, ask: &Ask<'_>, decided: Result<&Decision, &Error>) {
        let add = |counter: &AtomicU64, is: bool| {
            if is {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        };
        match decided {
            Ok(Decision::Admitted(permit)) => {
                for (charge, permit) in ask.charges().zip(charges_of(permit)) {
                    let counters = self.counters(charge.policy());
                    add(&counters.admitted, true);
                    add(&counters.shadow_denied, permit.shadow_denied.is_some());
                    add(&counters.degraded, permit.degraded);
                }
            }
            Ok(Decision::Denied(denial)) => {
                for (index, charge) in ask.charges().enumerate() {
                    let refuses = denial.joint.as_ref().is_none_or(|joint| {
                        joint.refused.iter().any(|refused| refused.charge == index)
                    });
                    if refuses {
                        let counters = self.counters(charge.policy());
                        add(&counters.refused, true);
                        add(&counters.degraded, denial.degraded);
                        match &denial.joint {
                            None => counters.count_limit(&denial.limit),
                            Some(joint) => {
                                let own = joint.refused.iter().filter(|it| it.charge == index);
                                own.for_each(|refused| counters.count_limit(&refused.limit));
                            }
                        }
                    }
                }
            }
            Err(error) => {
                // A mistake of the caller is not a failure of the server.
                let is_failure = 500 <= status_of(error.kind());
                for charge in ask.charges() {
                    add(&self.counters(charge.policy()).failed, is_failure);
                }
            }
        }
    }

    /// Counts how long a decision took.
    pub(crate) fn took(&self, took: Span) {
        self.latency.count(took);
    }

    pub(crate) const fn began(&self) -> Timestamp {
        self.since
    }

    /// Returns the counts of `policies`, and of `CL.THROTTLE` if it was called.
    pub(crate) fn read(&self, policies: &Policies) -> Vec<PolicyCounts> {
        let counts = |policy: &Policy| match self.find(policy) {
            Ok(counters) => counters.read(),
            Err(_) => PolicyCounts { name: policy.name().to_owned(), ..Default::default() },
        };
        let throttle = self.table.iter().filter_map(OnceLock::get);
        let throttle = throttle.filter(|counters| &*counters.name == crate::resp::THROTTLE_POLICY);
        policies.iter().map(counts).chain(throttle.map(Counters::read)).collect()
    }

    /// Returns the counts of every policy that was asked, for the history.
    pub(crate) fn totals(&self) -> Vec<PolicyTotals> {
        self.table.iter().filter_map(OnceLock::get).map(Counters::totals).collect()
    }

    /// Returns the latency of recent decisions.
    pub(crate) fn latency(&self, now: Timestamp) -> LatencyStats {
        self.latency.read(now)
    }

    fn counters(&self, policy: &Policy) -> &Counters {
        loop {
            match self.find(policy) {
                Ok(counters) => return counters,
                Err(Some(free)) if self.used.load(Ordering::Relaxed) < COUNTED_POLICIES_MAX => {
                    let counters = Counters::new(policy.name());
                    if free.set(counters).is_ok() {
                        self.used.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Err(_) => return &self.others,
            }
        }
    }

    /// Returns the counters of `policy`, or the free slot for them, if there is one.
    fn find(&self, policy: &Policy) -> Result<&Counters, Option<&OnceLock<Counters>>> {
        let start = usize::try_from(policy.name_hash() % TABLE_SIZE as u64).unwrap_or(0);
        for step in 0..TABLE_SIZE {
            let slot = &self.table[(start + step) % TABLE_SIZE];
            match slot.get() {
                Some(counters) if &*counters.name == policy.name() => return Ok(counters),
                Some(_) => {}
                None => return Err(Some(slot)),
            }
        }
        Err(None)
    }
}

impl Counters {
    fn new(name: &str) -> Self {
        let limits = (0..LIMITS_MAX).map(|_| OnceLock::new()).collect();
        Self { name: name.into(), limits, ..Default::default() }
    }

    /// Counts a refusal by the limit called `name`. Names beyond [`LIMITS_MAX`], after reloads, are not counted separately.
    fn count_limit(&self, name: &str) {
        for slot in &self.limits {
            let new = || LimitCounter { name: name.into(), refused: AtomicU64::new(0) };
            let counter = slot.get_or_init(new);
            if &*counter.name == name {
                counter.refused.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
    }

    fn totals(&self) -> PolicyTotals {
        let PolicyCounts { name, admitted, refused, failed, shadow_denied, degraded } = self.read();
        let limits = self.limits.iter().filter_map(OnceLock::get);
        let limit = |it: &LimitCounter| (it.name.to_string(), it.refused.load(Ordering::Relaxed));
        PolicyTotals {
            name,
            admitted,
            refused,
            failed,
            shadow_denied,
            degraded,
            waiting: 0,
            limits: limits.map(limit).collect(),
        }
    }

    fn read(&self) -> PolicyCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PolicyCounts {
            name: self.name.to_string(),
            admitted: get(&self.admitted),
            refused: get(&self.refused),
            failed: get(&self.failed),
            shadow_denied: get(&self.shadow_denied),
            degraded: get(&self.degraded),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::{Limit, TokenBucket};

    fn policy(name: &str) -> Policy {
        Policy::new(name, [Limit::new("all", "requests", TokenBucket::per_second(1))]).unwrap()
    }

    /// Every policy has counters of its own up to the bound, and further names are counted together and not lost.
    #[test]
    fn the_table_is_bounded() {
        let stats = Stats::since(Timestamp::EPOCH);
        let error = Error::new(tollgate::ErrorKind::Unavailable, "away");
        let names: Vec<Policy> =
            (0..COUNTED_POLICIES_MAX + 3).map(|number| policy(&format!("p{number}"))).collect();
        for policy in names.iter().chain(&names) {
            stats.count(&Ask::new(policy, "s"), Err(&error));
        }
        let first = stats.read(&Policies::new(names[..2].to_vec()).unwrap());
        assert_eq!((first[0].failed, first[1].failed), (2, 2));
        assert_eq!(stats.others.failed.load(Ordering::Relaxed), 6);
    }
}
