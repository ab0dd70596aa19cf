//! Observers, which receive the events of a gate.
//!
//! [`Observed`] wraps a gate and reports events to an [`Observer`]. An observer cannot fail or change a decision; one
//! that is slow slows the caller, so sinks that write elsewhere hand events to a bounded queue of their own.

mod gate;

pub use self::gate::Observed;

use std::fmt::Debug;

use tollgate_core::{Amounts, Ask, Costs, Denial, Permit, Policy, Span, Timestamp};

use crate::error::Error;
use crate::incident::{DifferentLimit, Incident};

/// An event at a gate.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// An ask was admitted. A permit with `shadow_denied` is what shadow mode let through.
    Admitted {
        /// The ask.
        ask: &'a Ask<'a>,
        /// The permit.
        permit: &'a Permit,
        /// How long the gate took.
        took: Span,
    },
    /// An ask was denied.
    Denied {
        /// The ask.
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
        /// The actual cost.
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
        /// The charged amounts.
        ask: &'a Ask<'a>,
    },
    /// A limit was closed.
    Closed {
        /// The policy.
        policy: &'a Policy,
        /// The subject.
        subject: &'a str,
        /// The name of the limit.
        limit: &'a str,
        /// Until when.
        until: Timestamp,
    },
    /// An operator reset an entry.
    Reset {
        /// The policy.
        policy: &'a Policy,
        /// The subject.
        subject: &'a str,
    },
    /// An administrative action, or a failed authentication.
    Administered {
        /// The action, as the audit names it: `reset`, `overridden`, `unauthenticated` and so on.
        action: &'a str,
        /// The name of the API key; empty on a server without keys.
        by: &'a str,
    },
    /// The gate could not decide.
    Failed {
        /// The policy.
        policy: &'a Policy,
        /// The subject.
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
        result: AttemptResult,
    },
    /// The store failed so often that decisions are made without it from now on.
    DegradedBegan {
        /// The last failure.
        error: &'a Error,
    },
    /// The store can be reached but does not serve this program until the operator changes something.
    Misconfigured {
        /// The mistake and its remedy.
        error: &'a Error,
    },
    /// A provider reports another limit than the policy has.
    LimitDiffers(&'a DifferentLimit),
    /// The store answers again, and everything spent without it has been posted.
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
    /// A block ended, and the rest of it was returned.
    BlockReturned {
        /// The policy.
        policy: &'a Policy,
        /// The tokens it held.
        taken: &'a Amounts,
        /// The tokens that were not spent.
        unspent: &'a Amounts,
        /// Whether that was written to the store; if not, time had given it back already, or nothing was left.
        posted: bool,
    },
    /// The unposted admissions of an optimistic gate changed.
    Unposted {
        /// The policy.
        policy: &'a Policy,
        /// The admitted requests that the store does not know of.
        unposted: u64,
        /// The most that this instance lets them become: its share of the possible over-issue.
        unposted_max: u64,
    },
    /// A strategy posted local admissions and found them beyond a limit.
    OverIssued {
        /// The policy.
        policy: &'a Policy,
        /// The name of the limit.
        limit: &'a str,
        /// The posted amount beyond the configured limit, in its unit.
        amount: u64,
    },
    /// A stored entry was from the future, written by a wrong clock, and was rewritten as used up at the present.
    Repaired {
        /// The policy.
        policy: &'a Policy,
        /// The subject.
        subject: &'a str,
        /// How far its time was ahead.
        ahead: Span,
    },
    /// A provider refused an admitted call.
    Violated {
        /// The policy.
        policy: &'a Policy,
        /// The incident.
        incident: &'a Incident,
    },
}

/// How one try of a store ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttemptResult {
    /// The store answered.
    Answered,
    /// Another caller changed the entry first, so the store must be asked again.
    Raced,
    /// The store refused for its own load.
    Throttled,
    /// The store failed or did not answer in time.
    Failed,
}

/// Receives the events of a gate. Must return quickly, and cannot fail.
pub trait Observer: Debug + Send + Sync + 'static {
    /// Receives an event.
    fn observe(&self, event: &Event<'_>);
}
