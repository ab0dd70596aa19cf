//! What the service keeps for one (policy, subject): an item, read into an entry of the core and written from one.
//!
//! ```text
//! pk   policy/subject              v    version: every write adds one
//! sh   format and shape            n    the stamp of the next charge
//! ttl  when it may be deleted, s   a    when it was last written, µs
//! t, w, c, g, h                    what each limit remembers (see the layout)
//! k<place>                         until when a limit is closed, µs
//! x:<id> s:<id> r:<id>             an id: until when (the present, once it is free again), its stamp, its charge
//! o<time>.<token>                  a write that may be sent again, and its stamp
//! z                                which permits are settled
//! y                                the last change of numbers: the next stamp and the time of the last write before it
//! ```

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use tollgate::core::bounds::IDS_MAX;
use tollgate::core::{Entry, IdPart, Part, Parts, Policy, Timestamp};
use tollgate::{Error, ErrorKind};

use crate::expression::to_bytes;
use crate::layout::{
    Counters, Kind, Layout, Level, calendar_name, closed_name, counter_name, index_of, level_name,
    log_name, slots_name,
};
use crate::packed::{read_changed, read_log, read_record, read_settled, read_slots};

pub(crate) const KEY: &str = "pk";
pub(crate) const SHAPE: &str = "sh";
pub(crate) const VERSION: &str = "v";
pub(crate) const STAMP: &str = "n";
pub(crate) const AT: &str = "a";
pub(crate) const TTL: &str = "ttl";
pub(crate) const SETTLED: &str = "z";
pub(crate) const CHANGED: &str = "y";

/// The format of items, in front of the shape.
const FORMAT: u8 = 1;

/// In front of an id, in the name of the attribute that says until when it is used.
pub(crate) const ID_EXPIRES: &str = "x:";

/// How many ids below the bound an acquire turns to swaps, which count them exactly.
const IDS_SPARE: usize = 128;

pub(crate) type Attributes = HashMap<String, AttributeValue>;

/// The names of the three attributes of an id.
pub(crate) struct IdNames {
    pub(crate) expires: String,
    pub(crate) stamp: String,
    pub(crate) record: String,
}

impl IdNames {
    pub(crate) fn of(id: &str) -> Self {
        Self {
            expires: format!("{ID_EXPIRES}{id}"),
            stamp: format!("s:{id}"),
            record: format!("r:{id}"),
        }
    }
}

/// An item as the service returned it.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) attributes: Attributes,
}

impl Item {
    pub(crate) fn number(&self, name: &str) -> Option<u128> {
        self.attributes.get(name)?.as_n().ok()?.parse().ok()
    }

    /// The number `name` where only 64 bits make sense; too large a number is the largest.
    pub(crate) fn small(&self, name: &str) -> Option<u64> {
        self.number(name).map(|number| u64::try_from(number).unwrap_or(u64::MAX))
    }

    fn time(&self, name: &str) -> Option<Timestamp> {
        self.small(name).map(Timestamp::from_micros)
    }

    fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.attributes.get(name)?.as_b().ok().map(AsRef::as_ref)
    }

    pub(crate) fn version(&self) -> u64 {
        self.small(VERSION).unwrap_or(0)
    }

    pub(crate) fn at(&self) -> Timestamp {
        self.time(AT).unwrap_or_default()
    }

    /// The shape of the policy that the numbers are in, if it is of the format that is read here.
    pub(crate) fn shape(&self) -> Option<&[u8]> {
        match self.bytes(SHAPE) {
            Some([FORMAT, shape @ ..]) => Some(shape),
            _ => None,
        }
    }

    pub(crate) fn has_shape_of(&self, policy: &Policy) -> bool {
        matches!(self.bytes(SHAPE), Some([FORMAT, shape @ ..]) if shape == policy.shape_bytes())
    }

    /// The policy that the item's numbers are in: `policy` itself, or an older one of the same name.
    pub(crate) fn policy(&self, policy: &Policy) -> Result<Policy, Error> {
        match self.bytes(SHAPE) {
            Some([FORMAT, shape @ ..]) if shape == policy.shape_bytes() => Ok(policy.clone()),
            Some([FORMAT, shape @ ..]) => Ok(Policy::from_shape_bytes(policy.name(), shape)?),
            Some([format, ..]) => Err(corrupt(&format!(
                "its format is {format} and this program reads {FORMAT}; a newer program may have written it"
            ))),
            _ => Err(corrupt("it has no shape; another program may have written it")),
        }
    }

    /// The entry that the item says, without ids that are forgotten at `now`.
    pub(crate) fn entry(&self, policy: &Policy, now: Timestamp) -> Result<Entry, Error> {
        let policy = self.policy(policy)?;
        let (layout, at) = (Layout::of(&policy), self.at());
        let mut windows = policy.windows_at(at);
        let states = layout.kinds.iter().enumerate().map(|(place, kind)| {
            let borders = windows.next().flatten();
            match kind {
                Kind::Level(level) => Ok(Part::Bucket(self.level(place, level, at))),
                Kind::Counters(counters) => match self.bytes(&log_name(place)) {
                    Some(log) => read_log(log),
                    None => Ok(Part::Window(self.slots_used(place, counters))),
                },
                Kind::Calendar { .. } => Ok(match borders {
                    Some([open, next]) => Part::Calendar {
                        end: open.end,
                        used: self.small(&calendar_name(place, open.end)).unwrap_or(0),
                        late: self.small(&calendar_name(place, next.end)).unwrap_or(0),
                    },
                    None => Part::Calendar { end: Timestamp::EPOCH, used: 0, late: 0 },
                }),
                Kind::Log => read_log(self.bytes(&log_name(place)).unwrap_or_default()),
                Kind::Slots => read_slots(self.bytes(&slots_name(place)).unwrap_or_default()),
            }
        });
        let states = states.collect::<Result<_, _>>()?;
        let closed = (0..layout.kinds.len())
            .filter_map(|place| Some((place, self.time(&closed_name(place))?)));
        let parts = Parts {
            at,
            next_stamp: self.small(STAMP).unwrap_or(1),
            states,
            ids: self.ids(&policy, at.max(now))?,
            settled: read_settled(self.bytes(SETTLED).unwrap_or_default())?,
            closed: closed.collect(),
            changed: self.bytes(CHANGED).map(read_changed).transpose()?,
        };
        Ok(parts.into_entry(&policy)?)
    }

    fn level(&self, place: usize, level: &Level, at: Timestamp) -> u64 {
        let full_at = self.number(&level_name(place)).unwrap_or(0);
        u64::try_from(full_at.saturating_sub(level.of(at))).unwrap_or(u64::MAX)
    }

    /// What was charged in each slot: the difference of neighbouring counters, as far back as the newest one reaches.
    fn slots_used(&self, place: usize, counters: &Counters) -> Vec<(Timestamp, u64)> {
        let known = self.attributes.keys().filter_map(|name| index_of(name, 'w', place));
        let Some(newest) = known.max() else { return Vec::new() };
        let count = |slot: u64| self.small(&counter_name(place, slot)).unwrap_or(0);
        (newest.saturating_sub(counters.span)..=newest)
            .map(|slot| {
                let end = Timestamp::from_micros((slot + 1).saturating_mul(counters.slot));
                (end, count(slot).saturating_sub(count(slot + 1)))
            })
            .filter(|(_, amount)| 0 < *amount)
            .collect()
    }

    /// The ids that are remembered at `at`, oldest first.
    fn ids(&self, policy: &Policy, at: Timestamp) -> Result<Vec<IdPart>, Error> {
        let names = self.attributes.keys().filter_map(|name| name.strip_prefix(ID_EXPIRES));
        let mut ids = Vec::new();
        for id in names {
            let of = IdNames::of(id);
            let expires_at = self.time(&of.expires).unwrap_or_default();
            if expires_at <= at {
                continue;
            }
            let record = self.attributes.get(&of.record).and_then(|record| record.as_s().ok());
            let record = record.and_then(|record| read_record(record, policy));
            let (admitted_at, amounts) =
                record.ok_or_else(|| corrupt("one of its ids is broken"))?;
            let stamp = self.small(&of.stamp).unwrap_or(0);
            ids.push(IdPart { id: id.to_owned(), amounts, admitted_at, stamp, expires_at });
        }
        if IDS_MAX < ids.len() {
            return Err(Error::new(
                ErrorKind::Contended,
                format!("{} ids are remembered for this subject; ask again later", ids.len()),
            ));
        }
        ids.sort_by_key(|known| known.stamp);
        Ok(ids)
    }

    /// Whether there is room for one more id, and for those that others write at the same time.
    pub(crate) fn has_room_for_id(&self) -> bool {
        let ids = self.attributes.keys().filter(|name| name.starts_with(ID_EXPIRES)).count();
        ids < IDS_MAX - IDS_SPARE
    }

    /// The ids that are forgotten since `at`, whose attributes can go.
    pub(crate) fn forgotten_ids(&self, at: Timestamp) -> impl Iterator<Item = &str> {
        self.attributes
            .keys()
            .filter_map(|name| name.strip_prefix(ID_EXPIRES))
            .filter(move |id| self.time(&IdNames::of(id).expires).is_some_and(|end| end <= at))
    }
}

/// The shape of `policy` as an item has it.
pub(crate) fn shape_of(policy: &Policy) -> AttributeValue {
    to_bytes([&[FORMAT], policy.shape_bytes()].concat())
}

pub(crate) fn corrupt(why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("dynamodb: a stored item does not decode: {why}"))
}
