//! Operations on one entry, as values.
//!
//! A store that can run a function on an entry atomically (memory, an embedded database) needs nothing but
//! [`apply`]: it finds the entry, calls it, and writes back what [`Change`] says. Stores that decide elsewhere (a script,
//! an expression, a statement) implement the same meaning and are held to it by the same suite.

use std::borrow::Cow;

use crate::answer::{Decision, Denial, Permit};
use crate::ask::Ask;
use crate::costs::Costs;
use crate::decide::{self, Grant, Refusal, Verdict};
use crate::entry::Entry;
use crate::error::Error;
use crate::id::{IdChange, Known};
use crate::policy::Policy;
use crate::rule::Refunds;
use crate::settle;
use crate::standing::{Standing, standings};
use crate::time::Timestamp;

/// An operation on the entry of one policy and subject.
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// Decide, and charge if admitted.
    Acquire(&'a Ask<'a>),
    /// Charge without deciding.
    Charge(&'a Ask<'a>),
    /// Replace an estimate by the actual cost.
    Settle(&'a Permit, &'a Costs),
    /// Give everything back.
    Release(&'a Permit),
    /// Keep slots alive.
    Renew(&'a Permit),
    /// Close one limit until a time.
    Close {
        /// The policy, with the subject's override applied.
        policy: &'a Policy,
        /// The subject.
        subject: &'a str,
        /// The name of the limit.
        limit: &'a str,
        /// Until when.
        until: Timestamp,
    },
    /// Read the standing of the subject.
    Standing {
        /// The policy, with the subject's override applied.
        policy: &'a Policy,
        /// The subject.
        subject: &'a str,
    },
    /// Delete the entry of the subject.
    Reset {
        /// The policy.
        policy: &'a Policy,
        /// The subject.
        subject: &'a str,
    },
}

impl<'a> Operation<'a> {
    /// Returns the policy of the entry.
    #[must_use]
    pub fn policy(&self) -> &'a Policy {
        match self {
            Self::Acquire(ask) | Self::Charge(ask) => ask.policy(),
            Self::Settle(permit, _) | Self::Release(permit) | Self::Renew(permit) => {
                permit.policy()
            }
            Self::Close { policy, .. }
            | Self::Standing { policy, .. }
            | Self::Reset { policy, .. } => policy,
        }
    }

    /// Returns the subject of the entry.
    #[must_use]
    pub fn subject(&self) -> &'a str {
        match self {
            Self::Acquire(ask) | Self::Charge(ask) => ask.subject(),
            Self::Settle(permit, _) | Self::Release(permit) | Self::Renew(permit) => {
                permit.subject()
            }
            Self::Close { subject, .. }
            | Self::Standing { subject, .. }
            | Self::Reset { subject, .. } => subject,
        }
    }

    /// The ask id that the operation may remember, recognise or forget. It belongs to the policy's name and the subject.
    #[must_use]
    pub fn id(&self) -> Option<&'a str> {
        match self {
            Self::Acquire(ask) | Self::Charge(ask) => ask.id_text(),
            Self::Release(permit) => permit.id(),
            _ => None,
        }
    }
}

/// The outcome of an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The answer to an ask.
    Decided(Decision),
    /// A permit was renewed, or an ask was charged.
    Permitted(Permit),
    /// A permit was settled or released, a limit was closed or an entry was reset; false if that changed nothing.
    Changed(bool),
    /// The standing of the subject on each limit.
    Standings(Vec<Standing>),
}

impl Outcome {
    /// Takes the ask id off the permit, so that releasing the permit leaves the id remembered.
    #[must_use]
    pub fn without_id(self) -> Self {
        let plain = |permit: Permit| permit.with_id(None::<&str>);
        match self {
            Self::Decided(Decision::Admitted(permit)) => {
                Self::Decided(Decision::Admitted(plain(permit)))
            }
            Self::Permitted(permit) => Self::Permitted(plain(permit)),
            other => other,
        }
    }
}

impl<'a> Operation<'a> {
    /// Returns whether the operation concerns several charges.
    #[inline]
    #[must_use]
    pub fn is_joint(&self) -> bool {
        match self {
            Self::Acquire(ask) | Self::Charge(ask) => ask.has_several_charges(),
            Self::Settle(permit, _) | Self::Release(permit) | Self::Renew(permit) => {
                permit.has_several_charges()
            }
            _ => false,
        }
    }

