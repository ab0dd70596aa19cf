//! Lists of numbers as bytes: differences to the number before, seven bits to a byte. Items of [format 1](crate::format) have
//! eight bytes for each number instead.

use tollgate::Error;
use tollgate::core::bounds::{ABANDONED_AFTER, SETTLED_RUNS_MAX_SHARED};
use tollgate::core::{Part, SettledPart, SlotPart, Timestamp};

use crate::item::corrupt;

/// The most bytes that the settled permits of one item take: a run takes 4 to 8 bytes. Beyond it the oldest runs are dropped,
/// and permits up to them get nothing back.
pub(crate) const SETTLED_BYTES_MAX: usize = 96 * 1_024;

/// Which numbers an item has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// Eight bytes each, as in format 1.
    Fixed,
    /// Seven bits to a byte, as differences.
    Packed,
}

/// Numbers in the making.
#[derive(Debug, Default)]
pub(crate) struct Packer(pub(crate) Vec<u8>);

impl Packer {
    pub(crate) fn push(&mut self, mut number: u64) {
        while 0x80 <= number {
            self.0.push(number.to_le_bytes()[0] | 0x80);
            number >>= 7;
        }
        self.0.push(number.to_le_bytes()[0]);
    }

    /// The difference from `before` to `number`, whichever is larger.
    fn push_step(&mut self, before: u64, number: u64) {
        let step = number.wrapping_sub(before).cast_signed();
        self.push(((step << 1) ^ (step >> 63)).cast_unsigned());
    }
}

/// The number that [`Packer::push_step`] wrote as `step` after `before`.
const fn stepped(before: u64, step: u64) -> u64 {
    let difference = (step >> 1).cast_signed() ^ -((step & 1).cast_signed());
    before.wrapping_add(difference.cast_unsigned())
}

/// Every packed number of `bytes`.
pub(crate) fn unpack(bytes: &[u8]) -> Result<Vec<u64>, Error> {
    let mut numbers = Vec::new();
    let (mut number, mut shift) = (0_u64, 0);
    for byte in bytes {
        if 63 < shift {
            return Err(corrupt("a number in a list is too large"));
        }
        number |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            numbers.push(number);
            (number, shift) = (0, 0);
        }
    }
    if shift == 0 { Ok(numbers) } else { Err(corrupt("a list of numbers ends too early")) }
}

fn pack_fixed(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    numbers.into_iter().flat_map(u64::to_le_bytes).collect()
}

fn unpack_fixed(bytes: &[u8]) -> Result<Vec<u64>, Error> {
    let (numbers, rest) = bytes.as_chunks();
    if rest.is_empty() {
        Ok(numbers.iter().map(|number| u64::from_le_bytes(*number)).collect())
    } else {
        Err(corrupt("a list of numbers ends too early"))
    }
}

pub(crate) fn write_log(log: &[(Timestamp, u64)], width: Width) -> Vec<u8> {
    if width == Width::Fixed {
        return pack_fixed(log.iter().flat_map(|(at, amount)| [at.as_micros(), *amount]));
    }
    let (mut packer, mut before) = (Packer::default(), 0);
    for (at, amount) in log {
        packer.push(at.as_micros().saturating_sub(before));
        packer.push(*amount);
        before = at.as_micros();
    }
    packer.0
}

pub(crate) fn read_log(bytes: &[u8], width: Width) -> Result<Part, Error> {
    if width == Width::Fixed {
        let numbers = unpack_fixed(bytes)?;
        let entries = numbers.as_chunks().0.iter();
        let entries = entries.map(|[at, amount]| (Timestamp::from_micros(*at), *amount));
        return Ok(Part::Window(entries.collect()));
    }
    let (numbers, mut at) = (unpack(bytes)?, 0_u64);
    let entries = numbers.as_chunks().0.iter().map(|[step, amount]| {
        at = at.saturating_add(*step);
        (Timestamp::from_micros(at), *amount)
    });
    Ok(Part::Window(entries.collect()))
}

pub(crate) fn write_slots(held: &[SlotPart], width: Width) -> Vec<u8> {
    if width == Width::Fixed {
        let slot = |slot: &SlotPart| [slot.stamp, slot.expires_at.as_micros(), slot.places];
        return pack_fixed(held.iter().flat_map(slot));
    }
    let (mut packer, mut stamp, mut expires_at) = (Packer::default(), 0, 0);
    for slot in held {
        packer.push_step(stamp, slot.stamp);
        packer.push(slot.expires_at.as_micros().saturating_sub(expires_at));
        packer.push(slot.places);
        (stamp, expires_at) = (slot.stamp, slot.expires_at.as_micros());
    }
    packer.0
}

