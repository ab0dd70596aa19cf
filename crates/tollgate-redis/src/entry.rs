//! From what a script answers or keeps to an entry of the core, and back.
//!
//! The layout is described in `lua/head.lua`. Everything that is answered comes from the core, on an entry put together
//! here, so a script only has to decide what to write.

use tollgate::core::{Amounts, Entry, IdPart, Part, Parts, SlotPart};
use tollgate::{Costs, Error, ErrorKind, Policy, Timestamp};

use crate::msgpack::{Value, numbers, read};

/// The version of the layout that is written.
const VERSION: u64 = 1;
/// Numbers at the head of the header, and for each limit.
const FIXED: usize = 9;
const EACH: usize = 5;

/// What was stored for an entry, field by field.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    fields: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Fields {
    /// The fields of a hash, as it lists them.
    pub(crate) fn of(listed: &Value) -> Result<Self, Error> {
        let listed = listed.list().ok_or_else(|| corrupt("it is not a list of fields"))?;
        let bytes = |value: &Value| value.bytes().map(<[u8]>::to_vec);
        let pairs = listed.chunks(2).map(|pair| match pair {
            [name, value] => bytes(name).zip(bytes(value)),
            _ => None,
        });
        let fields: Option<Vec<_>> = pairs.collect();
        Ok(Self { fields: fields.ok_or_else(|| corrupt("a field is not text"))? })
    }

    fn get(&self, name: &str) -> Option<&[u8]> {
        let found = self.fields.iter().find(|(field, _)| field == name.as_bytes());
        found.map(|(_, value)| value.as_slice())
    }

    /// The header as it is stored: nobody wrote in between as long as it is the same.
    pub(crate) fn header(&self) -> &[u8] {
        self.get("e").unwrap_or_default()
    }

    /// The entry in the numbers it was written with; nothing if there is none.
    pub(crate) fn entry(&self, policy: &Policy) -> Result<Option<Entry>, Error> {
        let Some(shape) = self.get("p") else { return Ok(None) };
        let known = if shape == policy.shape_bytes() {
            policy.clone()
        } else {
            Policy::from_shape_bytes(policy.name(), shape)?
        };
        let header = read(self.header()).and_then(|header| header.numbers());
        let header = Header::new(header.ok_or_else(|| corrupt("its header is unreadable"))?)?;
        let mut parts = header.parts(|place, width| {
            let log = self.get(&format!("w{}", place + 1)).unwrap_or_default();
            words(log, width)
        })?;
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
                let record = read(value).and_then(|record| record.numbers());
                let record = record.ok_or_else(|| corrupt("an id is unreadable"))?;
                parts.ids.push(remembered(&String::from_utf8_lossy(id), &record, &known)?);
            }
        }
        parts.ids.sort_by_key(|id| id.stamp);
        Ok(Some(parts.into_entry(&known)?))
    }

    /// `entry` as it is stored, after `writes` writes before it.
    pub(crate) fn from_entry(entry: &Entry, writes: u64) -> Self {
        let (policy, parts) = (entry.policy(), entry.parts());
        let micros = Timestamp::as_micros;
        let ttl = tollgate::core::bounds::PERMIT_TTL;
        let ids_until = parts.ids.iter().map(|id| micros(id.expires_at)).max().unwrap_or(0);
        let settled = parts.settled.runs.iter().map(|run| micros(run.2 + ttl)).max().unwrap_or(0);
        let ids = parts.ids.len() as u64;
        let (at, stamp) = (micros(parts.at), parts.next_stamp);
        let (changed, changed_at) = parts.changed.map_or((0, 0), |(stamp, at)| (stamp, micros(at)));
        let mut header = vec![VERSION, at, stamp, writes + 1, ids, ids_until, settled];
        header.extend([changed, changed_at]);
        let mut fields = vec![(b"p".to_vec(), policy.shape_bytes().to_vec())];
        for (place, (part, derived)) in parts.states.iter().zip(policy.derived()).enumerate() {
            let closed = parts.closed.iter().find(|(closed, _)| *closed == place);
            let closed = closed.map_or(0, |(_, until)| micros(*until));
            let mut log = Vec::new();
            let numbers = match part {
                Part::Bucket(used) => {
                    let interval = matches!(derived, tollgate::core::Derived::Interval { .. });
                    [1 + u64::from(interval), *used, 0, 0]
                }
                Part::Window(entries) => {
                    for (at, amount) in entries {
                        log.extend_from_slice(&micros(*at).to_le_bytes());
                        log.extend_from_slice(&amount.to_le_bytes());
                    }
                    [3, entries.iter().map(|(_, amount)| amount).sum(), 0, 0]
                }
                Part::Calendar { end, used, late } => [4, micros(*end), *used, *late],
                Part::Slots(held) => {
                    for slot in held {
                        log.extend_from_slice(&micros(slot.expires_at).to_le_bytes());
                        log.extend_from_slice(&slot.stamp.to_le_bytes());
                        log.extend_from_slice(&slot.places.to_le_bytes());
                    }
                    [5, held.iter().map(|slot| slot.places).sum(), 0, 0]
                }
            };
            header.extend_from_slice(&numbers);
            header.push(closed);
            if !log.is_empty() {
                fields.push((format!("w{}", place + 1).into_bytes(), log));
            }
        }
        fields.push((b"e".to_vec(), numbers(&header)));
        if parts.settled != Default::default() {
            let mut all = vec![parts.settled.floor];
            let runs = parts.settled.runs.iter();
            all.extend(runs.flat_map(|(first, last, at)| [*first, *last, micros(*at)]));
            fields.push((b"s".to_vec(), numbers(&all)));
        }
        for id in &parts.ids {
            let mut record = vec![id.stamp, micros(id.admitted_at), micros(id.expires_at)];
            record.extend((0..policy.units().len()).map(|place| id.amounts.at(place)));
            fields.push((format!("i{}", id.id).into_bytes(), numbers(&record)));
        }
        Self { fields }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Vec<u8>, Vec<u8>)> {
        self.fields.iter()
    }

    /// How often the entry was written.
    pub(crate) fn writes(&self) -> u64 {
        let header = read(self.header()).and_then(|header| header.numbers());
        header.and_then(|header| header.get(3).copied()).unwrap_or(0)
    }
}

