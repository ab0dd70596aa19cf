//! Actions and replies as data, shared by models, checkers, generators and vectors.
//!
//! A permit is known by the order in which it was given, so a script does not depend on the stamps of a store.

mod player;
mod single;

pub use player::Player;
pub use single::SingleEntry;

use tollgate_core::{Costs, Error, ErrorKind, Operation, Outcome, Span, Standing, Timestamp};

/// An action of a caller.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Acquires a permit.
    Acquire {
        /// Costs; other units have their defaults.
        costs: Costs,
        /// An idempotency id.
        id: Option<String>,
    },
    /// Charges without a decision.
    Charge {
        /// Costs.
        costs: Costs,
        /// An idempotency id.
        id: Option<String>,
    },
    /// Posts earlier spending. In a script all of it counts.
    Post {
        /// Costs.
        costs: Costs,
        /// An idempotency id.
        id: Option<String>,
    },
    /// Replaces the estimate of a permit by the actual cost.
    Settle {
        /// The permit, by the order in which permits were given.
        permit: usize,
        /// The actual cost; units that are not named keep their estimate.
        actual: Costs,
    },
    /// Releases a permit.
    Release {
        /// The permit.
        permit: usize,
    },
    /// Renews the slots of a permit.
    Renew {
        /// The permit.
        permit: usize,
    },
    /// Closes a limit until a time.
    Close {
        /// The name of the limit.
        limit: String,
        /// Until when.
        until: Timestamp,
    },
    /// Reads the standings.
    Standing,
    /// Resets the subject.
    Reset,
}

/// A reply to an action.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// Admitted, under a new permit.
    Admitted(PermitSummary),
    /// Charged without being asked, under a new permit.
    Charged(PermitSummary),
    /// Recognised by its id; the permit is one that was given before.
    Repeated(PermitSummary),
    /// Denied by a limit until a time, or for ever.
    Denied(DenialSummary),
    /// Denied by a policy in shadow mode, which admits all the same. The permit charged nothing.
    Shadowed(PermitSummary, DenialSummary),
    /// Settled or released; false if it had been before.
    Settled(bool),
    /// The slots of the permit now expire at this time.
    Renewed(Option<Timestamp>),
    /// Closed or forgotten; false if there was nothing to do.
    Done(bool),
    /// Standings.
    Standings,
    /// An error.
    Failed(ErrorKind),
    /// An outcome that does not belong to the operation.
    Unexpected(String),
}

/// A permit as an answer shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitSummary {
    /// The permit, by the order in which permits were given.
    pub permit: usize,
    /// When it was charged, on the deciding clock.
    pub at: Timestamp,
    /// Until when it should be used.
    pub use_by: Option<Timestamp>,
    /// When its slots expire.
    pub expires_at: Option<Timestamp>,
}

/// A denial as an answer shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenialSummary {
    /// The binding limit.
    pub limit: String,
    /// Until when; nothing means never.
    pub until: Option<Timestamp>,
}

/// Runs an operation at a time, on a store whose clock the test sets.
pub type Run<'a> = dyn FnMut(Timestamp, &Operation<'_>) -> Result<Outcome, Error> + 'a;

/// One step of a recorded history.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// When, on the caller's clock.
    pub now: Timestamp,
    /// The action.
    pub action: Action,
    /// A reply to an action.
    pub reply: Reply,
    /// The standings before.
    pub before: Vec<Standing>,
    /// The standings right afterwards.
    pub after: Vec<Standing>,
}

/// How long a caller's id is remembered.
pub const HORIZON: Span = tollgate_core::bounds::ID_HORIZON;
