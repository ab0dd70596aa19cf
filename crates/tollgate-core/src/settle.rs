//! Operations after an admission (settle, release, renew) and without one (charge, close).
//!
//! Giving back must not make room twice, so each gives back only what time has not given back already; the rules know
//! how. A permit is settled once: the second time changes nothing.

use crate::ask::Ask;
use crate::bounds::{NUMBER_MAX, PERMIT_TTL};
use crate::costs::{Amounts, Costs};
use crate::decide::{self, ChargeRecord, Grant, Verdict};
use crate::entry::{Entry, Slotted};
use crate::error::{Error, ErrorKind};
use crate::id::Known;
use crate::policy::{Metered, Policy};
use crate::rule::{ChargeTag, Refunds};
use crate::time::Timestamp;

/// A charge that is to be settled, released or renewed.
#[derive(Clone, Copy, Debug)]
pub struct Charged<'a> {
    /// The policy that the amounts are in the units of.
    pub policy: &'a Policy,
    /// The charged amounts.
    pub amounts: &'a Amounts,
    /// When and under which number.
    pub grant: &'a Grant,
    /// Whether the policy still has the numbers it was charged under; if not, nothing is given back.
    pub same_numbers: bool,
}

impl Charged<'_> {
    /// The charged amounts with every unit that `actual` names replaced.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for an unknown unit or too large an amount.
    pub fn with_actual(&self, actual: &Costs) -> Result<Amounts, Error> {
        let mut wanted = *self.amounts;
        for (unit, amount) in actual.iter() {
            if NUMBER_MAX < amount {
                return Err(Error::invalid(format!(
                    "actual {unit}={amount} must be at most {NUMBER_MAX}"
                )));
            }
            wanted.set(self.policy.unit_index(unit)?, amount);
        }
        Ok(wanted)
    }

    /// Reports a permit that is too old to be settled at `now`.
    ///
    /// # Errors
    /// [`ErrorKind::Expired`] from [`PERMIT_TTL`] after the charge on.
    pub fn check_age(&self, now: Timestamp) -> Result<(), Error> {
        if now < self.grant.at + PERMIT_TTL {
            return Ok(());
        }
        Err(too_old(self.grant))
    }
}

fn too_old(grant: &Grant) -> Error {
    Error::new(
        ErrorKind::Expired,
        format!(
            "the permit of {} is too old to be settled (at most {PERMIT_TTL}); what was charged stays charged",
            grant.at
        ),
    )
}

/// Replaces the charged amounts by `actual` and frees slots. A unit that `actual` does not name keeps its estimate.
/// Returns whether anything was done: settling twice does nothing the second time.
///
/// # Errors
/// [`ErrorKind::Expired`] if the permit is older than [`PERMIT_TTL`] and holds no slot, [`ErrorKind::Invalid`] for an
/// unknown unit.
pub fn settle(
    entry: &mut Entry,
    now: Timestamp,
    charged: &Charged<'_>,
    actual: &Costs,
) -> Result<bool, Error> {
    settle_by(entry, now, charged, actual, Refunds::Recorded)
}

pub(crate) fn settle_by(
    entry: &mut Entry,
    now: Timestamp,
    charged: &Charged<'_>,
    actual: &Costs,
    refunds: Refunds,
) -> Result<bool, Error> {
    replace(entry, now, charged, &charged.with_actual(actual)?, refunds)
}

/// Gives everything back: the call was not made. Returns whether anything was done.
///
/// # Errors
/// [`ErrorKind::Expired`] if the permit is older than [`PERMIT_TTL`] and holds no slot.
pub fn release(entry: &mut Entry, now: Timestamp, charged: &Charged<'_>) -> Result<bool, Error> {
    release_by(entry, now, charged, Refunds::Recorded)
}

