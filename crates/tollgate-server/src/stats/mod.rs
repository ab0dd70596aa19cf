//! What this server answered, counted by policy since it started, and how long it took.
//!
//! The counts are of this process and not of the store: they say what this server did. Counting takes no lock, because
//! every ask does it: a policy finds its counters in a table that only ever fills, by the hash that it carries. The table is
//! bounded; what does not fit is counted together.

mod latency;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tollgate::{Decision, Error, Policies, Policy, Span, Timestamp};

use crate::bounds::COUNTED_POLICIES_MAX;
use crate::wire::{PolicyCounts, status_of};
use latency::Latency;

pub(crate) use latency::Percentiles;

/// As many places again, so that a search is short.
const PLACES: usize = (COUNTED_POLICIES_MAX * 2).next_power_of_two();

/// Counts of answers by policy.
#[derive(Debug)]
pub(crate) struct Stats {
    since: Timestamp,
    places: Box<[OnceLock<Counters>]>,
    taken: AtomicUsize,
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
}

impl Stats {
    pub(crate) fn since(now: Timestamp) -> Self {
        Self {
            since: now,
            places: (0..PLACES).map(|_| OnceLock::new()).collect(),
            taken: AtomicUsize::new(0),
            others: Counters::default(),
            latency: Latency::since(now),
        }
    }

    /// Counts one answer to an ask under `policy`.
    pub(crate) fn count(&self, policy: &Policy, answer: Result<&Decision, &Error>) {
        let counters = self.of(policy);
        let add = |counter: &AtomicU64, is: bool| {
            if is {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        };
        match answer {
            Ok(Decision::Admitted(permit)) => {
                add(&counters.admitted, true);
                add(&counters.shadow_denied, permit.shadow_denied.is_some());
                add(&counters.degraded, permit.degraded);
            }
            Ok(Decision::Denied(denial)) => {
                add(&counters.refused, true);
                add(&counters.degraded, denial.degraded);
            }
            // What the caller got wrong is not the server's failure.
            Err(error) => add(&counters.failed, 500 <= status_of(error.kind())),
        }
    }

    /// Counts how long a decision took.
    pub(crate) fn took(&self, took: Span) {
        self.latency.count(took);
    }

    /// Since when it counts.
    pub(crate) const fn began(&self) -> Timestamp {
        self.since
    }

    /// The counts of every one of `policies`, and of policies that asks carried, if there were any.
    pub(crate) fn read(&self, policies: &Policies) -> Vec<PolicyCounts> {
        let of = |policy: &Policy| match self.find(policy) {
            Ok(counters) => counters.read(),
            Err(_) => PolicyCounts { name: policy.name().to_owned(), ..Default::default() },
        };
        let carried = self.places.iter().filter_map(OnceLock::get);
        let carried = carried.filter(|counters| &*counters.name == crate::resp::THROTTLE_POLICY);
        policies.iter().map(of).chain(carried.map(Counters::read)).collect()
    }

    /// How long decisions took of late.
    pub(crate) fn latency(&self, now: Timestamp) -> Percentiles {
        self.latency.read(now)
    }

    fn of(&self, policy: &Policy) -> &Counters {
        loop {
            match self.find(policy) {
                Ok(counters) => return counters,
                Err(Some(free)) if self.taken.load(Ordering::Relaxed) < COUNTED_POLICIES_MAX => {
                    let counters = Counters { name: policy.name().into(), ..Default::default() };
                    if free.set(counters).is_ok() {
                        self.taken.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Err(_) => return &self.others,
            }
        }
    }

    /// The counters of `policy`, or the place where they would be, if there is one.
    fn find(&self, policy: &Policy) -> Result<&Counters, Option<&OnceLock<Counters>>> {
        let start = usize::try_from(policy.name_hash() % PLACES as u64).unwrap_or(0);
        for step in 0..PLACES {
            let place = &self.places[(start + step) % PLACES];
            match place.get() {
                Some(counters) if &*counters.name == policy.name() => return Ok(counters),
                Some(_) => {}
                None => return Err(Some(place)),
            }
        }
        Err(None)
    }
}

impl Counters {
    fn read(&self) -> PolicyCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PolicyCounts {
            name: self.name.to_string(),
            admitted: of(&self.admitted),
            refused: of(&self.refused),
            failed: of(&self.failed),
            shadow_denied: of(&self.shadow_denied),
            degraded: of(&self.degraded),
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
            stats.count(policy, Err(&error));
        }
        let first = stats.read(&Policies::new(names[..2].to_vec()).unwrap());
        assert_eq!((first[0].failed, first[1].failed), (2, 2));
        assert_eq!(stats.others.failed.load(Ordering::Relaxed), 6);
    }
}
