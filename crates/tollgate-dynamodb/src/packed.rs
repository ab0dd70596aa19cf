//! Lists of numbers as bytes, eight each, and what an id was given as text.

use aws_sdk_dynamodb::types::AttributeValue;
use tollgate::Error;
use tollgate::core::{Amounts, Costs, Part, Policy, SettledPart, SlotPart, Timestamp};

use crate::item::corrupt;

pub(crate) fn pack(numbers: impl Iterator<Item = u64>) -> Vec<u8> {
    numbers.flat_map(u64::to_le_bytes).collect()
}

fn unpack(bytes: &[u8]) -> Result<Vec<u64>, Error> {
    let (numbers, rest) = bytes.as_chunks();
    if rest.is_empty() {
        Ok(numbers.iter().map(|number| u64::from_le_bytes(*number)).collect())
    } else {
        Err(corrupt("a list of numbers ends too early"))
    }
}

pub(crate) fn read_log(bytes: &[u8]) -> Result<Part, Error> {
    let numbers = unpack(bytes)?;
    let entries = numbers.as_chunks().0.iter();
    Ok(Part::Window(entries.map(|[at, amount]| (Timestamp::from_micros(*at), *amount)).collect()))
}

pub(crate) fn read_slots(bytes: &[u8]) -> Result<Part, Error> {
    let numbers = unpack(bytes)?;
    let slots = numbers.as_chunks().0.iter();
    let slot = |[stamp, expires_at, places]: &[u64; 3]| SlotPart {
        stamp: *stamp,
        expires_at: Timestamp::from_micros(*expires_at),
        places: *places,
    };
    Ok(Part::Slots(slots.map(slot).collect()))
}

pub(crate) fn write_settled(settled: &SettledPart) -> Vec<u8> {
    let runs = settled.runs.iter().flat_map(|(first, last, at)| [*first, *last, at.as_micros()]);
    pack([settled.floor].into_iter().chain(runs))
}

pub(crate) fn read_settled(bytes: &[u8]) -> Result<SettledPart, Error> {
    let numbers = unpack(bytes)?;
    let Some((floor, runs)) = numbers.split_first() else { return Ok(SettledPart::default()) };
    let run = |[first, last, at]: &[u64; 3]| (*first, *last, Timestamp::from_micros(*at));
    Ok(SettledPart { runs: runs.as_chunks().0.iter().map(run).collect(), floor: *floor })
}

pub(crate) fn write_changed((stamp, at): (u64, Timestamp)) -> Vec<u8> {
    pack([stamp, at.as_micros()].into_iter())
}

pub(crate) fn read_changed(bytes: &[u8]) -> Result<(u64, Timestamp), Error> {
    match unpack(bytes)?.as_slice() {
        [stamp, at] => Ok((*stamp, Timestamp::from_micros(*at))),
        _ => Err(corrupt("its change of numbers is broken")),
    }
}

/// When and what an id was given, by the names of units, so that it outlives a change of numbers.
pub(crate) fn record_of(admitted_at: Timestamp, costs: &Costs) -> AttributeValue {
    let costs: Vec<String> =
        costs.iter().map(|(unit, amount)| format!("{unit}={amount}")).collect();
    AttributeValue::S(format!("{};{}", admitted_at.as_micros(), costs.join(",")))
}

pub(crate) fn read_record(record: &str, policy: &Policy) -> Option<(Timestamp, Amounts)> {
    let (at, named) = record.split_once(';')?;
    let named: Option<Vec<(&str, u64)>> = named
        .split(',')
        .map(|cost| cost.split_once('=').and_then(|(unit, n)| Some((unit, n.parse().ok()?))))
        .collect();
    let named = named?;
    let costs = policy.units().map(|unit| {
        let amount = named.iter().find(|(other, _)| *other == unit).map_or(0, |(_, n)| *n);
        (unit.to_owned(), amount)
    });
    let amounts = policy.amounts(&costs.collect::<Costs>()).ok()?;
    Some((Timestamp::from_micros(at.parse().ok()?), amounts))
}