pub(crate) fn release_by(
    entry: &mut Entry,
    now: Timestamp,
    charged: &Charged<'_>,
    refunds: Refunds,
) -> Result<bool, Error> {
    replace(entry, now, charged, &Amounts::default(), refunds)
}

fn replace(
    entry: &mut Entry,
    now: Timestamp,
    charged: &Charged<'_>,
    wanted: &Amounts,
    refunds: Refunds,
) -> Result<bool, Error> {
    let now = entry.effective(now);
    let grant = charged.grant;
    let settled = entry.extra().map(|extra| &extra.settled);
    let expired = grant.at + PERMIT_TTL <= now;
    // The age comes first: what is remembered of older permits depends on what else was written.
    if !expired && settled.is_some_and(|settled| settled.contains(grant.stamp)) {
        return Ok(false);
    }
    let too_old_to_refund = settled.is_some_and(|settled| settled.is_too_old(grant.stamp));
    let costs_more = |wanted: &Amounts| {
        let mut limits = charged.policy.metered().iter();
        limits.any(|limit| charged.amounts.at(limit.unit_index) < wanted.at(limit.unit_index))
    };
    // Cost beyond the estimate is charged however late it is reported.
    if expired || (too_old_to_refund && !costs_more(wanted)) {
        // A slot that was renewed outlives its permit's costs: it can always be handed back.
        if free_slots(entry, now, grant.stamp) {
            return Ok(true);
        }
        return Err(too_old(grant));
    }
    let estimate = translate(charged.policy, entry.policy(), charged.amounts);
    let wanted = translate(charged.policy, entry.policy(), wanted);
    entry.advance(now);
    let changed = entry.extra().and_then(|extra| extra.changed);
    let gives_back = charged.same_numbers
        && !too_old_to_refund
        && changed.is_none_or(|changed| changed.stamp <= grant.stamp);
    // Extra cost is charged after every permit there is.
    let tag = ChargeTag { stamp: entry.next_stamp(), refundable: false };
    let charge = ChargeRecord { at: grant.at, stamp: grant.stamp };
    entry.extra_mut();
    entry.change_limits(|limit, state| {
        let (estimate, wanted) = (estimate.at(limit.unit_index), wanted.at(limit.unit_index));
        if limit.gauge.is_slots() {
            limit.gauge.free(state, grant.stamp);
        } else if wanted < estimate {
            if gives_back && can_give_back(charged.policy, limit) {
                limit.gauge.give_back(state, now, estimate - wanted, charge, refunds);
            }
        } else {
            limit.gauge.charge(state, now, now, wanted - estimate, tag);
        }
    });
    entry.extra_mut().settled.insert(grant.stamp, grant.at, now);
    Ok(true)
}

/// Frees the slots that the permit with this stamp still holds; whether there were any.
fn free_slots(entry: &mut Entry, now: Timestamp, stamp: u64) -> bool {
    let holds = entry.limits().any(|(_, state)| state.holds_slot(stamp, now));
    if holds {
        entry.advance(now);
        entry.change_limits(|limit, state| limit.gauge.free(state, stamp));
    }
    holds
}

/// Whether what was charged under `policy` can be given back to `limit` as it is now. If its numbers changed so that
/// it cannot, what was charged stays charged, which is the strict side.
fn can_give_back(policy: &Policy, limit: &Metered) -> bool {
    policy.metered().iter().any(|old| {
        old.name == limit.name && old.unit == limit.unit && limit.gauge.gives_back_like(&old.gauge)
    })
}

