//! An acquire as one conditional update, without a read.
//!
//! Expressions have no maximum, so a bucket has two forms of its write, chosen by the hint:
//! ```text
//! busy  SET t = t + cost        IF t BETWEEN now AND now + capacity - cost
//! idle  SET t = now + cost      IF t is missing or t <= now
//! ```
//! A wrong hint is refused and returns the item, so the second attempt is right. Two busy writers both succeed in any order if
//! there is room for both.
//!
//! A rolling window on a grid adds to its sum and to the present slot:
//! ```text
//! ADD sum cost - expired, slot cost
//! IF sum <= limit - cost + expired AND first = seen AND each expired slot is as seen
//! SET first = the first slot that counts now   REMOVE expired slots
//! ```
//! `expired` is 0, and neither `first` nor the slots are compared or removed, unless the sum has no room otherwise or several
//! slots have expired. Of concurrent writers that subtract expired slots one succeeds; the others are refused, see the new
//! item, and add. At other times writers never conflict. A writer whose clock is behind never adds to a slot below the first
//! one, so that nothing stays in the sum after its slot is removed. If more slots expired than an expression can compare, the
//! write is a compare-and-swap on the version, and if they are more than it can name, a swap.

use tollgate::core::{Ask, Borders, Policy, Span, Timestamp};

use crate::expression::{Expression, to_bytes, to_number};
use crate::format::Format;
use crate::item::{AT, FULL_UNTIL, Item, SHAPE, STAMP, TTL, VERSION, shape_of};
use crate::layout::{
    Grid, Kind, Layout, Level, calendar_name, closed_name, first_name, index_of, level_name,
    log_name, refunds_name, slot_name, sum_name,
};
use crate::refund::SwapRecord;
use crate::write_token;

/// The most operators of an expression.
const OPERATORS_MAX: usize = 300;

/// The operators of the condition of every charge, and the most of each limit.
const OPERATORS_FIXED: usize = 40;
const OPERATORS_PER_LIMIT: usize = 14;

/// The most slots removed by one write: an expression has at most 4 KB.
const REMOVED_SLOTS_MAX: usize = 150;

/// The most expired slots before a write subtracts them, unless it needs the room.
const EXPIRED_SLOTS_MAX: u64 = 8;

/// How long an item lives after its last write, unless it still matters.
pub(crate) const IDLE_TTL: Span = Span::from_hours(7 * 24);

/// The most attributes cleaned up by one write.
pub(crate) const PRUNED_MAX: usize = 24;

/// How long counters outlive their windows, for instances whose clocks are behind.
pub(crate) const PRUNE_SLACK: Span = Span::from_secs(5);

/// How far the time of a write may be behind the item's; concurrent writers overtake each other by less.
pub(crate) const BEHIND_MAX: Span = Span::from_secs(1);

/// A planned write.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) expression: Expression,
    /// Whether the hint meets every condition; true without a hint.
    pub(crate) fits: bool,
    /// Whether an expression cannot hold it.
    pub(crate) needs_swap: bool,
    /// Remaining slots to compare.
    checks_left: u64,
    /// Remaining slots to remove.
    removals_left: usize,
}

/// Whether `ask` only charges limits with additive numbers, and has no id.
pub(crate) fn is_additive(layout: &Layout, ask: &Ask<'_>) -> bool {
    if ask.id_text().is_some() {
        return false;
    }
    let mut kinds = layout.kinds.iter().zip(ask.policy().unit_indexes());
    kinds.all(|(kind, place)| {
        ask.amounts().at(place) == 0 || !matches!(kind, Kind::Log | Kind::Slots { .. })
    })
}

