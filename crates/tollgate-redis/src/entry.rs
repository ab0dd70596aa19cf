//! Converts between stored fields and entries of the core.
//!
//! The layout is described in `lua/head.lua`.

use rmpv::Value;
use tollgate::core::{
    ChargeRecord, Derived, Entry, Known, Part, Parts, Remembered, SettledPart, SlotPart, bounds,
};
use tollgate::{Error, ErrorKind, Policy, Timestamp};

use crate::args::{self, WORD, first_word, words};
use crate::previous_format::{IdsBefore, settled_before};

/// The current version of the layout, the first byte of an entry.
pub(crate) const VERSION: u8 = 4;
/// The version before, written with [`Options::format`](crate::Options::format). It has no lows, settled permits in msgpack,
/// and ids in fields of the entry.
pub(crate) const VERSION_BEFORE: u8 = 3;
/// The bytes of the write counter and of the expiry; other numbers are words.
const WRITES: usize = 4;
const GOES: usize = 6;
/// Offsets: after the version and two words, and after the write counter.
const WRITES_AT: usize = 1 + 2 * WORD;
pub(crate) const STAYS_AT: usize = WRITES_AT + WRITES;
/// The bytes of ids in version 3, after the write counter: their number, the number from which on they are scanned, and when
/// the first and the last of them expire.
pub(crate) const IDS_BEFORE: usize = 2 + 2 + 2 * WORD;
/// With more runs of settled permits, older ones are in fields of their own, each with so many at first.
const RUNS_SPLIT: usize = 128;
const RUNS_MOVED: usize = RUNS_SPLIT / 2;