pub(crate) fn read_slots(bytes: &[u8], width: Width) -> Result<Part, Error> {
    let numbers = match width {
        Width::Fixed => unpack_fixed(bytes)?,
        Width::Packed => unpack(bytes)?,
    };
    let (mut stamp, mut expires_at) = (0_u64, 0_u64);
    let slots = numbers.as_chunks().0.iter().map(|[first, second, places]: &[u64; 3]| {
        (stamp, expires_at) = match width {
            Width::Fixed => (*first, *second),
            Width::Packed => (stepped(stamp, *first), expires_at.saturating_add(*second)),
        };
        SlotPart { stamp, expires_at: Timestamp::from_micros(expires_at), places: *places }
    });
    Ok(Part::Slots(slots.collect()))
}

/// Drops the oldest runs where the store's bound says so, as the core does at its own bound.
pub(crate) fn trim_settled(settled: &mut SettledPart, now: Timestamp) {
    while let Some((_, last, admitted_at)) = settled.runs.first()
        && SETTLED_RUNS_MAX_SHARED < settled.runs.len()
        && *admitted_at + ABANDONED_AFTER <= now
    {
        settled.floor = settled.floor.max(*last);
        settled.runs.remove(0);
    }
}

/// Until when no further permit may be given, because so many others wait to be settled.
pub(crate) fn full_until(settled: &SettledPart) -> Option<Timestamp> {
    let (_, _, admitted_at) = settled.runs.first()?;
    (SETTLED_RUNS_MAX_SHARED <= settled.runs.len()).then_some(*admitted_at + ABANDONED_AFTER)
}

pub(crate) fn write_settled(settled: &SettledPart, width: Width) -> Vec<u8> {
    if width == Width::Fixed {
        let run = |(first, last, at): &(u64, u64, Timestamp)| [*first, *last, at.as_micros()];
        return pack_fixed([settled.floor].into_iter().chain(settled.runs.iter().flat_map(run)));
    }
    let bytes = write_runs(&settled.runs, settled.floor);
    let extra = bytes.len().saturating_sub(SETTLED_BYTES_MAX);
    if extra == 0 {
        return bytes;
    }
    // A run takes at most 24 bytes, so this never drops more than it has to.
    let (dropped, runs) = settled.runs.split_at(extra.div_ceil(24));
    let floor = dropped.iter().map(|(_, last, _)| *last).fold(settled.floor, u64::max);
    write_settled(&SettledPart { runs: runs.to_vec(), floor }, width)
}

fn write_runs(runs: &[(u64, u64, Timestamp)], floor: u64) -> Vec<u8> {
    let mut packer = Packer::default();
    packer.push(floor);
    let (mut before, mut at) = (0, 0);
    for (first, last, admitted_at) in runs {
        packer.push(first.saturating_sub(before));
        packer.push(last - first);
        packer.push_step(at, admitted_at.as_micros());
        (before, at) = (*last, admitted_at.as_micros());
    }
    packer.0
}

pub(crate) fn read_settled(bytes: &[u8], width: Width) -> Result<SettledPart, Error> {
    let numbers = match width {
        Width::Fixed => unpack_fixed(bytes)?,
        Width::Packed => unpack(bytes)?,
    };
    let Some((floor, runs)) = numbers.split_first() else { return Ok(SettledPart::default()) };
    let (mut before, mut at) = (0_u64, 0_u64);
    let runs = runs.as_chunks().0.iter().map(|[first, second, third]: &[u64; 3]| {
        if width == Width::Fixed {
            return (*first, *second, Timestamp::from_micros(*third));
        }
        let first = before.saturating_add(*first);
        (before, at) = (first.saturating_add(*second), stepped(at, *third));
        (first, before, Timestamp::from_micros(at))
    });
    Ok(SettledPart { runs: runs.collect(), floor: *floor })
}

pub(crate) fn write_changed((stamp, at): (u64, Timestamp), width: Width) -> Vec<u8> {
    if width == Width::Fixed {
        return pack_fixed([stamp, at.as_micros()]);
    }
    let mut packer = Packer::default();
    packer.push(stamp);
    packer.push(at.as_micros());
    packer.0
}

pub(crate) fn read_changed(bytes: &[u8], width: Width) -> Result<(u64, Timestamp), Error> {
    let numbers = match width {
        Width::Fixed => unpack_fixed(bytes)?,
        Width::Packed => unpack(bytes)?,
    };
    match numbers.as_slice() {
        [stamp, at] => Ok((*stamp, Timestamp::from_micros(*at))),
        _ => Err(corrupt("its change of numbers is broken")),
    }
}
