//! The decision: a pure function of (entry, now, ask).
//!
//! The order is part of the meaning. What can never fit is refused before anything else; then a repeat is recognised;
//! then every limit is asked when it has room, and the longest wait binds. Deciding changes nothing;
//! [`commit`] charges what was admitted.

use std::sync::Arc;

use crate::ask::Ask;
use crate::bounds::{SETTLED_RUNS_MAX, SLOT_WAIT_DEFAULT, SLOT_WAIT_MIN};
use crate::costs::Amounts;
use crate::entry::{Entry, Slotted};
use crate::error::{Error, ErrorKind};
use crate::id::Known;
use crate::policy::{Metered, Policy};
use crate::rule::{State, View};
use crate::time::{Span, Timestamp};

/// How long a denied ask has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wait {
    /// Denied one microsecond before this instant on the deciding clock, admitted at it, if nothing comes between. In a
    /// [`Denial`](crate::Denial) for slots it is an estimate.
    Until(Timestamp),
    /// For ever: the cost is larger than the limit.
    Never,
}

/// The record of a charge that was made: when, and its number within its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChargeRecord {
    /// When it was charged, in the store's time.
    pub at: Timestamp,
    /// The number of the charge within its entry.
    pub stamp: u64,
}

/// A charge with the times that follow from its policy: enough to use it and to settle it later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// When it was charged, in the store's time.
    pub at: Timestamp,
    /// The number of the charge within its entry.
    pub stamp: u64,
    /// Until when the admitted call should reach the provider; set where a limit has a margin.
    pub use_by: Option<Timestamp>,
    /// When the slots it holds expire; set where a concurrency limit was charged.
    pub expires_at: Option<Timestamp>,
}

/// Which limit binds, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Refusal {
    /// The index of the binding limit in the policy: the longest wait, then the first in order.
    pub limit: usize,
    /// How long it binds. For slots this is the bound: when enough of them have expired.
    pub wait: Wait,
}

/// The data that the wait for slots is estimated from. Holders may release their slots at any time, so
/// only the bound is certain: the instant at which enough of them have expired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotWait {
    /// The wait of the other limits: before this instant the ask is denied even if slots are released.
    pub not_before: Timestamp,
    /// The limits that lack slots.
    pub shortages: Vec<Shortage>,
}

/// A concurrency limit that lacks slots for an ask, or for those that wait ahead of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The name of the limit.
    pub limit: Arc<str>,
    /// How many slots must be released, for the ask and for those ahead of it. At least as many as the ask takes if so
    /// many are held: a holder releases all of its slots at once, and others are taken to ask for as many.
    pub missing: u64,
    /// How many slots are held meanwhile.
    pub held: u64,
}

impl SlotWait {
    /// Estimates the wait from `held_for`, the mean time that the slots of a limit are held: the longest estimate counts. A limit
    /// without such a mean counts with [`SLOT_WAIT_DEFAULT`].
    #[must_use]
    pub fn estimate(&self, held_for: impl Fn(&str) -> Option<Span>) -> Span {
        let waits = self.shortages.iter().map(|short| short.wait(held_for(&short.limit)));
        waits.max().unwrap_or(SLOT_WAIT_DEFAULT)
    }
}

impl Shortage {
    /// The mean time until `missing` of `held` slots are released, each of which is held for `mean`. Rounded up.
    fn wait(&self, mean: Option<Span>) -> Span {
        let (missing, held) = (u128::from(self.missing), u128::from(self.held.max(1)));
        let part = |span: Span| {
            let micros = (u128::from(span.as_micros()) * missing).div_ceil(held);
            Span::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
        };
        match mean {
            Some(mean) => part(mean).max(SLOT_WAIT_MIN),
            None => part(SLOT_WAIT_DEFAULT).max(SLOT_WAIT_DEFAULT),
        }
    }
}

/// The answer to an ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Every limit has room.
    Admitted(ChargeRecord),
    /// The ask was admitted before under the same id; nothing is charged again.
    Repeated(ChargeRecord),
    /// At least one limit has no room; nothing is charged.
    Denied(Refusal),
}