/// Plans the write that charges `ask` at `at`, given the hint `seen`.
pub(crate) fn plan(ask: &Ask<'_>, layout: &Layout, seen: Option<&Item>, at: Timestamp) -> Plan {
    let policy = ask.policy();
    // Comparing a slot takes two operators.
    let operators = OPERATORS_FIXED + OPERATORS_PER_LIMIT * layout.kinds.len();
    let mut plan = Plan {
        expression: Expression::default(),
        fits: true,
        needs_swap: false,
        checks_left: OPERATORS_MAX.saturating_sub(operators) as u64 / 2,
        removals_left: REMOVED_SLOTS_MAX,
    };
    let mut windows = policy.windows_at(at);
    for (place, (kind, unit)) in layout.kinds.iter().zip(policy.unit_indexes()).enumerate() {
        let borders = windows.next().flatten();
        let cost = ask.amounts().at(unit);
        if cost == 0 {
            continue;
        }
        match kind {
            Kind::Level(level) => plan.charge_level(place, level, cost, seen, at),
            Kind::Grid(grid) => plan.charge_grid(place, grid, cost, seen, at),
            Kind::Calendar { limit, margin } => {
                let Some(borders) = borders else { continue };
                let late = borders[0].end - Span::from_micros(*margin) <= at;
                plan.charge_calendar(place, *limit, cost, seen, &borders[..=usize::from(late)]);
            }
            Kind::Log | Kind::Slots { .. } => plan.fits = false,
        }
        let now = u128::from(at.as_micros());
        plan.at_most(&closed_name(place), now, seen);
    }
    if ask.is_refundable() {
        plan.at_most(FULL_UNTIL, at.as_micros().into(), seen);
    }
    plan.bookkeeping(policy, layout, seen, at);
    plan.prune(layout, seen, at);
    plan
}

impl Plan {
    /// Requires that `name` is missing or at most `most`.
    fn at_most(&mut self, name: &str, most: u128, seen: Option<&Item>) {
        self.expression.only_if_at_most(name, most);
        self.fits &= seen.and_then(|item| item.number(name)).is_none_or(|number| number <= most);
    }

    fn charge_level(
        &mut self,
        place: usize,
        level: &Level,
        cost: u64,
        seen: Option<&Item>,
        at: Timestamp,
    ) {
        let (name, now, cost) = (level_name(place), level.at(at), level.cost(cost));
        let refunds = refunds_name(place);
        if level.is_continuous && seen.is_none_or(|item| !item.attributes.contains_key(&refunds)) {
            // The first charge creates the item.
            let next_stamp = at.as_micros().max(1);
            let left = SwapRecord { next_stamp, at, used: 0, lows: Vec::new() }.write();
            let (path, left) =
                (self.expression.name(&refunds), self.expression.value(to_bytes(left)));
            self.expression.set_to(&refunds, &format!("if_not_exists({path},{left})"));
        }
        let full_at = seen.and_then(|item| item.number(&name));
        match full_at.filter(|full_at| now < *full_at) {
            Some(full_at) => {
                let most = (now + u128::from(level.capacity)).saturating_sub(cost);
                self.fits &= full_at <= most;
                let path = self.expression.name(&name);
                // The service rejects reversed bounds; there is no room then anyway.
                let (low, high) = (now.min(most), most);
                let (low, high) = (self.expression.number(low), self.expression.number(high));
                self.expression.only_if(format!("({path} BETWEEN {low} AND {high})"));
                let cost = self.expression.number(cost);
                self.expression.set_to(&name, &format!("{path}+{cost}"));
            }
            None => {
                self.at_most(&name, now, seen);
                self.expression.set(&name, to_number(now + cost));
            }
        }
    }

    fn charge_grid(
        &mut self,
        place: usize,
        grid: &Grid,
        cost: u64,
        seen: Option<&Item>,
        at: Timestamp,
    ) {
        let (sum, first) = (sum_name(place), first_name(place));
        let (counts_from, slot) = (grid.first_at(at), grid.slot_of(at));
        let room = u128::from(grid.limit.saturating_sub(cost));
        let needs_room = |item: &Item| item.number(&sum).is_some_and(|used| room < used);
        let seen_first = seen.and_then(|item| Some((item, item.small(&first)?)));
        let expired = match seen_first {
            Some((item, seen_first))
                if seen_first + EXPIRED_SLOTS_MAX <= counts_from
                    || (seen_first < counts_from && needs_room(item)) =>
            {
                self.subtract_expired(place, item, seen_first, counts_from)
            }
            _ => {
                let path = self.expression.name(&first);
                let number = self.expression.number(counts_from.into());
                self.expression.set_to(&first, &format!("if_not_exists({path},{number})"));
                self.at_most(&first, slot.into(), seen);
                0
            }
        };
        let room = room + expired;
        self.at_most(&sum, room, seen);
        let expired = i128::try_from(expired).unwrap_or(i128::MAX);
        self.expression.add(&sum, i128::from(cost) - expired);
        self.expression.add(&slot_name(place, slot), cost.into());
        // A log of older numbers counts too, and needs a swap.
        let log = log_name(place);
        self.expression.only_if_missing(&log);
        self.fits &= seen.is_none_or(|item| !item.attributes.contains_key(&log));
    }