/// The header of an entry.
pub(crate) struct Header(Vec<u64>);

impl Header {
    pub(crate) fn new(numbers: Vec<u64>) -> Result<Self, Error> {
        match numbers.first() {
            Some(&VERSION) if numbers.len() % EACH == FIXED % EACH && FIXED < numbers.len() => {
                Ok(Self(numbers))
            }
            Some(&VERSION) | None => Err(corrupt("its header has the wrong length")),
            Some(version) => Err(unknown_version(*version)),
        }
    }

    /// The parts of the entry, without ids and settled permits. `log` gives the numbers of a log by place and width.
    pub(crate) fn parts(
        &self,
        log: impl Fn(usize, usize) -> Result<Vec<u64>, Error>,
    ) -> Result<Parts, Error> {
        let (fixed, limits) = self.0.split_at(FIXED);
        let mut parts = Parts {
            at: Timestamp::from_micros(fixed[1]),
            next_stamp: fixed[2],
            changed: (fixed[7] != 0).then(|| (fixed[7], Timestamp::from_micros(fixed[8]))),
            ..Parts::default()
        };
        for (place, limit) in limits.as_chunks().0.iter().enumerate() {
            let [kind, first, used, late, closed]: [u64; EACH] = *limit;
            parts.states.push(match kind {
                1 | 2 => Part::Bucket(first),
                3 => {
                    let log = log(place, 2)?;
                    let pairs = log.as_chunks().0.iter();
                    Part::Window(
                        pairs.map(|[at, amount]| (Timestamp::from_micros(*at), *amount)).collect(),
                    )
                }
                4 => Part::Calendar { end: Timestamp::from_micros(first), used, late },
                5 => {
                    let log = log(place, 3)?;
                    let triples = log.as_chunks().0.iter();
                    let slot = |[expires, stamp, places]: &[u64; 3]| SlotPart {
                        stamp: *stamp,
                        expires_at: Timestamp::from_micros(*expires),
                        places: *places,
                    };
                    Part::Slots(triples.map(slot).collect())
                }
                _ => return Err(corrupt("a limit is of no known kind")),
            });
            if closed != 0 {
                parts.closed.push((place, Timestamp::from_micros(closed)));
            }
        }
        Ok(parts)
    }
}

/// What was given for an id.
pub(crate) fn remembered(id: &str, record: &[u64], policy: &Policy) -> Result<IdPart, Error> {
    let [stamp, admitted_at, expires_at, amounts @ ..] = record else {
        return Err(corrupt("an id is unreadable"));
    };
    let costs: Costs = policy.units().zip(amounts.iter().copied()).collect();
    let amounts: Amounts = policy.amounts(&costs)?;
    Ok(IdPart {
        id: id.to_owned(),
        amounts,
        admitted_at: Timestamp::from_micros(*admitted_at),
        stamp: *stamp,
        expires_at: Timestamp::from_micros(*expires_at),
    })
}

fn words(bytes: &[u8], width: usize) -> Result<Vec<u64>, Error> {
    let (words, rest) = bytes.as_chunks();
    if !rest.is_empty() || words.len() % width != 0 {
        return Err(corrupt("a log is cut"));
    }
    Ok(words.iter().map(|word| u64::from_le_bytes(*word)).collect())
}

pub(crate) fn corrupt(why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("redis: stored entry does not decode: {why}"))
}

pub(crate) fn unknown_version(version: u64) -> Error {
    corrupt(&format!(
        "its version is {version} and this program reads {VERSION}; a newer program may have written it"
    ))
}
