//! From what a script answers or keeps to an entry of the core, and back.
//!
//! The layout is described in `lua/head.lua`. Everything that is answered comes from the core, on an entry put together
//! here, so a script only has to decide what to write.

use tollgate::core::{Amounts, Derived, Entry, IdPart, Part, Parts, SlotPart, bounds};
use tollgate::{Costs, Error, ErrorKind, Policy, Timestamp};

use crate::args::{self, WORD, first_word, words};
use crate::msgpack::{Value, numbers, read};

/// The version of the layout that is written. It is the first byte of an entry.
pub(crate) const VERSION: u8 = 3;
/// The bytes of how often it was written, of how many ids it has and when they are looked through, and of when its key goes; other numbers are words.
const WRITES: usize = 4;
const IDS: usize = 2 + 2;
const GOES: usize = 6;
/// Where the first of these begins: behind the version and two words.
const WRITES_AT: usize = 1 + 2 * WORD;

/// What was stored for an entry, field by field.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    fields: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Fields {
    /// The fields of a hash, as it lists them.
    pub(crate) fn of(listed: Value) -> Result<Self, Error> {
        let Value::List(listed) = listed else { return Err(corrupt("it is not a list of fields")) };
        let mut fields = Vec::with_capacity(listed.len() / 2);
        let mut listed = listed.into_iter();
        while let Some(name) = listed.next() {
            let (Value::Bytes(name), Some(Value::Bytes(value))) = (name, listed.next()) else {
                return Err(corrupt("a field is not text"));
            };
            fields.push((name, value));
        }
        Ok(Self { fields })
    }

    fn get(&self, name: &str) -> Option<&[u8]> {
        let found = self.fields.iter().find(|(field, _)| field == name.as_bytes());
        found.map(|(_, value)| value.as_slice())
    }

    /// What every write changes: nobody wrote in between as long as it is the same.
    pub(crate) fn hot(&self) -> &[u8] {
        self.get("e").unwrap_or_default()
    }

    /// The policy called `name` that the entry was written under; nothing if there is no entry.
    pub(crate) fn policy(&self, name: &str) -> Result<Option<Policy>, Error> {
        Ok(self.get("p").map(|shape| Policy::from_shape_bytes(name, shape)).transpose()?)
    }

    /// The entry in the numbers it was written with; nothing if there is none.
    pub(crate) fn entry(&self, policy: &Policy) -> Result<Option<Entry>, Error> {
        let (Some(shape), Some(hot)) = (self.get("p"), self.get("e")) else { return Ok(None) };
        let known = if shape == policy.shape_bytes() {
            policy.clone()
        } else {
            Policy::from_shape_bytes(policy.name(), shape)?
        };
        let mut parts = parts(&known, hot)?;
        if let Some(settled) = self.get("s") {
            let settled = read(settled).and_then(|settled| settled.numbers());
            let settled = settled.ok_or_else(|| corrupt("its settled permits are unreadable"))?;
            let (floor, runs) = settled.split_first().unwrap_or((&0, &[]));
            parts.settled.floor = *floor;
            parts.settled.runs = runs
                .as_chunks()
                .0
                .iter()
                .map(|[first, last, at]| (*first, *last, Timestamp::from_micros(*at)))
                .collect();
        }
        for (name, value) in &self.fields {
            if let Some(id) = name.strip_prefix(b"i") {
                parts.ids.push(remembered(&String::from_utf8_lossy(id), value, &known)?);
            }
        }
        parts.ids.sort_by_key(|id| id.stamp);
        Ok(Some(parts.into_entry(&known)?))
    }

    /// `entry` as it is stored until the millisecond `goes`, after `writes` writes before it.
    pub(crate) fn from_entry(entry: &Entry, writes: u32, goes: u64) -> Self {
        let (policy, parts) = (entry.policy(), entry.parts());
        let micros = Timestamp::as_micros;
        let ids_end = || parts.ids.iter().map(|id| micros(id.expires_at));
        let settled = parts.settled.runs.iter().map(|run| micros(run.2 + bounds::PERMIT_TTL)).max();
        let (changed, changed_at) = parts.changed.map_or((0, 0), |(stamp, at)| (stamp, micros(at)));
        let ids = u16::try_from(parts.ids.len()).unwrap_or(u16::MAX);
        let mut hot = vec![VERSION];
        hot.extend(words([micros(parts.at), parts.next_stamp]));
        hot.extend(writes.wrapping_add(1).to_le_bytes());
        hot.extend(ids.to_le_bytes());
        hot.extend(ids.to_le_bytes());
        hot.extend(words([ids_end().min().unwrap_or(0), ids_end().max().unwrap_or(0)]));
        hot.extend(words([settled.unwrap_or(0), changed, changed_at]));
        hot.extend(goes.to_le_bytes().iter().take(GOES));
        hot.extend(words([args::digest(policy)]));
        for (place, part) in parts.states.iter().enumerate() {
            let closed = parts.closed.iter().find(|(closed, _)| *closed == place);
            let closed = closed.map_or(0, |(_, until)| micros(*until));
            let mut put = |used, rest: &[u8]| {
                hot.extend(words([used, closed]));
                hot.extend(rest);
            };
            match part {
                Part::Bucket(used) => put(*used, &[]),
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
        let mut fields = vec![(b"e".to_vec(), hot), (b"p".to_vec(), policy.shape_bytes().to_vec())];
        if parts.settled != Default::default() {
            let mut all = vec![parts.settled.floor];
            let runs = parts.settled.runs.iter();
            all.extend(runs.flat_map(|(first, last, at)| [*first, *last, micros(*at)]));
            fields.push((b"s".to_vec(), numbers(&all)));
        }
        for id in &parts.ids {
            let times = [id.stamp, micros(id.admitted_at), micros(id.expires_at)];
            let amounts = (0..policy.units().len()).map(|place| id.amounts.at(place));
            let record = words(times.into_iter().chain(amounts));
            fields.push((format!("i{}", id.id).into_bytes(), record));
        }
        Self { fields }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Vec<u8>, Vec<u8>)> {
        self.fields.iter()
    }

    /// How often the entry was written, modulo 2^32.
    pub(crate) fn writes(&self) -> u32 {
        let writes = self.hot().get(WRITES_AT..).and_then(<[u8]>::first_chunk);
        writes.map_or(0, |writes| u32::from_le_bytes(*writes))
    }
}

/// A log behind its length.
fn measured(log: &[u8]) -> Vec<u8> {
    let length = u32::try_from(log.len()).unwrap_or(u32::MAX);
    [&length.to_le_bytes(), log].concat()
}

/// Numbers, taken one after another.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u64; N], Error> {
        let mut all = [0; N];
        for number in &mut all {
            (*number, self.0) = first_word(self.0).ok_or_else(|| corrupt("it is cut"))?;
        }
        Ok(all)
    }

    fn skip(&mut self, bytes: usize) -> Result<(), Error> {
        self.0 = self.0.get(bytes..).ok_or_else(|| corrupt("it is cut"))?;
        Ok(())
    }

    /// A log of entries of `N` numbers, behind its length.
    fn log<const N: usize>(&mut self) -> Result<Vec<[u64; N]>, Error> {
        let cut = self.0.split_first_chunk().and_then(|(length, rest)| {
            let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
            rest.split_at_checked(length).filter(|_| length.is_multiple_of(WORD * N))
        });
        let (log, rest) = cut.ok_or_else(|| corrupt("a log is cut"))?;
        self.0 = rest;
        let mut log = Words(log);
        (0..log.0.len() / (WORD * N)).map(|_| log.take()).collect()
    }
}

