//! Encodes an entry as the attributes of an item.

use aws_sdk_dynamodb::types::AttributeValue;
use tollgate::core::{Entry, Part, SettledPart, Timestamp};

use crate::expression::{to_bytes, to_number};
use crate::format::{Format, trim_settled_old};
use crate::format_1_counters::Counters;
use crate::item::{AT, Attributes, CHANGED, FULL_UNTIL, SETTLED, SHAPE, STAMP, shape_of};
use crate::layout::{
    Grid, Kind, Layout, calendar_name, closed_name, first_name, level_name, log_name, refunds_name,
    slot_name, slots_name, sum_name,
};
use crate::packed::{
    full_until, trim_settled, write_changed, write_log, write_settled, write_slots,
};
use crate::refund::SwapRecord;

/// Encodes `entry` in `format`, without key, version and TTL.
pub(crate) fn attributes_of(entry: &Entry, format: Format) -> Attributes {
    let (policy, mut parts) = (entry.policy(), entry.parts());
    let mut item = Writer { attributes: Attributes::new(), entry, format };
    item.insert(SHAPE, shape_of(policy, format));
    item.insert(STAMP, to_number(parts.next_stamp.into()));
    item.insert(AT, to_number(parts.at.as_micros().into()));
    let layout = Layout::for_policy(policy);
    let mut counters = Counters::default();
    for (place, (kind, part)) in layout.kinds.iter().zip(&parts.states).enumerate() {
        match (format, kind, part) {
            (Format::Old, Kind::Grid(grid), Part::Window(log)) => {
                match counters.for_window(place, grid, log) {
                    Some(counters) => item.attributes.extend(counters),
                    None => item.insert_log(place, log),
                }
            }
            _ => item.write_part(place, kind, part, parts.next_stamp),
        }
    }
    for (place, until) in &parts.closed {
        item.insert(closed_name(*place), to_number(until.as_micros().into()));
    }
    match format {
        Format::Old => trim_settled_old(&mut parts.settled),
        Format::New => {
            trim_settled(&mut parts.settled, parts.at);
            if let Some(until) = full_until(&parts.settled) {
                item.insert(FULL_UNTIL, to_number(until.as_micros().into()));
            }
        }
    }
    if parts.settled != SettledPart::default() {
        item.insert(SETTLED, to_bytes(write_settled(&parts.settled, format.width())));
    }
    if let Some(changed) = parts.changed {
        item.insert(CHANGED, to_bytes(write_changed(changed, format.width())));
    }
    item.attributes
}

/// Collects the attributes of an item.
struct Writer<'a> {
    attributes: Attributes,
    entry: &'a Entry,
    format: Format,
}

impl Writer<'_> {
    fn insert(&mut self, name: impl Into<String>, value: AttributeValue) {
        self.attributes.insert(name.into(), value);
    }

    fn insert_log(&mut self, place: usize, log: &[(Timestamp, u64)]) {
        if !log.is_empty() {
            self.insert(log_name(place), to_bytes(write_log(log, self.format.width())));
        }
    }

    fn write_part(&mut self, place: usize, kind: &Kind, part: &Part, next_stamp: u64) {
        let at = self.entry.at();
        match (kind, part) {
            (Kind::Level(level), Part::Bucket { used, lows }) => {
                if 0 < *used {
                    let full_at = level.at(at) + u128::from(*used);
                    self.insert(level_name(place), to_number(full_at));
                }
                if level.is_continuous && self.format == Format::New {
                    let left = SwapRecord { next_stamp, at, used: *used, lows: lows.clone() };
                    self.insert(refunds_name(place), to_bytes(left.write()));
                }
            }
            (Kind::Grid(grid), Part::Window(log)) if !log.is_empty() => {
                let Some(slots) = by_slot(grid, log) else { return self.insert_log(place, log) };
                let sum: u64 = slots.iter().map(|(_, amount)| *amount).sum();
                let first = slots.iter().map(|(slot, _)| *slot).fold(grid.first_at(at), u64::min);
                self.insert(sum_name(place), to_number(sum.into()));
                self.insert(first_name(place), to_number(first.into()));
                for (slot, amount) in slots {
                    self.insert(slot_name(place, slot), to_number(amount.into()));
                }
            }
            (Kind::Calendar { .. }, Part::Calendar { end, used, late }) => {
                let inside = *end - tollgate::Span::from_micros(1);
                let borders = self.entry.policy().windows_at(inside).nth(place).flatten();
                let Some([open, next]) = borders else { return };
                for (end, used) in [(open.end, *used), (next.end, *late)] {
                    if 0 < used {
                        self.insert(calendar_name(place, end), to_number(used.into()));
                    }
                }
            }
            (Kind::Log, Part::Window(log)) => self.insert_log(place, log),
            (Kind::Slots { .. }, Part::Slots(held)) if !held.is_empty() => {
                self.insert(slots_name(place), to_bytes(write_slots(held, self.format.width())));
            }
            _ => {}
        }
    }
}

