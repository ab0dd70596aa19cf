//! An entry of the core as the attributes of an item.

use tollgate::core::{Entry, Part, SettledPart, Timestamp};

use crate::expression::{to_bytes, to_number};
use crate::item::{AT, Attributes, CHANGED, IdNames, SETTLED, SHAPE, STAMP, shape_of};
use crate::layout::{
    Counters, Kind, Layout, calendar_name, closed_name, counter_name, level_name, log_name,
    slots_name,
};
use crate::packed::{pack, record_of, write_changed, write_settled};

/// The attributes of `entry`, without key, version and time to live.
pub(crate) fn attributes_of(entry: &Entry) -> Attributes {
    let (policy, parts) = (entry.policy(), entry.parts());
    let mut all = Attributes::new();
    all.insert(SHAPE.to_owned(), shape_of(policy));
    all.insert(STAMP.to_owned(), to_number(parts.next_stamp.into()));
    all.insert(AT.to_owned(), to_number(parts.at.as_micros().into()));
    let layout = Layout::of(policy);
    for (place, (kind, part)) in layout.kinds.iter().zip(&parts.states).enumerate() {
        write_part(&mut all, place, kind, part, entry);
    }
    for (place, until) in &parts.closed {
        all.insert(closed_name(*place), to_number(until.as_micros().into()));
    }
    for known in &parts.ids {
        let names = IdNames::of(&known.id);
        all.insert(names.expires, to_number(known.expires_at.as_micros().into()));
        all.insert(names.stamp, to_number(known.stamp.into()));
        all.insert(names.record, record_of(known.admitted_at, &policy.costs(&known.amounts)));
    }
    if parts.settled != SettledPart::default() {
        all.insert(SETTLED.to_owned(), to_bytes(write_settled(&parts.settled)));
    }
    if let Some(changed) = parts.changed {
        all.insert(CHANGED.to_owned(), to_bytes(write_changed(changed)));
    }
    all
}

fn write_part(all: &mut Attributes, place: usize, kind: &Kind, part: &Part, entry: &Entry) {
    match (kind, part) {
        (Kind::Level(level), Part::Bucket(used)) if 0 < *used => {
            let full_at = level.of(entry.at()) + u128::from(*used);
            all.insert(level_name(place), to_number(full_at));
        }
        (Kind::Counters(counters), Part::Window(log)) => match by_slot(counters, log) {
            Some(slots) => {
                let first = slots.first().map_or(0, |(slot, _)| slot.saturating_sub(counters.span));
                let last = slots.last().map_or(0, |(slot, _)| *slot);
                for slot in first..=last {
                    let window = slot..=slot + counters.span;
                    let inside = slots.iter().filter(|(other, _)| window.contains(other));
                    let used: u64 = inside.map(|(_, amount)| *amount).sum();
                    if 0 < used {
                        all.insert(counter_name(place, slot), to_number(used.into()));
                    }
                }
            }
            None => write_log(all, place, log),
        },
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
        (Kind::Log, Part::Window(log)) => write_log(all, place, log),
        (Kind::Slots, Part::Slots(held)) if !held.is_empty() => {
            let numbers =
                held.iter().flat_map(|slot| [slot.stamp, slot.expires_at.as_micros(), slot.places]);
            all.insert(slots_name(place), to_bytes(pack(numbers)));
        }
        _ => {}
    }
}

/// The log by the number of its slots; nothing if it was not made of such slots, as after a change of numbers.
fn by_slot(counters: &Counters, log: &[(Timestamp, u64)]) -> Option<Vec<(u64, u64)>> {
    let newest = log.last().map_or(0, |(end, _)| end.as_micros() / counters.slot);
    log.iter()
        .map(|(end, amount)| {
            let number = end.as_micros() / counters.slot;
            let whole = end.as_micros().is_multiple_of(counters.slot) && 0 < number;
            (whole && newest - number <= counters.span).then(|| (number - 1, *amount))
        })
        .collect()
}

fn write_log(all: &mut Attributes, place: usize, log: &[(Timestamp, u64)]) {
    if !log.is_empty() {
        let numbers = log.iter().flat_map(|(at, amount)| [at.as_micros(), *amount]);
        all.insert(log_name(place), to_bytes(pack(numbers)));
    }
}