/// The fields of a stored entry.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    fields: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Fields {
    /// Parses the listed fields of a hash.
    pub(crate) fn parse(listed: &[u8]) -> Result<Self, Error> {
        let unreadable = || corrupt("its fields are unreadable");
        let listed = match unpack(listed) {
            Some(Value::Array(listed)) => listed,
            // Lua has one empty table for lists and maps.
            Some(Value::Map(map)) if map.is_empty() => Vec::new(),
            _ => return Err(unreadable()),
        };
        let bytes = |value: &Value| value.as_slice().map(<[u8]>::to_vec).ok_or_else(unreadable);
        let (pairs, []) = listed.as_chunks::<2>() else { return Err(unreadable()) };
        let fields = pairs.iter().map(|[name, value]| Ok((bytes(name)?, bytes(value)?)));
        Ok(Self { fields: fields.collect::<Result<_, Error>>()? })
    }

    pub(crate) fn get(&self, name: impl AsRef<[u8]>) -> Option<&[u8]> {
        let found = self.fields.iter().find(|(field, _)| field == name.as_ref());
        found.map(|(_, value)| value.as_slice())
    }

    /// Returns the field `e`, which every write changes.
    pub(crate) fn hot(&self) -> &[u8] {
        self.get("e").unwrap_or_default()
    }

    /// Returns the policy `name` as the entry was written under; `None` without an entry.
    pub(crate) fn policy(&self, name: &str) -> Result<Option<Policy>, Error> {
        Ok(self.get("p").map(|shape| Policy::from_shape_bytes(name, shape)).transpose()?)
    }

    /// Returns the entry in the numbers it was written with.
    pub(crate) fn entry(&self, policy: &Policy) -> Result<Option<Entry>, Error> {
        let (Some(shape), Some(hot)) = (self.get("p"), self.get("e")) else { return Ok(None) };
        let known = if shape == policy.shape_bytes() {
            policy.clone()
        } else {
            Policy::from_shape_bytes(policy.name(), shape)?
        };
        let mut parts = parts(&known, hot)?;
        parts.settled = self.settled(hot)?;
        Ok(Some(parts.into_entry(&known)?))
    }

    /// Returns the record of the requested id.
    pub(crate) fn known(&self) -> Result<Known, Error> {
        known(self.get("k").unwrap_or_default())
    }

    /// Parses the settled permits of an entry whose field `e` is `hot`.
    fn settled(&self, hot: &[u8]) -> Result<SettledPart, Error> {
        let Some(settled) = self.get("s").filter(|settled| !settled.is_empty()) else {
            return Ok(SettledPart::default());
        };
        let unreadable = || corrupt("its settled permits are unreadable");
        let mut all = SettledPart::default();
        let mut put = |[first, last, at]: [u64; 3]| {
            all.runs.push((first, last, Timestamp::from_micros(at)));
        };
        if hot.first() == Some(&VERSION_BEFORE) {
            let numbers = unpack_numbers(settled).ok_or_else(unreadable)?;
            let (floor, runs) = numbers.split_first().unwrap_or((&0, &[]));
            runs.as_chunks().0.iter().copied().for_each(put);
            all.floor = *floor;
            return Ok(all);
        }
        let mut settled = Words(settled);
        let [floor] = settled.take()?;
        settled.skip(COUNT)?;
        let [_oldest] = settled.take()?;
        for [_first, name] in settled.log()? {
            let runs = self.get(older_runs(name)).ok_or_else(unreadable)?;
            Words(runs).all()?.into_iter().for_each(&mut put);
        }
        settled.all()?.into_iter().for_each(put);
        all.floor = floor;
        Ok(all)
    }

    /// Encodes `entry` in place of `old` in the layout `version`. Its key expires in the millisecond `goes`, and not before
    /// `stays`.
    pub(crate) fn from_entry(
        entry: &Entry,
        old: &Self,
        version: u8,
        ids: IdsBefore,
        (stays, goes): (Timestamp, u64),
    ) -> Self {
        let (policy, parts) = (entry.policy(), entry.parts());
        let (before, micros) = (version == VERSION_BEFORE, Timestamp::as_micros);
        let runs = &parts.settled.runs;
        let settled = runs.iter().map(|run| run.2 + bounds::PERMIT_TTL).max().unwrap_or_default();
        let (changed, changed_at) = parts.changed.map_or((0, 0), |(stamp, at)| (stamp, micros(at)));
        let mut hot = vec![version];
        hot.extend(words([micros(parts.at), parts.next_stamp]));
        hot.extend(old.writes().wrapping_add(1).to_le_bytes());
        if before {
            hot.extend(old.ids_before(policy, ids, stays));
            hot.extend(words([micros(settled.max(old.settled_until_before()))]));
        } else {
            let stays = settled.max(old.stays()).max(stays);
            let full = runs.first().filter(|_| bounds::SETTLED_RUNS_MAX_SHARED <= runs.len());
            let full = full.map_or(0, |oldest| micros(oldest.2 + bounds::ABANDONED_AFTER));
            hot.extend(words([micros(stays), full]));
        }
        hot.extend(words([changed, changed_at]));
        hot.extend(goes.to_le_bytes().iter().take(GOES));
        hot.extend(words([args::digest(policy, version)]));
        let mut lows_of_all = Vec::new();
        let kinds = policy.derived().map(|derived| matches!(derived, Derived::Continuous { .. }));
        for (place, (part, continuous)) in parts.states.iter().zip(kinds).enumerate() {
            let closed = parts.closed.iter().find(|(closed, _)| *closed == place);
            let closed = closed.map_or(0, |(_, until)| micros(*until));
            let mut put = |used, rest: &[u8]| {
                hot.extend(words([used, closed]));
                hot.extend(rest);
            };
            match part {
                Part::Bucket { used, lows } if continuous && !before => {
                    let lows = words(lows.iter().flat_map(|(stamp, used)| [*stamp, *used]));
                    let length = u16::try_from(lows.len()).unwrap_or(u16::MAX);
                    put(*used, &length.to_le_bytes());
                    lows_of_all.extend(lows);
                }
                Part::Bucket { used, .. } => put(*used, &[]),
                Part::Window(entries) => {
                    let log = words(entries.iter().flat_map(|(at, amount)| [micros(*at), *amount]));
                    put(entries.iter().map(|(_, amount)| amount).sum(), &measured(&log));
                }
                Part::Calendar { end, used, late } => put(*used, &words([micros(*end), *late])),
                Part::Slots(held) => {
                    let slot = |slot: &SlotPart| [micros(slot.expires_at), slot.stamp, slot.places];
                    let log = words(held.iter().flat_map(slot));
                    put(held.iter().map(|slot| slot.places).sum(), &measured(&log));
                }
            }
        }
        hot.extend(lows_of_all);
        let mut fields = vec![(b"e".to_vec(), hot), (b"p".to_vec(), policy.shape_bytes().to_vec())];
        if before {
            fields.extend(settled_before(&parts.settled));
        } else {
            fields.extend(stored_runs(&parts.settled));
        }
        Self { fields }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Vec<u8>, Vec<u8>)> {
        self.fields.iter()
    }

    /// Returns the time of the entry.
    pub(crate) fn at(&self) -> Option<Timestamp> {
        let (at, _) = first_word(self.hot().get(1..)?)?;
        Some(Timestamp::from_micros(at))
    }

    /// Returns the version of the layout.
    pub(crate) fn version(&self) -> Option<u8> {
        self.hot().first().copied()
    }

    /// Returns the word at `place` in the field `e`, if the entry has `version`.
    pub(crate) fn word_of(&self, version: u8, place: usize) -> Timestamp {
        let from = self.hot().get(place..).filter(|_| self.version() == Some(version));
        Timestamp::from_micros(from.and_then(first_word).map_or(0, |(word, _)| word))
    }

    /// Until when the entry stays at least.
    pub(crate) fn stays(&self) -> Timestamp {
        let ids_until = self.word_of(VERSION_BEFORE, STAYS_AT + IDS_BEFORE - WORD);
        self.word_of(VERSION, STAYS_AT).max(ids_until).max(self.settled_until_before())
    }

    /// How often the entry was written, modulo 2^32.
    pub(crate) fn writes(&self) -> u32 {
        let writes = self.hot().get(WRITES_AT..).and_then(<[u8]>::first_chunk);
        writes.map_or(0, |writes| u32::from_le_bytes(*writes))
    }
}