/// Decides `ask` on `entry` at `now`, changing nothing. The entry is in the numbers of the ask's policy; `known` is what the
/// store knows of the ask's id.
///
/// # Errors
/// [`ErrorKind::Invalid`] if the ask is wrong, [`ErrorKind::Conflict`] if its id was used with other costs,
/// [`ErrorKind::Contended`] if there is no room for another id or for another permit in flight.
#[inline(always)]
pub fn decide(
    entry: &Entry,
    now: Timestamp,
    ask: &Ask<'_>,
    known: Known,
) -> Result<Verdict, Error> {
    ask.check()?;
    let now = entry.effective(now);
    if ask.is_plain() {
        return verdict(entry, now, ask);
    }
    decide_rare(entry, now, ask, known)
}

/// Decides an ask that has no id and no asks in front.
#[inline(always)]
fn verdict(entry: &Entry, now: Timestamp, ask: &Ask<'_>) -> Result<Verdict, Error> {
    Ok(match binding::<true>(entry, now, ask.amounts()) {
        Some(refusal) => Verdict::Denied(refusal),
        None => {
            check_in_flight(entry, now, ask)?;
            Verdict::Admitted(ChargeRecord { at: now, stamp: entry.next_stamp() })
        }
    })
}

#[cold]
fn decide_rare(
    entry: &Entry,
    now: Timestamp,
    ask: &Ask<'_>,
    known: Known,
) -> Result<Verdict, Error> {
    let amounts = ask.amounts();
    if let Some(limit) = never_fits(entry.policy(), amounts) {
        return Ok(Verdict::Denied(Refusal { limit, wait: Wait::Never }));
    }
    if let Some(charge) = recognise(entry, now, ask, known)?
        && is_still_valid(entry, now, charge, amounts)
    {
        return Ok(Verdict::Repeated(charge));
    }
    if let Some(refusal) = forecast::<true>(entry, now, ask) {
        return Ok(Verdict::Denied(refusal));
    }
    let verdict = verdict(entry, now, ask)?;
    if matches!(verdict, Verdict::Admitted(_)) {
        ensure_room_for_id(ask, known)?;
    }
    Ok(verdict)
}

/// Reports an ask whose permit could not be settled exactly, because too many others of the entry are not settled yet.
#[inline(always)]
fn check_in_flight(entry: &Entry, now: Timestamp, ask: &Ask<'_>) -> Result<(), Error> {
    match entry.extra() {
        Some(extra) if ask.is_refundable() && extra.settled.is_full(now) => Err(Error::new(
            ErrorKind::Contended,
            format!(
                "more than {SETTLED_RUNS_MAX} permits of this subject wait to be settled; settle or release them, or ask \
                 again later"
            ),
        )),
        _ => Ok(()),
    }
}

/// Decides `ask` on `entry` at `now`, and charges it if it is admitted: [`decide`] and [`commit`] in one, on an entry
/// that may still be in older numbers of the policy. A verdict is no permit, so the charge counts as one
/// [without refund](Ask::without_refund); [`apply`](crate::apply()) gives permits.
///
/// # Errors
/// As [`decide`]; the entry is unchanged then.
#[inline]
pub fn acquire(
    entry: &mut Entry,
    now: Timestamp,
    ask: &Ask<'_>,
    known: Known,
) -> Result<Verdict, Error> {
    acquire_as(entry, now, ask, known, false)
}

#[inline]
pub(crate) fn acquire_as(
    entry: &mut Entry,
    now: Timestamp,
    ask: &Ask<'_>,
    known: Known,
    refundable: bool,
) -> Result<Verdict, Error> {
    if !entry.adopt(ask.policy()) {
        return carry_over(entry, ask.policy(), |carried| {
            let verdict = acquire_as(carried, now, ask, known, refundable)?;
            Ok((verdict, matches!(verdict, Verdict::Admitted(_))))
        });
    }
    ask.check()?;
    let now = entry.effective(now);
    let verdict = if ask.is_plain() {
        if let Some(taken) = entry.take_from_bucket(ask.amounts(), now, refundable) {
            return Ok(match taken {
                Ok(charge) => Verdict::Admitted(charge),
                Err(ready) => Verdict::Denied(Refusal { limit: 0, wait: Wait::Until(ready) }),
            });
        }
        verdict(entry, now, ask)?
    } else {
        decide_rare(entry, now, ask, known)?
    };
    if let Verdict::Admitted(charge) = verdict {
        entry.charge(ask.amounts(), charge.at, Slotted::Taken, refundable);
    }
    Ok(verdict)
}

