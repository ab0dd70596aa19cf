//! What this server answered, counted by policy since it started.
//!
//! The counts are of this process and not of the store: they say what this server did. They are bounded by the number of
//! policies, because only an ask under a policy that exists is counted.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tollgate::{Decision, Error, Policies, Timestamp};

use crate::wire::{PolicyCounts, StatsResponse, status_of};

/// Counts of answers by policy.
#[derive(Debug)]
pub(crate) struct Stats {
    since: Timestamp,
    counts: Mutex<HashMap<Box<str>, PolicyCounts>>,
}

impl Stats {
    pub(crate) fn since(now: Timestamp) -> Self {
        Self { since: now, counts: Mutex::default() }
    }

    /// Counts one answer to an ask under the policy called `name`.
    pub(crate) fn count(&self, name: &str, answer: Result<&Decision, &Error>) {
        self.change(name, |counts| match answer {
            Ok(Decision::Admitted(permit)) => {
                counts.admitted += 1;
                counts.shadow_denied += u64::from(permit.shadow_denied.is_some());
                counts.degraded += u64::from(permit.degraded);
            }
            Ok(Decision::Denied(denial)) => {
                counts.refused += 1;
                counts.degraded += u64::from(denial.degraded);
            }
            // What the caller got wrong is not the server's failure.
            Err(error) => counts.failed += u64::from(500 <= status_of(error.kind())),
        });
    }

    /// The counts of every one of `policies`.
    pub(crate) fn read(&self, policies: &Policies) -> StatsResponse {
        let all = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |name: &str| {
            all.get(name)
                .cloned()
                .unwrap_or_else(|| PolicyCounts { name: name.to_owned(), ..Default::default() })
        };
        StatsResponse {
            since: Some(self.since),
            policies: policies.iter().map(|policy| of(policy.name())).collect(),
        }
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut PolicyCounts)) {
        let mut all = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(counts) = all.get_mut(name) {
            return change(counts);
        }
        let counts = PolicyCounts { name: name.to_owned(), ..Default::default() };
        change(all.entry(name.into()).or_insert(counts));
    }
}
