//! One operation on one entry, as a value.
//!
//! A store that can run a function on an entry atomically (memory, an embedded database) needs nothing but
//! [`apply`]: it finds the entry, calls it, and writes back what [`Change`] says. Stores that decide elsewhere (a script,
//! an expression, a statement) implement the same meaning and are held to it by the same suite.

use crate::answer::{Decision, Denial, Permit};
use crate::ask::Ask;
use crate::costs::Costs;
use crate::decide::{self, Charge, Grant, Verdict};
use crate::entry::Entry;
use crate::error::Error;
use crate::policy::{Policy, check_subject};
use crate::settle;
use crate::standing::{Standing, standings};
use crate::time::Timestamp;

/// What to do with the entry of one policy and subject.
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
        /// For whom.
        subject: &'a str,
        /// The name of the limit.
        limit: &'a str,
        /// Until when.
        until: Timestamp,
    },
    /// Say where the subject stands.
    Standing {
        /// The policy, with the subject's override applied.
        policy: &'a Policy,
        /// For whom.
        subject: &'a str,
    },
    /// Forget everything about the subject.
    Reset {
        /// The policy.
        policy: &'a Policy,
        /// For whom.
        subject: &'a str,
    },
}

impl<'a> Operation<'a> {
    /// The policy whose entry is meant.
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

    /// The subject whose entry is meant.
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
}

/// What an operation answered.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The answer to an ask.
    Decided(Decision),
    /// A permit was settled or released; false if it had been before.
    Settled(bool),
    /// A permit was renewed, or an ask was charged.
    Permitted(Permit),
    /// A limit was closed, or an entry was forgotten; false if there was nothing to do.
    Done(bool),
    /// Where the subject stands.
    Stands(Vec<Standing>),
}

/// What a store has to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing: a refusal, a reading, a repeat.
    Nothing,
    /// The entry as it is now.
    Entry,
}

/// Runs `operation` on `entry` at `now`. The entry is a [fresh](Entry::fresh) one where the store has none. If the
/// change is [`Change::Nothing`] the entry may be dropped or kept; it says the same.
///
/// # Errors
/// Whatever the operation could not decide; the entry is unchanged then.
pub fn apply(
    operation: &Operation<'_>,
    entry: &mut Entry,
    now: Timestamp,
) -> Result<(Outcome, Change), Error> {
    check_subject(operation.subject())?;
    match operation {
        // Permits may be older than the numbers in force, so what follows an admission never changes the numbers.
        Operation::Settle(..)
        | Operation::Release(_)
        | Operation::Renew(_)
        | Operation::Reset { .. } => {}
        _ => {
            let policy = operation.policy();
            if !entry.policy().has_shape_of(policy) {
                let mut carried = entry.carried_to(policy);
                let answer = run(operation, &mut carried, now)?;
                if answer.1 == Change::Entry {
                    *entry = carried;
                }
                return Ok(answer);
            }
        }
    }
    run(operation, entry, now)
}

fn run(
    operation: &Operation<'_>,
    entry: &mut Entry,
    now: Timestamp,
) -> Result<(Outcome, Change), Error> {
    let written = |changed: bool| if changed { Change::Entry } else { Change::Nothing };
    match operation {
        Operation::Acquire(ask) => acquire(entry, now, ask),
        Operation::Charge(ask) => {
            let charge = settle::charge(entry, now, ask)?;
            let grant = Grant { expires_at: None, ..grant_of(ask, charge) };
            let permit = Permit::of(ask, grant, standings(entry, now));
            Ok((Outcome::Permitted(permit), Change::Entry))
        }
        Operation::Settle(permit, _) | Operation::Release(permit) if !permit.is_charged() => {
            Ok((Outcome::Settled(false), Change::Nothing))
        }
        Operation::Settle(permit, actual) => {
            let done = settle::settle(entry, now, &permit.charged(), actual)?;
            Ok((Outcome::Settled(done), written(done)))
        }
        Operation::Release(permit) => {
            let done = settle::release(entry, now, &permit.charged())?;
            Ok((Outcome::Settled(done), written(done)))
        }
        Operation::Renew(permit) => {
            let grant = settle::renew(entry, now, &permit.charged())?;
            let changed = grant != *permit.grant();
            Ok((Outcome::Permitted((*permit).clone().with_grant(grant)), written(changed)))
        }
        Operation::Close { limit, until, .. } => {
            let done = settle::close_until(entry, now, limit, *until)?;
            Ok((Outcome::Done(done), written(done)))
        }
        Operation::Standing { .. } => Ok((Outcome::Stands(standings(entry, now)), Change::Nothing)),
        Operation::Reset { .. } => {
            let done = !entry.is_empty(now);
            if done {
                *entry = entry.forgotten(now);
            }
            Ok((Outcome::Done(done), written(done)))
        }
    }
}

fn acquire(entry: &mut Entry, now: Timestamp, ask: &Ask<'_>) -> Result<(Outcome, Change), Error> {
    let (decision, change) = match decide::acquire(entry, now, ask)? {
        Verdict::Admitted(charge) => {
            let permit = Permit::of(ask, grant_of(ask, charge), standings(entry, now));
            (Decision::Admitted(permit), Change::Entry)
        }
        Verdict::Repeated(charge) => {
            let permit = Permit::of(ask, grant_of(ask, charge), standings(entry, now));
            (Decision::Admitted(permit), Change::Nothing)
        }
        Verdict::Denied(refusal) => {
            let mut denial = Denial::of(ask, refusal, now, standings(entry, now));
            denial.waiting_ahead = decide::ahead(ask).count();
            if let Some(slots) = decide::slot_wait(entry, now, ask, refusal) {
                denial = denial.with_slots(slots);
            }
            let decision = if ask.policy().is_shadow() {
                Decision::Admitted(Permit::in_shadow(ask, denial))
            } else {
                Decision::Denied(denial)
            };
            (decision, Change::Nothing)
        }
    };
    Ok((Outcome::Decided(decision), change))
}

fn grant_of(ask: &Ask<'_>, charge: Charge) -> Grant {
    Grant::of(charge, ask.policy(), ask.amounts())
}