/// The parts of an entry of `policy`, without ids and settled permits, from its field `e`.
pub(crate) fn parts(policy: &Policy, hot: &[u8]) -> Result<Parts, Error> {
    let (version, rest) = hot.split_first().ok_or_else(|| corrupt("it is empty"))?;
    if *version != VERSION {
        return Err(unknown_version(*version));
    }
    let mut hot = Words(rest);
    let [at, next_stamp] = hot.take()?;
    hot.skip(WRITES + IDS)?;
    let [_ids_first, _ids_until, _settled_until, changed, changed_at] = hot.take()?;
    hot.skip(GOES + WORD)?;
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
            Derived::Continuous { .. } | Derived::Interval { .. } => Part::Bucket(used),
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
    if hot.0.is_empty() { Ok(parts) } else { Err(corrupt("it is too long")) }
}

/// What was given for an id.
pub(crate) fn remembered(id: &str, record: &[u8], policy: &Policy) -> Result<IdPart, Error> {
    let mut record = Words(record);
    let [stamp, admitted_at, expires_at] = record.take()?;
    let mut costs = Costs::new();
    for unit in policy.units() {
        let [amount] = record.take()?;
        costs.set(unit, amount);
    }
    let amounts: Amounts = policy.amounts(&costs)?;
    Ok(IdPart {
        id: id.to_owned(),
        amounts,
        admitted_at: Timestamp::from_micros(admitted_at),
        stamp,
        expires_at: Timestamp::from_micros(expires_at),
    })
}

pub(crate) fn corrupt(why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("redis: stored entry does not decode: {why}"))
}

pub(crate) fn unknown_version(version: u8) -> Error {
    corrupt(&format!(
        "its version is {version} and this program reads {VERSION}; a newer program may have written it"
    ))
}
