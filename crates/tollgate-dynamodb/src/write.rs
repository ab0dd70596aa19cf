//! An entry of the core as the attributes of an item.

use tollgate::core::{Entry, Part, SettledPart, Timestamp};

use crate::expression::{to_bytes, to_number};
use crate::item::{AT, Attributes, CHANGED, FULL_UNTIL, SETTLED, SHAPE, STAMP, shape_of};
use crate::layout::{
    Grid, Kind, Layout, calendar_name, closed_name, first_name, level_name, log_name, refunds_name,
    slot_name, slots_name, sum_name,
};
use crate::packed::{
    full_until, trim_settled, write_changed, write_log, write_settled, write_slots,
};
use crate::refund::Left;

/// The attributes of `entry`, without key, version and time to live.
pub(crate) fn attributes_of(entry: &Entry) -> Attributes {
    let (policy, mut parts) = (entry.policy(), entry.parts());
    let mut all = Attributes::new();
    all.insert(SHAPE.to_owned(), shape_of(policy));
    all.insert(STAMP.to_owned(), to_number(parts.next_stamp.into()));
    all.insert(AT.to_owned(), to_number(parts.at.as_micros().into()));
    let layout = Layout::of(policy);
    for (place, (kind, part)) in layout.kinds.iter().zip(&parts.states).enumerate() {
        write_part(&mut all, place, kind, part, entry, parts.next_stamp);
    }
    for (place, until) in &parts.closed {
        all.insert(closed_name(*place), to_number(until.as_micros().into()));
    }
    trim_settled(&mut parts.settled, parts.at);
    if parts.settled != SettledPart::default() {
        all.insert(SETTLED.to_owned(), to_bytes(write_settled(&parts.settled)));
    }
    if let Some(until) = full_until(&parts.settled) {
        all.insert(FULL_UNTIL.to_owned(), to_number(until.as_micros().into()));
    }
    if let Some(changed) = parts.changed {
        all.insert(CHANGED.to_owned(), to_bytes(write_changed(changed)));
    }
    all
}

fn write_part(
    all: &mut Attributes,
    place: usize,
    kind: &Kind,
    part: &Part,
    entry: &Entry,
    next_stamp: u64,
) {
    match (kind, part) {
        (Kind::Level(level), Part::Bucket { used, lows }) if 0 < *used => {
            let full_at = level.of(entry.at()) + u128::from(*used);
            all.insert(level_name(place), to_number(full_at));
            if level.is_continuous {
                let left = Left { next_stamp, at: entry.at(), used: *used, lows: lows.clone() };
                all.insert(refunds_name(place), to_bytes(left.write()));
            }
        }
        (Kind::Grid(grid), Part::Window(log)) if !log.is_empty() => {
            let Some(slots) = by_slot(grid, log) else { return insert_log(all, place, log) };
            let sum: u64 = slots.iter().map(|(_, amount)| *amount).sum();
            let first = slots.iter().map(|(slot, _)| *slot).fold(grid.first_at(entry.at()), u64::min);
            all.insert(sum_name(place), to_number(sum.into()));
            all.insert(first_name(place), to_number(first.into()));
            for (slot, amount) in slots {
                all.insert(slot_name(place, slot), to_number(amount.into()));
            }
        }
        (Kind::Calendar { .. }, Part::Calendar { end, used, late }) => {
            let inside = *end - tollgate::Span::from_micros(1);
            let borders = entry.policy().windows_at(inside).nth(place).flatten();
            let Some([open, next]) = borders else { return };
            for (end, used) in [(open.end, *used), (next.end, *late)] {
                if 0 < used {
                    all.insert(calendar_name(place, end), to_number(used.into()));
                }
            }
        }
        (Kind::Log, Part::Window(log)) if !log.is_empty() => insert_log(all, place, log),
        (Kind::Slots { .. }, Part::Slots(held)) if !held.is_empty() => {
            all.insert(slots_name(place), to_bytes(write_slots(held)));
        }
        _ => {}
    }
}

/// The log by the number of its slots; nothing if an entry is not at the end of a slot.
fn by_slot(grid: &Grid, log: &[(Timestamp, u64)]) -> Option<Vec<(u64, u64)>> {
    log.iter()
        .map(|(end, amount)| {
            let number = end.as_micros() / grid.slot;
            let whole = end.as_micros().is_multiple_of(grid.slot) && 0 < number;
            whole.then(|| (number - 1, *amount))
        })
        .collect()
}

fn insert_log(all: &mut Attributes, place: usize, log: &[(Timestamp, u64)]) {
    all.insert(log_name(place), to_bytes(write_log(log)));
}
