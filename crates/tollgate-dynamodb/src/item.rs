//! What the service keeps for one (policy, subject): an item, read into an entry of the core and written from one.
//!
//! ```text
//! pk   policy/subject              v    version: every write adds one
//! sh   format and shape            n    the stamp of the next charge
//! ttl  when it may be deleted, s   a    when it was last written, µs
//! t, q, j, f, c, g, h              what each limit remembers (see the layout)
//! b<place>                         what a continuous bucket records for giving back (see the refunds)
//! k<place>                         until when a limit is closed, µs
//! o<time>.<token>                  a write that may be sent again, and its stamp
//! z                                which permits are settled
//! u                                until when no permit is given because too many are not settled, µs
//! y                                the last change of numbers: the next stamp and the time of the last write before it
//! ```
//!
//! Ask ids have [items of their own](crate::id). [Format 1](crate::format) has them [in the item](crate::old_ids), overlapping
//! counters (`w`) instead of `q`, `j` and `f`, no `b` and no `u`, and lists of fixed width.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use tollgate::core::{Entry, Operation, Part, Parts, Permit, Policy, Timestamp};
use tollgate::{Error, ErrorKind};

use crate::expression::to_bytes;
use crate::format::Format;
use crate::layout::{
    Grid, Kind, Layout, Level, calendar_name, closed_name, counter_name, index_of, level_name,
    log_name, refunds_name, slot_in, slot_name, slots_name,
};
use crate::packed::{Width, read_changed, read_log, read_settled, read_slots};
use crate::refund::{Left, Sight, refine, unrecorded_lows};

pub(crate) const KEY: &str = "pk";
pub(crate) const SHAPE: &str = "sh";
pub(crate) const VERSION: &str = "v";
pub(crate) const STAMP: &str = "n";
pub(crate) const AT: &str = "a";
pub(crate) const TTL: &str = "ttl";
pub(crate) const SETTLED: &str = "z";
pub(crate) const FULL_UNTIL: &str = "u";
pub(crate) const CHANGED: &str = "y";