/// Runs `work` on `entry` carried over to the numbers of `policy`. The carried entry replaces the old one if `work`
/// returns that it changed it.
#[cold]
pub(crate) fn carry_over<T>(
    entry: &mut Entry,
    policy: &Policy,
    work: impl FnOnce(&mut Entry) -> Result<(T, bool), Error>,
) -> Result<T, Error> {
    let mut carried = entry.carried_to(policy);
    let (done, changed) = work(&mut carried)?;
    if changed {
        *entry = carried;
    }
    Ok(done)
}

/// Charges an ask that [`decide`] admitted at `now`.
#[inline(always)]
pub fn commit(entry: &mut Entry, now: Timestamp, ask: &Ask<'_>) {
    let now = entry.effective(now);
    entry.charge(ask.amounts(), now, Slotted::Taken, ask.is_refundable());
}

fn never_fits(policy: &Policy, amounts: &Amounts) -> Option<usize> {
    policy.metered().iter().position(|limit| limit.gauge.most() < amounts.at(limit.unit_index))
}

/// Returns the charge that an ask with this id got before, unless it was reset since.
pub(crate) fn recognise(
    entry: &Entry,
    now: Timestamp,
    ask: &Ask<'_>,
    known: Known,
) -> Result<Option<ChargeRecord>, Error> {
    let (Some(id), Some(given)) = (ask.id_text(), known.before(now)) else { return Ok(None) };
    if entry.extra().is_some_and(|extra| extra.settled.was_reset(given.charge.stamp)) {
        return Ok(None);
    }
    if given.digest != ask.digest() {
        return Err(conflict(id));
    }
    Ok(Some(given.charge))
}

#[cold]
pub(crate) fn conflict(id: &str) -> Error {
    let text = format!("id {id:?} was used before with another ask; use a new id for a new ask");
    Error::new(ErrorKind::Conflict, text)
}

/// Returns whether a repeat gets its first permit: a permit that took slots is worthless once they are gone.
pub(crate) fn is_still_valid(
    entry: &Entry,
    now: Timestamp,
    charge: ChargeRecord,
    amounts: &Amounts,
) -> bool {
    let takes_slot = |limit: &Metered| limit.gauge.is_slots() && 0 < amounts.at(limit.unit_index);
    !entry.policy().metered().iter().any(takes_slot)
        || entry.limits().any(|(_, state)| state.holds_slot(charge.stamp, now))
}

pub(crate) fn ensure_room_for_id(ask: &Ask<'_>, known: Known) -> Result<(), Error> {
    if ask.id_text().is_some() && known == Known::Full {
        return Err(Error::new(
            ErrorKind::Contended,
            "the store remembers as many ids as it may; ask again later or without an id, or raise ids_max of the store",
        ));
    }
    Ok(())
}

/// The limit that can never fit, else the one with the longest wait; nothing if all have room at `now`. Without `SLOTS`
/// every slot counts as free.
#[inline(always)]
fn binding<const SLOTS: bool>(entry: &Entry, now: Timestamp, amounts: &Amounts) -> Option<Refusal> {
    // One loop over both kinds of states would branch on the kind at every limit.
    match entry.stored_states() {
        Some(states) => longest_wait::<SLOTS>(entry, states.iter().map(State::view), now, amounts),
        None => {
            let inline = entry.limits().map(|(_, state)| state);
            longest_wait::<SLOTS>(entry, inline, now, amounts)
        }
    }
}

#[inline]
fn longest_wait<'a, const SLOTS: bool>(
    entry: &'a Entry,
    states: impl Iterator<Item = View<'a>>,
    now: Timestamp,
    amounts: &Amounts,
) -> Option<Refusal> {
    let extra = entry.extra();
    let mut latest = now;
    let mut limit_at = 0;
    for (index, (limit, state)) in entry.policy().metered().iter().zip(states).enumerate() {
        let cost = amounts.at(limit.unit_index);
        if cost == 0 {
            continue;
        }
        if limit.gauge.most() < cost {
            return Some(Refusal { limit: index, wait: Wait::Never });
        }
        let mut ready = if SLOTS || !limit.gauge.is_slots() {
            limit.gauge.ready_at(state, entry.at(), now, cost)
        } else {
            now
        };
        if let Some(until) = extra.and_then(|extra| extra.closed_until(index, now)) {
            ready = ready.max(until);
        }
        if latest < ready {
            latest = ready;
            limit_at = index;
        }
    }
    (now < latest).then_some(Refusal { limit: limit_at, wait: Wait::Until(latest) })
}

