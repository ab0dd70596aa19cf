//! Asks with several charges: actions and replies as data, a reference model, random scripts, and golden vectors.
//!
//! A script has parties, each a policy and a subject. An action names the parties it charges by their index.

mod entries;
mod generate;
mod model;
mod player;
mod vectors;

pub use entries::Entries;
pub use generate::{parties, record, script};
pub use model::JointModel;
pub use player::JointPlayer;
pub use vectors::{
    ActionForm, Answer, AskForm, JointVector, PartyForm, StepForm, fill, load, load_all, run,
    run_model,
};

use tollgate_core::{Costs, ErrorKind, Policy, Standing, Timestamp};

use crate::script::DenialSummary;

/// One of those that an ask may charge.
#[derive(Clone, Debug)]
pub struct Party {
    /// Its policy.
    pub policy: Policy,
    /// Its subject.
    pub subject: String,
}

/// An action of a caller.
#[derive(Clone, Debug, PartialEq)]
pub enum JointAction {
    /// Acquires a permit.
    Acquire(JointAsk),
    /// Charges without a decision.
    Charge(JointAsk),
    /// Replaces the estimate of a permit by the actual cost.
    Settle {
        /// The permit, by the order in which permits were given.
        permit: usize,
        /// The actual cost, of every charge that has the unit and no costs of its own.
        actual: Costs,
    },
    /// Settles one charge of a permit.
    SettlePart {
        /// The permit.
        permit: usize,
        /// The index of the charge in its ask.
        charge: usize,
        /// The actual cost of that charge.
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
    /// Closes a limit of one party until a time.
    Close {
        /// The party.
        party: usize,
        /// The name of the limit.
        limit: String,
        /// Until when.
        until: Timestamp,
    },
    /// Resets one party.
    Reset {
        /// The party.
        party: usize,
    },
}

/// What an ask charges to whom.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JointAsk {
    /// The parties, in the order of the ask.
    pub parties: Vec<usize>,
    /// Costs of every charge that has none of its own.
    pub costs: Costs,
    /// Costs of single charges, by their index in the ask; never of the first.
    pub own_costs: Vec<(usize, Costs)>,
    /// An idempotency id.
    pub id: Option<String>,
}

impl JointAsk {
    /// The costs of the charge at `index`.
    fn costs_of(&self, index: usize) -> &Costs {
        let own = self.own_costs.iter().find(|(charge, _)| *charge == index);
        own.map_or(&self.costs, |(_, costs)| costs)
    }

    fn has_own_costs(&self, index: usize) -> bool {
        self.own_costs.iter().any(|(charge, _)| *charge == index)
    }
}

/// A reply to an action.
#[derive(Clone, Debug, PartialEq)]
pub enum JointReply {
    /// Admitted or charged, under a new permit.
    Permitted {
        /// The permit, by the order in which permits were given.
        permit: usize,
        /// What each charge got.
        charges: Vec<PartSummary>,
    },
    /// Recognised by its id; the permit is one that was given before.
    Repeated(usize),
    /// Denied.
    Denied {
        /// The binding limit.
        binding: Refused,
        /// Every limit that refuses.
        refused: Vec<Refused>,
    },
    /// Settled, released, closed or reset; false if that changed nothing.
    Changed(bool),
    /// The slots of the permit now expire at this time.
    Renewed(Option<Timestamp>),
    /// An error.
    Failed(ErrorKind),
    /// An outcome that does not belong to the operation.
    Unexpected(String),
}

/// The part of a permit for one charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartSummary {
    /// When it was charged, on the deciding clock.
    pub at: Timestamp,
    /// When its slots expire.
    pub expires_at: Option<Timestamp>,
    /// The limit of a policy in shadow mode that would have refused it.
    pub shadow_denied: Option<DenialSummary>,
}

/// A limit that refuses one charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The index of the charge in the ask.
    pub charge: usize,
    /// The limit, and until when.
    pub by: DenialSummary,
}

/// One step of a recorded script.
#[derive(Clone, Debug, PartialEq)]
pub struct JointRecord {
    /// When, on the caller's clock.
    pub now: Timestamp,
    /// The action.
    pub action: JointAction,
    /// The reply.
    pub reply: JointReply,
    /// The standings of every party right afterwards.
    pub after: Vec<Vec<Standing>>,
}

/// A store or a model that runs a script.
pub trait JointSubject {
    /// Runs `action` at `now`.
    fn play(&mut self, now: Timestamp, action: &JointAction) -> JointReply;
    /// Returns the standings of every party at `now`.
    fn standings(&mut self, now: Timestamp) -> Result<Vec<Vec<Standing>>, String>;
    /// Returns the number of permits given so far.
    fn permits(&self) -> usize;
    /// Replaces the policy of one party; usage stays.
    fn change(&mut self, party: usize, policy: &Policy);
}