/// The bytes of the number of runs.
const COUNT: usize = 4;

/// Returns the name of a field with older runs.
fn older_runs(name: u64) -> Vec<u8> {
    [b"s".to_vec(), words([name])].concat()
}

/// Encodes the settled permits.
fn stored_runs(settled: &SettledPart) -> Vec<(Vec<u8>, Vec<u8>)> {
    let Some(oldest) = settled.runs.first() else { return Vec::new() };
    let run = |run: &(u64, u64, Timestamp)| [run.0, run.1, run.2.as_micros()];
    let moved = settled.runs.len().saturating_sub(RUNS_MOVED) / RUNS_MOVED * RUNS_MOVED;
    let moved = if settled.runs.len() <= RUNS_SPLIT { 0 } else { moved };
    let (older, newest) = settled.runs.split_at(moved);
    let (mut fields, mut directory) = (Vec::new(), Vec::new());
    for (number, runs) in older.chunks(RUNS_MOVED).enumerate() {
        // Scripts use the write counter, which is smaller.
        let name = (1 << 32) + number as u64;
        directory.extend(words(runs.first().into_iter().flat_map(|first| [first.0, name])));
        fields.push((older_runs(name), words(runs.iter().flat_map(run))));
    }
    let count = u32::try_from(settled.runs.len()).unwrap_or(u32::MAX);
    let mut all = words([settled.floor]);
    all.extend(count.to_le_bytes());
    all.extend(words([oldest.2.as_micros()]));
    all.extend(measured(&directory));
    all.extend(words(newest.iter().flat_map(run)));
    fields.push((b"s".to_vec(), all));
    fields
}

/// Prefixes a log with its length.
fn measured(log: &[u8]) -> Vec<u8> {
    let length = u32::try_from(log.len()).unwrap_or(u32::MAX);
    [&length.to_le_bytes(), log].concat()
}