    /// Returns the parts of an operation on a permit of several charges: one for each charge, to be run one after the other.
    /// The first is the one that has the ask's id. Every part is run, also after one failed, and a [`JoinedOutcome`] adds up
    /// their outcomes. For a permit of one charge, the operation is its only part.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if an actual cost has a unit that no charge has, or the operation is not on a
    /// permit.
    pub fn parts(&self) -> Result<Vec<PartOperation<'a>>, Error> {
        let (permit, actual) = match *self {
            Self::Settle(permit, actual) => {
                permit.check_units(actual)?;
                (permit, Some(actual))
            }
            Self::Release(permit) | Self::Renew(permit) => (permit, None),
            _ => return Err(Error::invalid("only an operation on a permit has parts")),
        };
        let is_joint = permit.has_several_charges();
        let part = |permit: Cow<'a, Permit>| {
            let applies = |unit: &str| {
                !is_joint || !permit.has_own_costs() && permit.policy().unit_index(unit).is_ok()
            };
            let actual = actual.map(|actual| actual.filter(applies));
            PartOperation { is_renewal: matches!(self, Self::Renew(_)), permit, actual }
        };
        Ok(permit.parts().map(part).collect())
    }
}

/// One charge's part of an [`Operation`] on a permit.
#[derive(Clone, Debug)]
pub struct PartOperation<'a> {
    permit: Cow<'a, Permit>,
    actual: Option<Costs>,
    is_renewal: bool,
}

impl PartOperation<'_> {
    /// Returns the part as an operation.
    #[must_use]
    pub fn operation(&self) -> Operation<'_> {
        match &self.actual {
            Some(actual) => Operation::Settle(&self.permit, actual),
            None if self.is_renewal => Operation::Renew(&self.permit),
            None => Operation::Release(&self.permit),
        }
    }
}

/// Adds up the outcomes of the [parts](Operation::parts) of an operation: it changed something if a part did, and fails
/// with the first error of a part. It is safe to repeat then.
#[derive(Debug)]
pub struct JoinedOutcome<E> {
    permits: Vec<Permit>,
    is_changed: bool,
    error: Option<E>,
}

impl<E> Default for JoinedOutcome<E> {
    fn default() -> Self {
        Self { permits: Vec::new(), is_changed: false, error: None }
    }
}

impl<E> JoinedOutcome<E> {
    /// Adds the outcome of the next part.
    pub fn add(&mut self, outcome: Result<Outcome, E>) {
        match outcome {
            Ok(Outcome::Permitted(permit)) => self.permits.push(permit),
            Ok(outcome) => self.is_changed |= outcome == Outcome::Changed(true),
            Err(error) => drop(self.error.get_or_insert(error)),
        }
    }

    /// Returns the outcome of the operation.
    ///
    /// # Errors
    /// The first error of a part.
    pub fn finish(self) -> Result<Outcome, E> {
        match self.error {
            Some(error) => Err(error),
            None if self.permits.is_empty() => Ok(Outcome::Changed(self.is_changed)),
            None => Ok(Outcome::Permitted(Permit::joined(self.permits))),
        }
    }
}

/// What a store must write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// No change: the operation was denied, only read, or repeated.
    Nothing,
    /// The entry as it is now.
    Entry,
}

/// The result of [`apply`].
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// The answer.
    pub outcome: Outcome,
    /// Whether to write the entry. If it is [`Change::Nothing`] the entry may be dropped or kept; it says the same.
    pub change: Change,
    /// The change of the operation's [id](Operation::id), to write atomically with the entry.
    pub id: IdChange,
}

/// Runs `operation` on `entry` at `now`. The entry is a [fresh](Entry::fresh) one where the store has none; `known` is what
/// the store knows of the operation's [id](Operation::id).
///
/// # Errors
/// Whatever the operation could not decide; the entry is unchanged then.
pub fn apply(
    operation: &Operation<'_>,
    entry: &mut Entry,
    known: Known,
    now: Timestamp,
) -> Result<Applied, Error> {
    apply_by(operation, entry, known, now, Refunds::Recorded)
}