/// Every limit that has no room for `amounts` at `now`, with its wait.
pub(crate) fn refusals<'a>(
    entry: &'a Entry,
    now: Timestamp,
    amounts: &'a Amounts,
) -> impl Iterator<Item = Refusal> + 'a {
    let now = entry.effective(now);
    entry.limits().enumerate().filter_map(move |(limit, (metered, state))| {
        let cost = amounts.at(metered.unit_index);
        if cost == 0 {
            return None;
        }
        if metered.gauge.most() < cost {
            return Some(Refusal { limit, wait: Wait::Never });
        }
        let ready = metered.gauge.ready_at(state, entry.at(), now, cost);
        let ready = entry.closed_until(limit, now).map_or(ready, |until| ready.max(until));
        (now < ready).then_some(Refusal { limit, wait: Wait::Until(ready) })
    })
}

/// When the ask would go through if those in front of it went first, each as soon as it can; nothing if all of them and
/// the ask have room now.
#[cold]
fn forecast<const SLOTS: bool>(entry: &Entry, now: Timestamp, ask: &Ask<'_>) -> Option<Refusal> {
    if ask.in_front().is_empty() {
        return binding::<SLOTS>(entry, now, ask.amounts());
    }
    let mut future = entry.clone();
    let (mut at, mut limit_at) = (now, 0);
    for amounts in ahead(ask) {
        while let Some(Refusal { wait: Wait::Until(ready), limit }) =
            binding::<SLOTS>(&future, at, amounts)
        {
            (at, limit_at) = (ready, limit);
        }
        future.charge(amounts, at, Slotted::Taken, false);
    }
    let own = binding::<SLOTS>(&future, at, ask.amounts());
    let waits = Refusal { limit: limit_at, wait: Wait::Until(at) };
    own.or_else(|| (now < at).then_some(waits))
}

/// Returns the asks ahead of `ask`. Asks that never fit are left out: they delay no other ask.
pub(crate) fn ahead<'a>(ask: &'a Ask<'_>) -> impl Iterator<Item = &'a Amounts> {
    ask.in_front().iter().filter(|amounts| never_fits(ask.policy(), amounts).is_none())
}

/// What the wait of `refusal`, which [`decide`] gave to `ask`, is estimated from; nothing if it is exact, because slots
/// do not bind.
#[cold]
pub(crate) fn slot_wait(
    entry: &Entry,
    now: Timestamp,
    ask: &Ask<'_>,
    refusal: Refusal,
) -> Option<SlotWait> {
    let Wait::Until(bound) = refusal.wait else { return None };
    let now = entry.effective(now);
    let shortage = |(limit, state): (&Metered, _)| {
        if !limit.gauge.is_slots() {
            return None;
        }
        let (cost, most) = (ask.amounts().at(limit.unit_index), limit.gauge.most());
        let ahead: u64 = ahead(ask).map(|amounts| amounts.at(limit.unit_index)).sum();
        let used = limit.gauge.used(state, entry.at(), now);
        let wanted = used + ahead + cost;
        let held = (used + ahead).min(most);
        (most < wanted && 0 < ahead + cost).then(|| Shortage {
            limit: Arc::clone(&limit.name),
            missing: (wanted - most).max(cost.min(held)),
            held,
        })
    };
    let shortages: Vec<Shortage> = entry.limits().filter_map(shortage).collect();
    if shortages.is_empty() {
        return None;
    }
    let not_before = match forecast::<false>(entry, now, ask) {
        Some(Refusal { wait: Wait::Until(until), .. }) => until,
        _ => now,
    };
    (not_before < bound).then_some(SlotWait { not_before, shortages })
}

impl Grant {
    /// Creates the grant of a charge of `amounts` under `policy`.
    #[must_use]
    pub fn new(charge: ChargeRecord, policy: &Policy, amounts: &Amounts) -> Self {
        let ChargeRecord { at, stamp } = charge;
        let charged = policy.metered().iter().filter(|limit| 0 < amounts.at(limit.unit_index));
        let expires_at = charged.filter_map(|limit| limit.gauge.slot_expiry(at)).min();
        Self { at, stamp, use_by: policy.use_within().map(|within| at + within), expires_at }
    }
}
