//! One vocabulary for models, checkers, generators and vectors: what was done and what was answered.
//!
//! Permits are known by the order in which they were given, so a script says the same on every store, whatever numbers
//! the store stamps its charges with.

mod player;
mod single;

pub use player::Player;
pub use single::Single;

use tollgate_core::{Costs, Error, ErrorKind, Operation, Outcome, Span, Standing, Timestamp};

/// One thing that a caller does.
#[derive(Clone, Debug, PartialEq)]
pub enum Did {
    /// Asks, and is charged if admitted.
    Acquire {
        /// What it costs; units that are not named cost what the policy says.
        costs: Costs,
        /// An id, if the ask may come again.
        id: Option<String>,
    },
    /// Is charged without being asked.
    Charge {
        /// What it costs.
        costs: Costs,
        /// An id, if the charge may come again.
        id: Option<String>,
    },
    /// Is charged for what was spent earlier, of which some may not count any more. In a script all of it counts.
    Post {
        /// What the charge is recognised by.
        costs: Costs,
        /// The id of the charge, if it may come again.
        id: Option<String>,
    },
    /// Replaces the estimate of a permit by the actual cost.
    Settle {
        /// The permit, by the order in which permits were given.
        permit: usize,
        /// The actual cost; units that are not named keep their estimate.
        actual: Costs,
    },
    /// Gives a permit back.
    Release {
        /// The permit.
        permit: usize,
    },
    /// Keeps the slots of a permit.
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
    /// Only looks.
    Look,
    /// Forgets everything.
    Reset,
}

/// What was answered.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Admitted, under a new permit.
    Admitted(Given),
    /// Charged without being asked, under a new permit.
    Charged(Given),
    /// Recognised by its id; the permit is one that was given before.
    Repeated(Given),
    /// Denied by a limit until a time, or for ever.
    Denied(Refused),
    /// Denied by a policy in shadow mode, which admits all the same. The permit charged nothing.
    Shadowed(Given, Refused),
    /// Settled or released; false if it had been before.
    Settled(bool),
    /// The slots of the permit now expire at this time.
    Renewed(Option<Timestamp>),
    /// Closed or forgotten; false if there was nothing to do.
    Done(bool),
    /// Looked.
    Seen,
    /// Could not decide.
    Failed(ErrorKind),
    /// An outcome that does not belong to the operation.
    Odd(String),
}

/// A permit as an answer shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
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
pub struct Refused {
    /// The binding limit.
    pub limit: String,
    /// Until when; nothing means never.
    pub until: Option<Timestamp>,
}

/// Anything that runs an operation at a time: a store behind a clock that the test sets.
pub type Run<'a> = dyn FnMut(Timestamp, &Operation<'_>) -> Result<Outcome, Error> + 'a;

/// One line of a recorded history.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// When, on the caller's clock.
    pub now: Timestamp,
    /// What was done.
    pub did: Did,
    /// What was answered.
    pub answer: Answer,
    /// Where the subject stood before.
    pub before: Vec<Standing>,
    /// Where the subject stood after, at the same time.
    pub after: Vec<Standing>,
}

/// How long a caller's id is remembered.
pub const HORIZON: Span = tollgate_core::bounds::ID_HORIZON;