/// Converts a log to slots; `None` if an entry is not at the end of a slot.
pub(crate) fn by_slot(grid: &Grid, log: &[(Timestamp, u64)]) -> Option<Vec<(u64, u64)>> {
    log.iter()
        .map(|(end, amount)| {
            let number = end.as_micros() / grid.slot;
            let whole = end.as_micros().is_multiple_of(grid.slot) && 0 < number;
            whole.then(|| (number - 1, *amount))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use tollgate::core::bounds::{ABANDONED_AFTER, PERMIT_TTL, SETTLED_RUNS_MAX_SHARED};
    use tollgate::core::{ChargeRecord, Grant, Known, Operation, Permit, Policy, apply};
    use tollgate::{Ask, Costs, Limit, RollingWindow, Span};

    use super::*;
    use crate::item::Item;
    use crate::packed::SETTLED_BYTES_MAX;
    use crate::run::{Seen, run};

    fn policy() -> Policy {
        let rule = RollingWindow::new(1_000_000, Span::from_hours(1));
        Policy::new("p", [Limit::new("only", "requests", rule)]).unwrap()
    }

    /// An entry with so many permits in flight, admitted every 100 µs.
    fn in_flight(policy: &Policy, permits: u64) -> (Entry, Vec<Permit>, Timestamp) {
        let start = Timestamp::from_secs(1_800_000_000);
        let mut entry = Entry::fresh(policy, start);
        let ask = Ask::new(policy, "s");
        let admit = |number: u64| {
            let now = start + Span::from_micros(100 * number);
            let stamp = entry.parts().next_stamp;
            apply(&Operation::Acquire(&ask), &mut entry, Known::New, now).unwrap();
            let grant = Grant::new(ChargeRecord { at: now, stamp }, policy, ask.amounts());
            Permit::for_ask(&ask, grant, Vec::new())
        };
        let permits: Vec<Permit> = (0..permits).map(admit).collect();
        let now = start + Span::from_micros(100 * permits.len() as u64);
        (entry, permits, now)
    }

    fn stored(entry: &Entry) -> Item {
        Item { attributes: attributes_of(entry, Format::New) }
    }

    fn seen(item: &Item) -> Seen<'_> {
        Seen::new(Some(item), Format::New)
    }

    fn settled_bytes(item: &Item) -> usize {
        item.attributes[SETTLED].as_b().unwrap().as_ref().len()
    }

    /// 10,000 in flight, settled in random order through the item now and then: exact, each once, and small.
    #[test]
    fn ten_thousand_in_flight_settle_exactly() {
        let policy = policy();
        let (mut entry, mut permits, now) = in_flight(&policy, 10_000);
        let mut dice = 0x9e37_79b9_7f4a_7c15_u64;
        for place in (1..permits.len()).rev() {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            permits.swap(place, usize::try_from(dice >> 33).unwrap() % (place + 1));
        }
        let (nothing, mut largest) = (Costs::new().with("requests", 0), 0);
        for (number, permit) in permits.iter().enumerate() {
            if number % 50 == 0 {
                let item = stored(&entry);
                assert_eq!(item.entry_with(&policy, None, &[]).unwrap(), entry);
                if 0 < number {
                    largest = largest.max(settled_bytes(&item));
                }
                let release = Operation::Release(&permits[number / 2]);
                let again = run(&release, seen(&item), Known::New, now);
                let settled = again.unwrap().0.outcome == tollgate::gate::Outcome::Changed(false);
                assert_eq!(settled, 0 < number);
            }
            let operation = Operation::Settle(permit, &nothing);
            let outcome = apply(&operation, &mut entry, Known::New, now).unwrap().outcome;
            assert_eq!(outcome, tollgate::gate::Outcome::Changed(true));
        }
        assert_eq!(tollgate::core::standings(&entry, now)[0].used, 0);
        assert!(largest < 32 * 1_024, "{largest} bytes");
    }

    /// At the bound a new permit is refused until the oldest is abandoned; what is settled beyond it never exceeds the item.
    #[test]
    fn runs_beyond_the_bound_stop_new_permits_and_fit_the_item() {
        let policy = policy();
        let (mut entry, permits, now) = in_flight(&policy, 60_000);
        let ask = Ask::new(&policy, "s");
        let acquire =
            |item: &Item, now| run(&Operation::Acquire(&ask), seen(item), Known::New, now);
        for (number, permit) in permits.iter().step_by(2).enumerate() {
            if number == SETTLED_RUNS_MAX_SHARED - 1 {
                assert!(acquire(&stored(&entry), now).is_ok(), "below the bound");
            }
            let nothing = Costs::new().with("requests", 0);
            apply(&Operation::Settle(permit, &nothing), &mut entry, Known::New, now).unwrap();
            if number == SETTLED_RUNS_MAX_SHARED - 1 {
                let item = stored(&entry);
                let oldest = permits[0].grant().at;
                let error = acquire(&item, oldest + ABANDONED_AFTER - Span::from_micros(1));
                assert_eq!(error.unwrap_err().kind(), tollgate::ErrorKind::Contended);
                assert!(acquire(&item, oldest + ABANDONED_AFTER).is_ok());
                let free = ask.clone().without_refund();
                assert!(run(&Operation::Acquire(&free), seen(&item), Known::New, now).is_ok());
            }
        }
        let item = stored(&entry);
        assert!(settled_bytes(&item) <= SETTLED_BYTES_MAX, "{}", settled_bytes(&item));
        // The oldest permits get nothing back any more, but what they cost beyond the estimate is charged.
        let settle = |permit: &Permit, actual| {
            let actual = Costs::new().with("requests", actual);
            run(&Operation::Settle(permit, &actual), seen(&item), Known::New, now)
        };
        let used = |entry: &Entry| tollgate::core::standings(entry, now)[0].used;
        assert_eq!(settle(&permits[1], 0).unwrap_err().kind(), tollgate::ErrorKind::Expired);
        let (_, after) = settle(&permits[1], 3).unwrap();
        assert_eq!(used(&after), used(&entry) + 2);
        let (_, after) = settle(&permits[59_999], 0).unwrap();
        assert_eq!(used(&after), used(&entry) - 1);
        assert!(now < permits[0].grant().at + PERMIT_TTL);
    }
}