/// A reader of words.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u64; N], Error> {
        let mut all = [0; N];
        for number in &mut all {
            (*number, self.0) = first_word(self.0).ok_or_else(|| corrupt("it is cut"))?;
        }
        Ok(all)
    }

    /// Reads a number of two bytes.
    fn short(&mut self) -> Result<u16, Error> {
        let (short, rest) = self.0.split_first_chunk().ok_or_else(|| corrupt("it is cut"))?;
        self.0 = rest;
        Ok(u16::from_le_bytes(*short))
    }

    fn skip(&mut self, bytes: usize) -> Result<(), Error> {
        self.0 = self.0.get(bytes..).ok_or_else(|| corrupt("it is cut"))?;
        Ok(())
    }

    /// Reads a length-prefixed log of entries of `N` words.
    fn log<const N: usize>(&mut self) -> Result<Vec<[u64; N]>, Error> {
        let cut = self.0.split_first_chunk().and_then(|(length, rest)| {
            let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
            rest.split_at_checked(length).filter(|_| length.is_multiple_of(WORD * N))
        });
        let (log, rest) = cut.ok_or_else(|| corrupt("a log is cut"))?;
        self.0 = rest;
        Words(log).all()
    }

    /// Reads the rest as entries of `N` words.
    fn all<const N: usize>(mut self) -> Result<Vec<[u64; N]>, Error> {
        (0..self.0.len() / (WORD * N)).map(|_| self.take()).collect()
    }
}

/// Parses the field `e` of an entry of `policy`: everything but settled permits. A reply of a script has no lows.
pub(crate) fn parts(policy: &Policy, hot: &[u8]) -> Result<Parts, Error> {
    let (version, rest) = hot.split_first().ok_or_else(|| corrupt("it is empty"))?;
    let before = *version == VERSION_BEFORE;
    if *version != VERSION && !before {
        return Err(unknown_version(*version));
    }
    let mut hot = Words(rest);
    let [at, next_stamp] = hot.take()?;
    hot.skip(WRITES + if before { IDS_BEFORE } else { WORD })?;
    let [_stays_or_full, changed, changed_at] = hot.take()?;
    hot.skip(GOES + WORD)?;
    let mut lengths = Vec::new();
    let mut parts = Parts {
        at: Timestamp::from_micros(at),
        next_stamp,
        changed: (changed != 0).then(|| (changed, Timestamp::from_micros(changed_at))),
        states: Vec::with_capacity(policy.limits().len()),
        ..Parts::default()
    };
    for (place, derived) in policy.derived().enumerate() {
        let [used, closed] = hot.take()?;
        parts.states.push(match derived {
            Derived::Continuous { .. } | Derived::Interval { .. } => {
                if matches!(derived, Derived::Continuous { .. }) && !before {
                    lengths.push((place, usize::from(hot.short()?)));
                }
                Part::Bucket { used, lows: Vec::new() }
            }
            Derived::Window { .. } => {
                let log = hot.log()?.into_iter();
                Part::Window(log.map(|[at, amount]| (Timestamp::from_micros(at), amount)).collect())
            }
            Derived::Calendar { .. } => {
                let [end, late] = hot.take()?;
                Part::Calendar { end: Timestamp::from_micros(end), used, late }
            }
            Derived::Slots { .. } => {
                let slot = |[expires, stamp, places]: [u64; 3]| SlotPart {
                    stamp,
                    expires_at: Timestamp::from_micros(expires),
                    places,
                };
                Part::Slots(hot.log()?.into_iter().map(slot).collect())
            }
            _ => return Err(corrupt("a limit is of no known kind")),
        });
        if closed != 0 {
            parts.closed.push((place, Timestamp::from_micros(closed)));
        }
    }
    if hot.0.is_empty() {
        return Ok(parts);
    }
    for (place, length) in lengths {
        let cut = hot.0.split_at_checked(length).ok_or_else(|| corrupt("its lows are cut"))?;
        hot.0 = cut.1;
        if let Some(Part::Bucket { lows, .. }) = parts.states.get_mut(place) {
            *lows = Words(cut.0).all()?.into_iter().map(|[stamp, used]| (stamp, used)).collect();
        }
    }
    if hot.0.is_empty() { Ok(parts) } else { Err(corrupt("it is too long")) }
}

