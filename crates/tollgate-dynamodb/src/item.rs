//! The item of one (policy, subject), and its conversion to an entry.
//!
//! ```text
//! pk   policy/subject              v    version: every write adds one
//! sh   format and shape            n    the stamp of the next charge
//! ttl  when it may be deleted, s   a    when it was last written, µs
//! t, q, j, f, c, g, h              the state of each limit (see `layout`)
//! b<place>                         the refund record of a continuous bucket (see `refund`)
//! k<place>                         until when a limit is closed, µs
//! o<time>.<token>                  the token of a write that may be retried, and its stamp
//! z                                the settled permits
//! u                                until when asks are refused because too many permits are not settled, µs
//! y                                the last change of numbers: the next stamp and the time of the last write before it
//! ```
//!
//! Ask ids have [items of their own](crate::id). [Format 1](crate::format) has them [in the item](crate::format_1_ids), overlapping
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
use crate::refund::{Observation, SwapRecord, refine, unrecorded_lows};

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

/// An item of the service.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) attributes: Attributes,
}

impl Item {
    pub(crate) fn number(&self, name: &str) -> Option<u128> {
        self.attributes.get(name)?.as_n().ok()?.parse().ok()
    }

    /// Returns the number `name`, saturated to 64 bits.
    pub(crate) fn small(&self, name: &str) -> Option<u64> {
        self.number(name).map(|number| u64::try_from(number).unwrap_or(u64::MAX))
    }

    fn time(&self, name: &str) -> Option<Timestamp> {
        self.small(name).map(Timestamp::from_micros)
    }

    pub(crate) fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.attributes.get(name)?.as_b().ok().map(AsRef::as_ref)
    }

    pub(crate) fn version(&self) -> u64 {
        self.small(VERSION).unwrap_or(0)
    }

    pub(crate) fn at(&self) -> Timestamp {
        self.time(AT).unwrap_or_default()
    }

    /// Returns its format and shape, if the format is known.
    fn form(&self) -> Option<(Format, &[u8])> {
        let (format, shape) = self.bytes(SHAPE)?.split_first()?;
        Some((Format::from_number(*format)?, shape))
    }

    /// Returns its format, if it is known.
    pub(crate) fn format(&self) -> Option<Format> {
        self.form().map(|(format, _)| format)
    }

    /// Whether too many permits are not settled at `now` to give another one.
    pub(crate) fn is_full_at(&self, now: Timestamp) -> bool {
        self.time(FULL_UNTIL).is_some_and(|until| now.max(self.at()) < until)
    }

    /// Whether it has the numbers of `policy`, in any format.
    fn has_numbers_of(&self, policy: &Policy) -> bool {
        self.form().is_some_and(|(_, shape)| shape == policy.shape_bytes())
    }

    /// Whether it has the attributes of `policy` in `format`.
    pub(crate) fn has_layout_of(&self, policy: &Policy, format: Format) -> bool {
        self.format() == Some(format) && self.has_numbers_of(policy)
    }

    /// Whether a conditional update under `policy` can charge it.
    pub(crate) fn has_shape_of(&self, policy: &Policy) -> bool {
        self.has_layout_of(policy, Format::New)
    }

    /// Returns the policy of the item's numbers: `policy`, or an older one of the same name.
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

    /// Returns the entry, under the policy `name` that it was written with.
    pub(crate) fn any_entry(&self, name: &str) -> Result<Entry, Error> {
        let form = self.form();
        let (_, shape) = form.ok_or_else(|| corrupt("it has no shape that is known here"))?;
        self.entry_with(&Policy::from_shape_bytes(name, shape)?, None, &[])
    }

    /// Returns an observation of the buckets.
    pub(crate) fn observation(&self) -> Observation {
        let full_at = self.attributes.keys().filter_map(|name| {
            let place = name.strip_prefix('t')?.parse().ok()?;
            Some((place, self.number(name)?))
        });
        Observation {
            next_stamp: self.small(STAMP).unwrap_or(1),
            at: self.at(),
            full_at: full_at.collect(),
        }
    }

    /// Returns the entry for an operation under `policy`. A `permit` to give back, and earlier `observations` of the item, improve the
    /// bounds of its buckets.
    pub(crate) fn entry_with(
        &self,
        policy: &Policy,
        permit: Option<&Permit>,
        observations: &[Observation],
    ) -> Result<Entry, Error> {
        let permit = permit.filter(|_| self.has_numbers_of(policy));
        let policy = self.policy(policy)?;
        let (layout, at) = (Layout::for_policy(&policy), self.at());
        let width = self.format().unwrap_or_default().width();
        let now = self.observation();
        let next_stamp = now.next_stamp;
        let mut windows = policy.windows_at(at);
        let states = layout.kinds.iter().zip(policy.unit_indexes()).enumerate();
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
                                let left = left.map(SwapRecord::read).transpose()?;
                                SwapRecord::lows_at(left.as_ref(), level, place, observations, &now)
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
        u64::try_from(full_at.saturating_sub(level.at(at))).unwrap_or(u64::MAX)
    }

    /// Returns the slots of a grid, in order.
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

    /// Returns the charges of each slot from overlapping counters: the differences of neighbours, as far back as the newest one
    /// reaches.
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

/// Returns the permit that `operation` settles or releases.
pub(crate) fn given_back<'a>(operation: &Operation<'a>) -> Option<&'a Permit> {
    match operation {
        Operation::Settle(permit, _) | Operation::Release(permit) => Some(permit),
        _ => None,
    }
}

/// Improves the bounds of the buckets of `entry` by `permit`, as if the entry was written and read as an [`Item`].
pub(crate) fn refined(entry: Entry, permit: &Permit) -> Result<Entry, Error> {
    let layout = Layout::for_policy(entry.policy());
    let is_continuous = |kind: &Kind| matches!(kind, Kind::Level(level) if level.is_continuous);
    if !entry.policy().has_shape_of(permit.policy()) || !layout.kinds.iter().any(is_continuous) {
        return Ok(entry);
    }
    let mut parts = entry.parts();
    let states = layout.kinds.iter().zip(entry.policy().unit_indexes()).zip(&mut parts.states);
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

/// Returns the shape of `policy` in an item of `format`.
pub(crate) fn shape_of(policy: &Policy, format: Format) -> AttributeValue {
    to_bytes([&[format.number()], policy.shape_bytes()].concat())
}

pub(crate) fn corrupt(why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("dynamodb: a stored item does not decode: {why}"))
}
