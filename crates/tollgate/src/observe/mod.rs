//! Seeing what a gate does, without a say in it.
//!
//! [`Observed`] wraps a gate and tells an [`Observer`] what happened. An observer cannot fail or change a decision; one
//! that is slow slows the caller, so sinks that write elsewhere hand events to a bounded queue of their own.

mod gate;

pub use self::gate::Observed;

use std::fmt::Debug;

use tollgate_core::{Amounts, Ask, Costs, Denial, Permit, Policy, Span, Timestamp};

use crate::error::Error;
use crate::incident::Incident;

/// What happened at a gate.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// An ask was admitted. A permit with `shadow_denied` is what shadow mode let through.
    Admitted {
        /// What was asked.
        ask: &'a Ask<'a>,
        /// What was given.
        permit: &'a Permit,
        /// How long the gate took.
        took: Span,
    },
    /// An ask was denied.
    Denied {
        /// What was asked.
        ask: &'a Ask<'a>,
        /// Why not.
        denial: &'a Denial,
        /// How long the gate took.
        took: Span,
    },
    /// A permit was settled with its actual cost.
    Settled {
        /// The permit.
        permit: &'a Permit,
        /// What it really cost.
        actual: &'a Costs,
        /// Whether it was the first time.
        first: bool,
    },
    /// A permit was released.
    Released {
        /// The permit.
        permit: &'a Permit,
        /// Whether it was the first time.
        first: bool,
    },
    /// A permit's slots were renewed.
    Renewed {
        /// The permit, renewed.
        permit: &'a Permit,
    },
    /// An ask was charged without deciding.
    Charged {
        /// What was charged.
        ask: &'a Ask<'a>,
    },
    /// A limit was closed.
    Closed {
        /// For which policy and subject.
        ask: &'a Ask<'a>,
        /// The name of the limit.
        limit: &'a str,
        /// Until when.
        until: Timestamp,
    },
    /// An entry was forgotten on an operator's word.
    Reset {
        /// The policy.
        policy: &'a Policy,
        /// For whom.
        subject: &'a str,
    },
    /// Somebody did something apart from asking, or was not let in.
    Administered {
        /// What, as the audit names it: `reset`, `overridden`, `unauthenticated` and so on.
        action: &'a str,
        /// The name of the API key; empty on a server without keys.
        by: &'a str,
    },
    /// The gate could not decide.
    Failed {
        /// The policy.
        policy: &'a Policy,
        /// For whom.
        subject: &'a str,
        /// Why not.
        error: &'a Error,
        /// How long it took to fail.
        took: Span,
    },
    /// The store was tried once on behalf of a caller.
    Tried {
        /// The policy.
        policy: &'a Policy,
        /// Which try of one call it was, from 1.
        attempt: u32,
        /// How long the store took.
        took: Span,
        /// How it ended.
        result: Tried,
    },
    /// The store failed so often that decisions are made without it from now on.
    DegradedBegan {
        /// The last failure.
        error: &'a Error,
    },
    /// The store can be reached but does not serve this program until the operator changes something.
    Misconfigured {
        /// What is wrong, and what would be right.
        error: &'a Error,
    },
    /// The store answers again, and what was spent without it has been posted.
    DegradedEnded {
        /// How long decisions were made without it.
        lasted: Span,
    },
    /// A leased gate asked the store for a block: one write.
    BlockAsked {
        /// The policy.
        policy: &'a Policy,
        /// How much of each unit.
        amounts: &'a Amounts,
        /// Whether the store gave it.
        admitted: bool,
    },
    /// A block ended, and what was left of it went back.
    BlockReturned {
        /// The policy.
        policy: &'a Policy,
        /// What it held.
        taken: &'a Amounts,
        /// What nobody spent.
        unspent: &'a Amounts,
        /// Whether that was written to the store; if not, time had given it back already, or nothing was left.
        posted: bool,
    },
    /// What an optimistic gate has admitted and not yet posted to the store changed.
    Unposted {
        /// The policy.
        policy: &'a Policy,
        /// The admitted requests that the store does not know of.
        unposted: u64,
        /// The most that this instance lets them become: its share of the possible over-issue.
        unposted_max: u64,
    },
    /// A strategy posted what it had admitted without the store, and found it beyond a limit.
    OverIssued {
        /// The policy.
        policy: &'a Policy,
        /// The name of the limit.
        limit: &'a str,
        /// How much of what was posted is beyond the limit as configured, in its unit.
        amount: u64,
    },
    /// A stored entry was from the future, written by a wrong clock, and was rewritten as used up at the present.
    Mended {
        /// The policy.
        policy: &'a Policy,
        /// For whom.
        subject: &'a str,
        /// How far its time was ahead.
        ahead: Span,
    },
    /// A provider refused what was admitted.
    Violated {
        /// The policy.
        policy: &'a Policy,
        /// What was known about it.
        incident: &'a Incident,
    },
}

/// How one try of a store ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tried {
    /// The store answered.
    Answered,
    /// Another caller changed the entry first, so the store must be asked again.
    Raced,
    /// The store refused for its own load.
    Throttled,
    /// The store failed or did not answer in time.
    Failed,
}

/// Is told what happens at a gate. Must return quickly, and cannot fail.
pub trait Observer: Debug + Send + Sync + 'static {
    /// Something happened.
    fn observe(&self, event: &Event<'_>);
}