    /// Subtracts the slots from `seen_first` to `counts_from`, if they are still as in `item`, and returns their total.
    fn subtract_expired(
        &mut self,
        place: usize,
        item: &Item,
        seen_first: u64,
        counts_from: u64,
    ) -> u128 {
        let slots = item.slots(place);
        let expired = || slots.iter().filter(|(slot, _)| *slot < counts_from);
        let first = first_name(place);
        self.expression.only_if_is(&first, seen_first.into());
        self.expression.set(&first, to_number(counts_from.into()));
        match self.checks_left.checked_sub(counts_from - seen_first) {
            Some(left) => {
                self.checks_left = left;
                for slot in seen_first..counts_from {
                    let name = slot_name(place, slot);
                    match item.number(&name) {
                        Some(amount) => self.expression.only_if_is(&name, amount),
                        None => self.expression.only_if_missing(&name),
                    }
                }
            }
            None => self.expression.only_if_is(VERSION, item.version().into()),
        }
        match self.removals_left.checked_sub(expired().count()) {
            Some(left) => self.removals_left = left,
            None => self.needs_swap = true,
        }
        for (slot, _) in expired() {
            self.expression.remove(&slot_name(place, *slot));
        }
        expired().map(|(_, amount)| u128::from(*amount)).sum()
    }

    /// Charges the open window, and the next one if `windows` has it.
    fn charge_calendar(
        &mut self,
        place: usize,
        limit: u64,
        cost: u64,
        seen: Option<&Item>,
        windows: &[Borders],
    ) {
        for (next, window) in windows.iter().enumerate() {
            let name = calendar_name(place, window.end);
            if next == 0 {
                self.at_most(&name, limit.saturating_sub(cost).into(), seen);
            }
            self.expression.add(&name, cost.into());
        }
    }

    /// Writes the stamp of this charge into `name`.
    pub(crate) fn stamp_into(&mut self, name: &str, at: Timestamp) {
        let stamp = self.expression.name(STAMP);
        let first = self.expression.number(first_stamp(at));
        self.expression.set_to(name, &format!("if_not_exists({stamp},{first})"));
    }

    fn bookkeeping(
        &mut self,
        policy: &Policy,
        layout: &Layout,
        seen: Option<&Item>,
        at: Timestamp,
    ) {
        let shape = self.expression.value(shape_of(policy, Format::New));
        let path = self.expression.name(SHAPE);
        self.expression.only_if(format!("(attribute_not_exists({path}) OR {path}={shape})"));
        self.fits &= seen.is_none_or(|item| item.has_shape_of(policy));
        self.expression.set_to(SHAPE, &shape);
        self.expression.set(AT, to_number(at.as_micros().into()));
        // A writer that is farther behind first learns the time of the item, and decides at it.
        self.at_most(AT, (at + BEHIND_MAX).as_micros().into(), seen);
        let one = self.expression.number(1);
        let first = self.expression.number(first_stamp(at));
        for name in [VERSION, STAMP] {
            let path = self.expression.name(name);
            self.expression.set_to(name, &format!("if_not_exists({path},{first})+{one}"));
        }
        let mut lives_until = at + Span::from_micros(layout.memory_micros());
        for [_, next] in policy.windows_at(at).flatten() {
            lives_until = lives_until.max(next.end);
        }
        let ttl = ttl_of(at, lives_until).max(seen.and_then(|item| item.small(TTL)).unwrap_or(0));
        if seen.is_none() {
            // A limit without a charge may be in debt for longer than the others matter.
            self.expression.only_if_at_most(TTL, ttl.into());
        }
        self.expression.set(TTL, to_number(ttl.into()));
    }