/// Runs [`apply`] with the given kind of refunds.
pub(crate) fn apply_by(
    operation: &Operation<'_>,
    entry: &mut Entry,
    known: Known,
    now: Timestamp,
    refunds: Refunds,
) -> Result<Applied, Error> {
    // Permits may be older than the numbers in force, so what follows an admission never changes the numbers.
    let keeps_numbers = matches!(
        operation,
        Operation::Settle(..)
            | Operation::Release(_)
            | Operation::Renew(_)
            | Operation::Reset { .. }
    );
    let policy = operation.policy();
    if keeps_numbers || entry.adopt(policy) {
        return run(operation, entry, known, now, refunds);
    }
    decide::carry_over(entry, policy, |carried| {
        let applied = run(operation, carried, known, now, refunds)?;
        let changed = applied.change == Change::Entry;
        Ok((applied, changed))
    })
}

fn run(
    operation: &Operation<'_>,
    entry: &mut Entry,
    known: Known,
    now: Timestamp,
    refunds: Refunds,
) -> Result<Applied, Error> {
    let mut id = IdChange::Nothing;
    let (outcome, changed) = match operation {
        Operation::Acquire(ask) => {
            let verdict = decide::acquire_as(entry, now, ask, known, ask.is_refundable())?;
            id = IdChange::after(ask, verdict);
            let changed = matches!(verdict, Verdict::Admitted(_));
            (Outcome::Decided(decision(entry, now, ask, verdict)), changed)
        }
        Operation::Charge(ask) => {
            let verdict = settle::charge(entry, now, ask, known)?;
            id = IdChange::after(ask, verdict);
            let changed = matches!(verdict, Verdict::Admitted(_));
            match decision(entry, now, ask, verdict) {
                Decision::Admitted(permit) => {
                    let grant = Grant { expires_at: None, ..*permit.grant() };
                    (Outcome::Permitted(permit.with_grant(grant)), changed)
                }
                denied @ Decision::Denied(_) => (Outcome::Decided(denied), changed),
            }
        }
        Operation::Settle(permit, _) | Operation::Release(permit) if !permit.is_charged() => {
            // The first charge of a joint ask may be in shadow mode, and the id is its own.
            if matches!(operation, Operation::Release(_)) && known.is_of(permit) {
                id = IdChange::Forget;
            }
            (Outcome::Changed(false), false)
        }
        Operation::Settle(permit, actual) => {
            let done = settle::settle_by(entry, now, &permit.charged(), actual, refunds)?;
            (Outcome::Changed(done), done)
        }
        Operation::Release(permit) => {
            let done = settle::release_by(entry, now, &permit.charged(), refunds)?;
            if done && known.is_of(permit) {
                id = IdChange::Forget;
            }
            (Outcome::Changed(done), done)
        }
        Operation::Renew(permit) => {
            let grant = settle::renew(entry, now, &permit.charged())?;
            let changed = grant != *permit.grant();
            (Outcome::Permitted((*permit).clone().with_grant(grant)), changed)
        }
        Operation::Close { limit, until, .. } => {
            let done = settle::close_until(entry, now, limit, *until)?;
            (Outcome::Changed(done), done)
        }
        Operation::Standing { .. } => (Outcome::Standings(standings(entry, now)), false),
        Operation::Reset { .. } => {
            let done = !entry.is_empty(now);
            if done {
                *entry = entry.forgotten(now);
            }
            (Outcome::Changed(done), done)
        }
    };
    let change = if changed { Change::Entry } else { Change::Nothing };
    Ok(Applied { outcome, change, id })
}

fn decision(entry: &Entry, now: Timestamp, ask: &Ask<'_>, verdict: Verdict) -> Decision {
    match verdict {
        Verdict::Admitted(charge) | Verdict::Repeated(charge) => {
            let grant = Grant::new(charge, ask.policy(), ask.amounts());
            Decision::Admitted(Permit::for_ask(ask, grant, standings(entry, now)))
        }
        Verdict::Denied(refusal) => {
            let denial = denial(entry, now, ask, refusal);
            if ask.policy().is_shadow() {
                Decision::Admitted(Permit::in_shadow(ask, denial))
            } else {
                Decision::Denied(denial)
            }
        }
    }
}

/// The denial of `ask`, which `refusal` refuses on `entry`.
pub(crate) fn denial(entry: &Entry, now: Timestamp, ask: &Ask<'_>, refusal: Refusal) -> Denial {
    let mut denial = Denial::for_ask(ask, refusal, now, standings(entry, now));
    denial.waiting_ahead = decide::ahead(ask).count();
    if let Some(slots) = decide::slot_wait(entry, now, ask, refusal) {
        denial = denial.with_slots(slots);
    }
    denial
}
