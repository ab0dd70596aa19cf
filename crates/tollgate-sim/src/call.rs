//! An owned [`Operation`], which can be sent over the simulated network.

use tollgate_core::{Ask, Costs, Operation, Permit, Policy, Timestamp};

/// An operation on its way to the store.
#[derive(Clone, Debug)]
pub enum Call {
    /// Decide, and charge if admitted.
    Acquire(Ask<'static>),
    /// Charge without deciding.
    Charge(Ask<'static>),
    /// Replace an estimate by the actual cost.
    Settle(Permit, Costs),
    /// Give everything back.
    Release(Permit),
    /// Keep slots alive.
    Renew(Permit),
    /// Close one limit until a time.
    Close {
        /// The policy.
        policy: Policy,
        /// The subject.
        subject: String,
        /// The name of the limit.
        limit: String,
        /// Until when.
        until: Timestamp,
    },
    /// Read the standing of the subject.
    Standing(Policy, String),
    /// Delete the entry of the subject.
    Reset(Policy, String),
}

impl Call {
    /// Copies `operation`.
    #[must_use]
    pub fn from_operation(operation: &Operation<'_>) -> Self {
        match *operation {
            Operation::Acquire(ask) => Self::Acquire(ask.clone().into_owned()),
            Operation::Charge(ask) => Self::Charge(ask.clone().into_owned()),
            Operation::Settle(permit, actual) => Self::Settle(permit.clone(), actual.clone()),
            Operation::Release(permit) => Self::Release(permit.clone()),
            Operation::Renew(permit) => Self::Renew(permit.clone()),
            Operation::Close { policy, subject, limit, until } => Self::Close {
                policy: policy.clone(),
                subject: subject.to_owned(),
                limit: limit.to_owned(),
                until,
            },
            Operation::Standing { policy, subject } => {
                Self::Standing(policy.clone(), subject.to_owned())
            }
            Operation::Reset { policy, subject } => Self::Reset(policy.clone(), subject.to_owned()),
        }
    }

    /// The operation to run.
    #[must_use]
    pub fn operation(&self) -> Operation<'_> {
        match self {
            Self::Acquire(ask) => Operation::Acquire(ask),
            Self::Charge(ask) => Operation::Charge(ask),
            Self::Settle(permit, actual) => Operation::Settle(permit, actual),
            Self::Release(permit) => Operation::Release(permit),
            Self::Renew(permit) => Operation::Renew(permit),
            Self::Close { policy, subject, limit, until } => {
                Operation::Close { policy, subject, limit, until: *until }
            }
            Self::Standing(policy, subject) => Operation::Standing { policy, subject },
            Self::Reset(policy, subject) => Operation::Reset { policy, subject },
        }
    }

    /// Returns its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Acquire(_) => "acquire",
            Self::Charge(_) => "charge",
            Self::Settle(..) => "settle",
            Self::Release(_) => "release",
            Self::Renew(_) => "renew",
            Self::Close { .. } => "close",
            Self::Standing(..) => "standing",
            Self::Reset(..) => "reset",
        }
    }

    /// Returns whether it writes.
    #[must_use]
    pub const fn is_write(&self) -> bool {
        !matches!(self, Self::Standing(..))
    }
}
