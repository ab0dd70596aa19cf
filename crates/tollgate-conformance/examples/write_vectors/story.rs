//! How a story is told: a policy, then steps at times.

use std::collections::BTreeMap;

use tollgate_conformance::vectors::{Expected, Operation, PolicyForm, Step, Vector};
use tollgate_core::{Error, Limit, Policy, Timestamp};

/// One second, in microseconds.
pub(crate) const SECOND: u64 = 1_000_000;

/// One hour, in microseconds.
pub(crate) const HOUR: u64 = 3_600 * SECOND;

/// A full hour, minute and day in UTC, from which most stories count: 2023-11-15T00:00:00Z.
pub(crate) const BASE: u64 = 1_700_006_400 * SECOND;

/// `seconds` after [`BASE`].
pub(crate) const fn at(seconds: u64) -> u64 {
    BASE + seconds * SECOND
}

/// The instant that `text` names.
pub(crate) fn on(text: &str) -> Result<u64, Error> {
    text.parse().map(Timestamp::as_micros)
}

/// A policy of these limits, called after what it is for.
pub(crate) fn policy(limits: impl IntoIterator<Item = Limit>) -> Result<Policy, Error> {
    Policy::new("story", limits)
}

/// A story in the making.
pub(crate) struct Story {
    vector: Vector,
    change: Option<PolicyForm>,
}

impl Story {
    pub(crate) fn new(name: &str, why: &str, policy: &Policy) -> Self {
        let vector = Vector {
            name: name.to_owned(),
            why: why.to_owned(),
            policy: PolicyForm::from_policy(policy),
            steps: Vec::new(),
        };
        Self { vector, change: None }
    }

    pub(crate) fn into_vector(self) -> Vector {
        self.vector
    }

    /// From the next step on the policy is this one.
    pub(crate) fn change(mut self, policy: &Policy) -> Self {
        self.change = Some(PolicyForm::from_policy(policy));
        self
    }

    pub(crate) fn acquire(self, at: u64, costs: &[(&str, u64)]) -> Self {
        self.step(at, Operation::Acquire { costs: named(costs), id: None })
    }

    pub(crate) fn acquire_as(self, at: u64, id: &str, costs: &[(&str, u64)]) -> Self {
        self.step(at, Operation::Acquire { costs: named(costs), id: Some(id.to_owned()) })
    }

    pub(crate) fn charge(self, at: u64, costs: &[(&str, u64)]) -> Self {
        self.step(at, Operation::Charge { costs: named(costs), id: None })
    }

    pub(crate) fn charge_as(self, at: u64, id: &str, costs: &[(&str, u64)]) -> Self {
        self.step(at, Operation::Charge { costs: named(costs), id: Some(id.to_owned()) })
    }

    pub(crate) fn settle(self, at: u64, permit: usize, actual: &[(&str, u64)]) -> Self {
        self.step(at, Operation::Settle { permit, actual: named(actual) })
    }

    pub(crate) fn release(self, at: u64, permit: usize) -> Self {
        self.step(at, Operation::Release { permit })
    }

    pub(crate) fn renew(self, at: u64, permit: usize) -> Self {
        self.step(at, Operation::Renew { permit })
    }

    pub(crate) fn close(self, at: u64, limit: &str, until_us: u64) -> Self {
        self.step(at, Operation::Close { limit: limit.to_owned(), until_us })
    }

    pub(crate) fn look(self, at: u64) -> Self {
        self.step(at, Operation::Standing)
    }

    pub(crate) fn reset(self, at: u64) -> Self {
        self.step(at, Operation::Reset)
    }

    fn step(mut self, at_us: u64, operation: Operation) -> Self {
        let policy = self.change.take();
        let (expect, standings) = (Expected::Seen, Vec::new());
        self.vector.steps.push(Step { at_us, policy, operation, expect, standings });
        self
    }
}

fn named(costs: &[(&str, u64)]) -> BTreeMap<String, u64> {
    costs.iter().map(|(unit, amount)| ((*unit).to_owned(), *amount)).collect()
}