/// The deepest nesting of lists in msgpack.
const DEPTH_MAX: usize = 8;

/// Decodes one msgpack value, as `cmsgpack` of Redis writes it.
fn unpack(mut bytes: &[u8]) -> Option<Value> {
    let value = rmpv::decode::read_value_with_max_depth(&mut bytes, DEPTH_MAX).ok()?;
    bytes.is_empty().then_some(value)
}

/// Decodes a msgpack list of numbers.
pub(crate) fn unpack_numbers(bytes: &[u8]) -> Option<Vec<u64>> {
    unpack(bytes)?.as_array()?.iter().map(Value::as_u64).collect()
}

/// Encodes a msgpack list of numbers, each in as few bytes as possible.
pub(crate) fn pack_numbers(numbers: &[u64]) -> Vec<u8> {
    let list = Value::Array(numbers.iter().copied().map(Value::from).collect());
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, &list).expect("writing to memory");
    bytes
}

/// Parses the record of an id; empty if it is unknown.
pub(crate) fn known(record: &[u8]) -> Result<Known, Error> {
    if record.is_empty() {
        return Ok(Known::New);
    }
    let [stamp, at, expires_at, digest] = Words(record).take()?;
    Ok(Known::Before(Remembered {
        charge: ChargeRecord { at: Timestamp::from_micros(at), stamp },
        digest,
        expires_at: Timestamp::from_micros(expires_at),
    }))
}

/// Parses what the charges after the first got, from the record of an id; empty for an ask with one charge.
pub(crate) fn others(record: &[u8]) -> Result<Vec<ChargeRecord>, Error> {
    let charge = |[stamp, at]: [u64; 2]| ChargeRecord { at: Timestamp::from_micros(at), stamp };
    let others = Words(record.get(4 * WORD..).unwrap_or_default()).all()?;
    Ok(others.into_iter().map(charge).collect())
}

/// Encodes the record of an id.
pub(crate) fn record(given: &Remembered) -> Vec<u8> {
    let Remembered { charge, digest, expires_at } = given;
    words([charge.stamp, charge.at.as_micros(), expires_at.as_micros(), *digest])
}

pub(crate) fn corrupt(why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("redis: stored entry does not decode: {why}"))
}

pub(crate) fn unknown_version(version: u8) -> Error {
    corrupt(&format!(
        "its version is {version} and this program reads {VERSION}; a newer program may have written it"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_packed_as_cmsgpack_does() {
        let all = [0, 127, 128, 255, 256, 65_535, 65_536, u64::from(u32::MAX), (1 << 53) - 1];
        assert_eq!(unpack_numbers(&pack_numbers(&all)).unwrap(), all);
        assert_eq!(pack_numbers(&[7, 200, 256]), [0x93, 7, 0xcc, 200, 0xcd, 1, 0]);
        assert_eq!(pack_numbers(&(0..769).collect::<Vec<_>>())[..3], [0xdc, 3, 1]);
        // Non-negative numbers may come as signed ones.
        let signed = [0x91, 0xd3, 0, 0x1f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        assert_eq!(unpack_numbers(&signed).unwrap(), [(1 << 53) - 1]);
    }

    #[test]
    fn other_bytes_are_refused() {
        for bytes in [&[][..], &[0xc0], &[0x91], &[0xdd, 0xff, 0xff, 0xff, 0xff], &[0x01, 0x02]] {
            assert_eq!(unpack_numbers(bytes), None, "{bytes:?}");
            assert!(Fields::parse(bytes).is_err(), "{bytes:?}");
        }
        assert_eq!(unpack_numbers(&[0x91, 0xd3, 0xff, 0, 0, 0, 0, 0, 0, 0]), None, "negative");
        assert!(Fields::parse(&[0x80]).is_ok() && Fields::parse(&[0x90]).is_ok());
    }
}
