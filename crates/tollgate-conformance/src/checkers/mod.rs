//! The promises as functions over a recorded history.
//!
//! Each takes a policy and the [records](crate::script::Record) of one subject, from its first operation on and under
//! one policy, and says in words what is wrong. A checker looks only at what a caller can see, so it runs against any
//! store.

mod charges;
mod over;
mod slots;
mod spent;
mod waits;

pub use charges::{all_or_nothing, once, refusals_free};
pub use over::never_over;
pub use slots::conservation;
pub use waits::honest_wait;

use tollgate_core::Policy;

use crate::script::Record;

/// Every checker in turn.
pub fn all(policy: &Policy, history: &[Record]) -> Result<(), String> {
    never_over(policy, history)?;
    all_or_nothing(policy, history)?;
    refusals_free(policy, history)?;
    honest_wait(policy, history)?;
    once(policy, history)?;
    conservation(policy, history)
}

#[cfg(test)]
pub(crate) mod samples {
    //! Histories written by hand, most of them wrong in one place.

    use tollgate_core::{Costs, Limit, Policy, Rule, Standing, Timestamp};

    use crate::script::{Action, DenialSummary, PermitSummary, Record, Reply};

    pub(crate) fn policy(rule: impl Into<Rule>) -> Policy {
        Policy::new("sample", [Limit::new("only", "requests", rule)]).unwrap()
    }

    pub(crate) fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(1_000_000 + seconds)
    }

    pub(crate) fn standing(used: u64) -> Vec<Standing> {
        vec![Standing {
            name: "only".into(),
            unit: "requests".into(),
            limit: 10,
            used,
            remaining: 10 - used,
            reset_at: None,
            full_at: None,
            refilled_at: None,
        }]
    }

    pub(crate) fn acquire(cost: u64) -> Action {
        Action::Acquire { costs: Costs::new().with("requests", cost), id: None }
    }

    pub(crate) fn admitted(now: Timestamp, permit: usize, cost: u64) -> Record {
        let given = PermitSummary { permit, at: now, use_by: None, expires_at: None };
        Record {
            now,
            action: acquire(cost),
            reply: Reply::Admitted(given),
            before: standing(0),
            after: standing(cost),
        }
    }

    pub(crate) fn denied(now: Timestamp, cost: u64, until: Timestamp) -> Record {
        let refused = DenialSummary { limit: "only".to_owned(), until: Some(until) };
        Record {
            now,
            action: acquire(cost),
            reply: Reply::Denied(refused),
            before: standing(5),
            after: standing(5),
        }
    }

    pub(crate) fn released(now: Timestamp, permit: usize) -> Record {
        Record {
            now,
            action: Action::Release { permit },
            reply: Reply::Settled(true),
            before: standing(5),
            after: standing(0),
        }
    }
}