pub(crate) type Attributes = HashMap<String, AttributeValue>;

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

    /// Its format and the shape of the policy that its numbers are in, if the format is read here.
    fn form(&self) -> Option<(Format, &[u8])> {
        let (format, shape) = self.bytes(SHAPE)?.split_first()?;
        Some((Format::from_number(*format)?, shape))
    }

    /// Its format, if it is read here.
    pub(crate) fn format(&self) -> Option<Format> {
        self.form().map(|(format, _)| format)
    }

    /// Whether no permit is given at `now`, because too many are not settled.
    pub(crate) fn is_full_at(&self, now: Timestamp) -> bool {
        self.time(FULL_UNTIL).is_some_and(|until| now.max(self.at()) < until)
    }

    /// Whether its numbers are those of `policy`, in any format.
    fn has_numbers_of(&self, policy: &Policy) -> bool {
        self.form().is_some_and(|(_, shape)| shape == policy.shape_bytes())
    }

    /// Whether it has the attributes that `policy` has in `format`.
    pub(crate) fn has_layout_of(&self, policy: &Policy, format: Format) -> bool {
        self.format() == Some(format) && self.has_numbers_of(policy)
    }

    /// Whether a charge by expression under `policy` can be added to it.
    pub(crate) fn has_shape_of(&self, policy: &Policy) -> bool {
        self.has_layout_of(policy, Format::New)
    }

    /// The policy that the item's numbers are in: `policy` itself, or an older one of the same name.
    pub(crate) fn policy(&self, policy: &Policy) -> Result<Policy, Error> {
        match (self.form(), self.bytes(SHAPE)) {
            (Some((_, shape)), _) if shape == policy.shape_bytes() => Ok(policy.clone()),
            (Some((_, shape)), _) => Ok(Policy::from_shape_bytes(policy.name(), shape)?),
            (None, Some([format, ..])) => Err(corrupt(&format!(
                "its format is {format} and this program reads up to {}; a newer program may have written it",
                Format::New
            ))),
            _ => Err(corrupt("it has no shape; another program may have written it")),
        }
    }

    /// The entry that the item says, under the policy called `name` that it was written with.
    pub(crate) fn any_entry(&self, name: &str) -> Result<Entry, Error> {
        let form = self.form();
        let (_, shape) = form.ok_or_else(|| corrupt("it has no shape that is known here"))?;
        self.entry_with(&Policy::from_shape_bytes(name, shape)?, None, &[])
    }

    /// The buckets of the item.
    pub(crate) fn sight(&self) -> Sight {
        let full_at = self.attributes.keys().filter_map(|name| {
            let place = name.strip_prefix('t')?.parse().ok()?;
            Some((place, self.number(name)?))
        });
        Sight {
            next_stamp: self.small(STAMP).unwrap_or(1),
            at: self.at(),
            full_at: full_at.collect(),
        }
    }

    /// The entry that the item says, for an operation in the numbers of `policy`. A `permit` that it gives back proves
    /// something about its bucket, and so do earlier `sights` of the item.
    pub(crate) fn entry_with(
        &self,
        policy: &Policy,
        permit: Option<&Permit>,
        sights: &[Sight],
    ) -> Result<Entry, Error> {
        let permit = permit.filter(|_| self.has_numbers_of(policy));
        let policy = self.policy(policy)?;
        let (layout, at) = (Layout::of(&policy), self.at());
        let width = self.format().unwrap_or_default().width();
        let now = self.sight();
        let next_stamp = now.next_stamp;
        let mut windows = policy.windows_at(at);
        let states = layout.kinds.iter().zip(policy.places()).enumerate();
        let states = states.map(|(place, (kind, unit))| {
            let borders = windows.next().flatten();
            match kind {
                Kind::Level(level) => {
                    let used = self.level(place, level, at);
                    let mut lows = Vec::new();
                    if level.is_continuous {
                        lows = match width {
                            Width::Fixed => unrecorded_lows(used, next_stamp),
                            Width::Packed => {
                                let left = self.bytes(&refunds_name(place));
                                let left = left.map(Left::read).transpose()?;
                                Left::lows_at(left.as_ref(), level, place, sights, &now)
                            }
                        };
                        if let Some(permit) = permit {
                            let cost = permit.charged().amounts.at(unit);
                            refine(&mut lows, level, permit, cost, at);
                        }
                    }
                    Ok(Part::Bucket { used, lows })
                }
                Kind::Grid(grid) => match self.bytes(&log_name(place)) {
                    Some(log) => read_log(log, width),
                    None if width == Width::Fixed => {
                        Ok(Part::Window(self.overlapping_used(place, grid)))
                    }
                    None => Ok(Part::Window(self.slots_used(place, grid))),
                },
                Kind::Calendar { .. } => Ok(match borders {
                    Some([open, next]) => Part::Calendar {
                        end: open.end,
                        used: self.small(&calendar_name(place, open.end)).unwrap_or(0),
                        late: self.small(&calendar_name(place, next.end)).unwrap_or(0),
                    },
                    None => Part::Calendar { end: Timestamp::EPOCH, used: 0, late: 0 },
                }),
                Kind::Log => read_log(self.bytes(&log_name(place)).unwrap_or_default(), width),
                Kind::Slots { .. } => {
                    read_slots(self.bytes(&slots_name(place)).unwrap_or_default(), width)
                }
            }
        });
        let states = states.collect::<Result<_, _>>()?;
        let closed = (0..layout.kinds.len())
            .filter_map(|place| Some((place, self.time(&closed_name(place))?)));
        let parts = Parts {
            at,
            next_stamp,
            states,
            settled: read_settled(self.bytes(SETTLED).unwrap_or_default(), width)?,
            closed: closed.collect(),
            changed: self.bytes(CHANGED).map(|changed| read_changed(changed, width)).transpose()?,
        };
        Ok(parts.into_entry(&policy)?)
    }

    fn level(&self, place: usize, level: &Level, at: Timestamp) -> u64 {
        let full_at = self.number(&level_name(place)).unwrap_or(0);
        u64::try_from(full_at.saturating_sub(level.of(at))).unwrap_or(u64::MAX)
    }

    /// The slots of a grid that hold something, in order.
    pub(crate) fn slots(&self, place: usize) -> Vec<(u64, u64)> {
        let known = self.attributes.keys().filter_map(|name| slot_in(name, place));
        let amount = |slot: u64| self.small(&slot_name(place, slot)).unwrap_or(0);
        let mut slots: Vec<(u64, u64)> = known.map(|slot| (slot, amount(slot))).collect();
        slots.sort_unstable();
        slots
    }

    fn slots_used(&self, place: usize, grid: &Grid) -> Vec<(Timestamp, u64)> {
        let slots = self.slots(place).into_iter().filter(|(_, amount)| 0 < *amount);
        slots.map(|(slot, amount)| (grid.end_of(slot), amount)).collect()
    }

    /// What was charged in each slot by overlapping counters, each of which counts what was charged from its slot on for one
    /// window: the difference of neighbours, as far back as the newest one reaches.
    fn overlapping_used(&self, place: usize, grid: &Grid) -> Vec<(Timestamp, u64)> {
        let known = self.attributes.keys().filter_map(|name| index_of(name, 'w', place));
        let Some(newest) = known.max() else { return Vec::new() };
        let count = |slot: u64| self.small(&counter_name(place, slot)).unwrap_or(0);
        (newest.saturating_sub(grid.span())..=newest)
            .map(|slot| (grid.end_of(slot), count(slot).saturating_sub(count(slot + 1))))
            .filter(|(_, amount)| 0 < *amount)
            .collect()
    }
}

/// The permit that `operation` settles or releases.
pub(crate) fn given_back<'a>(operation: &Operation<'a>) -> Option<&'a Permit> {
    match operation {
        Operation::Settle(permit, _) | Operation::Release(permit) => Some(permit),
        _ => None,
    }
}

/// `entry` with what giving `permit` back proves about its buckets, as an [`Item`] that is written from it and read again
/// would have it.
pub(crate) fn refined(entry: Entry, permit: &Permit) -> Result<Entry, Error> {
    let layout = Layout::of(entry.policy());
    let is_continuous = |kind: &Kind| matches!(kind, Kind::Level(level) if level.is_continuous);
    if !entry.policy().has_shape_of(permit.policy()) || !layout.kinds.iter().any(is_continuous) {
        return Ok(entry);
    }
    let mut parts = entry.parts();
    let states = layout.kinds.iter().zip(entry.policy().places()).zip(&mut parts.states);
    for ((kind, unit), part) in states {
        if let (Kind::Level(level), Part::Bucket { used, lows }) = (kind, part)
            && level.is_continuous
        {
            if *used == 0 {
                lows.clear();
            }
            refine(lows, level, permit, permit.charged().amounts.at(unit), entry.at());
        }
    }
    Ok(parts.into_entry(entry.policy())?)
}

/// The shape of `policy` as an item of `format` has it.
pub(crate) fn shape_of(policy: &Policy, format: Format) -> AttributeValue {
    to_bytes([&[format.number()], policy.shape_bytes()].concat())
}

pub(crate) fn corrupt(why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("dynamodb: a stored item does not decode: {why}"))
}