/// Keeps the slots of a permit for another time to live. A permit without slots is returned as it is.
///
/// # Errors
/// [`ErrorKind::Expired`] if any of its slots expired or was freed: another permit may hold it.
pub fn renew(entry: &mut Entry, now: Timestamp, charged: &Charged<'_>) -> Result<Grant, Error> {
    let mut grant = *charged.grant;
    if grant.expires_at.is_none() {
        return Ok(grant);
    }
    let now = entry.effective(now);
    let held = entry.clone();
    entry.advance(now);
    let mut renewed: Option<Timestamp> = None;
    let mut lost = false;
    entry.change_limits(|limit, state| {
        let expires_at = limit.gauge.renew(state, now, grant.stamp);
        lost |= expires_at.is_none() && took_slot(charged, limit);
        renewed = [renewed, expires_at].into_iter().flatten().min();
    });
    let Some(expires_at) = renewed.filter(|_| !lost) else {
        *entry = held;
        return Err(Error::new(
            ErrorKind::Expired,
            "the permit holds no slot any more; acquire a new one",
        ));
    };
    grant.expires_at = Some(expires_at);
    Ok(grant)
}

/// Whether the permit took a slot of `limit` when it was admitted.
fn took_slot(charged: &Charged<'_>, limit: &Metered) -> bool {
    charged.policy.metered().iter().any(|old| {
        old.name == limit.name && old.gauge.is_slots() && 0 < charged.amounts.at(old.unit_index)
    })
}

/// Charges an ask whether it fits or not: debt, or [arrears](Ask::with_arrears) that are posted later. Takes no slots.
/// With an id it is charged once: [`Verdict::Repeated`] the second time.
///
/// # Errors
/// As [`decide`](crate::decide()): a wrong ask, an id with other costs, too many ids.
pub fn charge(
    entry: &mut Entry,
    now: Timestamp,
    ask: &Ask<'_>,
    known: Known,
) -> Result<Verdict, Error> {
    ask.check()?;
    let now = entry.effective(now);
    if let Some(charge) = decide::recognise(entry, now, ask, known)? {
        return Ok(Verdict::Repeated(charge));
    }
    decide::ensure_room_for_id(ask, known)?;
    Ok(Verdict::Admitted(charge_now(entry, now, ask)))
}

/// Charges `ask` at `now`, which is not before the entry's own time.
pub(crate) fn charge_now(entry: &mut Entry, now: Timestamp, ask: &Ask<'_>) -> ChargeRecord {
    let stamp = match ask.arrears() {
        Some(arrears) => entry.charge_arrears(arrears, ask.amounts(), now),
        None => entry.charge(ask.amounts(), now, Slotted::Not, ask.is_refundable()),
    };
    ChargeRecord { at: now, stamp }
}

/// Closes the limit called `limit` until `until`, because the provider said no. A limit that is closed for longer
/// stays so. Returns whether anything changed.
///
/// # Errors
/// [`ErrorKind::Invalid`] if the policy has no such limit.
pub fn close_until(
    entry: &mut Entry,
    now: Timestamp,
    limit: &str,
    until: Timestamp,
) -> Result<bool, Error> {
    let limits = entry.policy().metered();
    let Some(index) = limits.iter().position(|metered| &*metered.name == limit) else {
        let names: Vec<&str> = limits.iter().map(|metered| &*metered.name).collect();
        return Err(Error::invalid(format!(
            "policy {:?} has no limit {limit:?}; it has {}",
            entry.policy().name(),
            names.join(", ")
        )));
    };
    let now = entry.effective(now);
    if until <= now || entry.closed_until(index, now).is_some_and(|closed| until <= closed) {
        return Ok(false);
    }
    entry.advance(now);
    let closed = &mut entry.extra_mut().closed;
    closed.retain(|(other, _)| *other != index);
    closed.push((index, until));
    Ok(true)
}

/// Converts `amounts` from the units of `from` to those of `to`; a unit that `to` does not count is dropped.
pub(crate) fn translate(from: &Policy, to: &Policy, amounts: &Amounts) -> Amounts {
    if from.has_shape_of(to) {
        return *amounts;
    }
    let mut translated = Amounts::default();
    for (index, unit) in from.units().enumerate() {
        if let Ok(target) = to.unit_index(unit) {
            translated.set(target, amounts.at(index));
        }
    }
    translated
}
