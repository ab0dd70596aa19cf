//! Ask ids, which make repeats idempotent.
//!
//! Ids are kept by the store beside its entries and not in them, so that an entry stays small however many asks carry an
//! id. A store looks the id up, hands what it [knows](Known) to [`apply`](crate::apply()), and carries out the
//! [change](IdChange) that comes back together with that of the entry.

use crate::answer::Permit;
use crate::ask::Ask;
use crate::decide::{ChargeRecord, Verdict};
use crate::entry::Entry;
use crate::operation::Operation;
use crate::time::Timestamp;

/// The charge that an ask with an id got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// The charge that was made.
    pub charge: ChargeRecord,
    /// The [digest](crate::Ask::digest) of the ask: the same id with another ask is a conflict.
    pub digest: u64,
    /// When the id is forgotten.
    pub expires_at: Timestamp,
}

/// The state of an operation's id in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Known {
    /// The operation has no id, or a new one.
    #[default]
    New,
    /// The id is new, and the store has no room for another.
    Full,
    /// An ask with this id got this charge; expired or not.
    Before(Remembered),
}

impl Known {
    /// The same where permits cross a wire without their ids, so that a release cannot forget one: an ask whose permit was
    /// settled or released is a new one. A charge is recognised in any case, since nothing is admitted by it.
    #[must_use]
    pub fn unless_settled(self, operation: &Operation<'_>, entry: &Entry) -> Self {
        let is_settled = |stamp| {
            let settled = entry.extra().map(|extra| &extra.settled);
            settled.is_some_and(|settled| settled.contains(stamp) || settled.is_too_old(stamp))
        };
        match self {
            Self::Before(given)
                if matches!(operation, Operation::Acquire(_)) && is_settled(given.charge.stamp) =>
            {
                Self::New
            }
            other => other,
        }
    }

    /// Returns whether the id is that of `permit`. By now it may belong to a later permit, if the slots of this one were
    /// gone.
    pub(crate) fn is_of(self, permit: &Permit) -> bool {
        let grant = permit.grant();
        let is_same = |charge: ChargeRecord| {
            charge.stamp == grant.stamp && (charge.stamp != 0 || charge.at == grant.at)
        };
        matches!(self, Self::Before(given) if is_same(given.charge))
    }

    /// What was given for the id, if it is not forgotten at `now`.
    pub(crate) fn before(self, now: Timestamp) -> Option<Remembered> {
        match self {
            Self::Before(given) if now < given.expires_at => Some(given),
            _ => None,
        }
    }
}

/// The change of an operation's id that a store must write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdChange {
    /// No change.
    Nothing,
    /// Remember it, instead of what it knew before.
    Remember(Remembered),
    /// Forget it: its permit was released, so that a repeat is a new ask.
    Forget,
}

impl IdChange {
    /// Returns the change for the id of `ask` after `verdict`: an admission is remembered, a denial is not.
    #[must_use]
    pub fn after(ask: &Ask<'_>, verdict: Verdict) -> Self {
        match verdict {
            Verdict::Admitted(charge) if ask.id_text().is_some() => Self::Remember(Remembered {
                charge,
                digest: ask.digest(),
                expires_at: charge.at + ask.id_ttl(),
            }),
            _ => Self::Nothing,
        }
    }
}