    /// Removes dead attributes, a bounded number at a time.
    fn prune(&mut self, layout: &Layout, seen: Option<&Item>, at: Timestamp) {
        let Some(seen) = seen else { return };
        let dead = seen.attributes.keys().filter(|name| is_dead(layout, name, at));
        for name in dead.take(PRUNED_MAX) {
            self.expression.remove(name);
        }
    }
}

/// Whether the attribute `name` is dead at `at`, also for instances whose clocks are a little behind.
pub(crate) fn is_dead(layout: &Layout, name: &str, at: Timestamp) -> bool {
    if write_token::is_token(name) {
        return write_token::is_dead(name, at);
    }
    layout.kinds.iter().enumerate().any(|(place, kind)| match kind {
        Kind::Grid(grid) => index_of(name, 'w', place)
            .is_some_and(|slot| grid.end_of(slot + grid.span()) + PRUNE_SLACK <= at),
        Kind::Calendar { .. } => index_of(name, 'c', place)
            .is_some_and(|end| Timestamp::from_micros(end) + PRUNE_SLACK <= at),
        _ => false,
    })
}

/// Returns the TTL, in seconds, of an item that was written at `at` and matters until `lives_until`.
pub(crate) fn ttl_of(at: Timestamp, lives_until: Timestamp) -> u64 {
    (at + IDLE_TTL).max(lives_until + PRUNE_SLACK).as_micros().div_ceil(1_000_000)
}

/// Returns the first stamp and version of an item that is created at `at`: after those of any earlier item.
fn first_stamp(at: Timestamp) -> u128 {
    at.as_micros().max(1).into()
}

#[cfg(test)]
mod tests {
    use tollgate::core::{Entry, Known, Operation, apply};
    use tollgate::{Limit, RollingWindow};

    use super::*;
    use crate::write::attributes_of;

    /// Whatever expired in however many windows, no expression is longer than the service takes.
    #[test]
    fn expressions_stay_within_the_bounds_of_the_service() {
        let start = Timestamp::from_secs(1_800_000_000);
        for windows in [1, 2, 3, 8, 16] {
            let limits = (0..windows).map(|number| {
                let rule = RollingWindow::new(1_000_000, Span::from_secs(6_400 + number));
                Limit::new(format!("w{number}"), "requests", rule)
            });
            let policy = Policy::new("windows", limits).unwrap();
            let ask = Ask::new(&policy, "p");
            let mut entry = Entry::fresh(&policy, start);
            for slot in 0..66 {
                let now = start + Span::from_secs(100 * slot);
                apply(&Operation::Acquire(&ask), &mut entry, Known::New, now).unwrap();
            }
            let mut item = Item { attributes: attributes_of(&entry, Format::New) };
            item.attributes.insert(VERSION.to_owned(), to_number(7));
            let mut most = [0; 3];
            for idle in (0..200).step_by(9) {
                let at = start + Span::from_secs(6_500 + 100 * idle);
                let mut plan = plan(&ask, &Layout::for_policy(&policy), Some(&item), at);
                if plan.needs_swap {
                    continue;
                }
                plan.stamp_into("o0123456789abc.0123456789abcdef", at);
                let (condition, update) = (plan.expression.condition(), plan.expression.update());
                let words = ["AND", "OR", "=", "attribute_not_exists", "BETWEEN"];
                let operators = words.map(|word| condition.matches(word).count()).iter().sum();
                let sizes = [condition.len(), update.len(), operators];
                most = [0, 1, 2].map(|index| sizes[index].max(most[index]));
            }
            assert!(most[0] <= 4_096 && most[1] <= 4_096, "{windows}: {most:?}");
            assert!(most[2] <= OPERATORS_MAX, "{windows}: {most:?}");
        }
    }
}
