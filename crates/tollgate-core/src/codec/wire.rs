//! The stored form, version 1: plain structures apart from the ones that decide, so that either can change alone.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::corrupt;
use crate::bounds::{NUMBER_MAX, UNITS_MAX};
use crate::costs::Amounts;
use crate::entry::{Changed, Entry as LiveEntry, Extra, Ids, Remembered, Run, Settled};
use crate::error::Error;
use crate::policy::{Headroom, Limit, Policy};
use crate::rule::{
    CalendarWindow, Concurrency, Log, Logged, Page, Period, Refill, RollingWindow, Rule, Slot,
    State, TokenBucket, View,
};
use crate::time::{Span, Timestamp};

pub(super) fn write(value: &impl Serialize, bytes: &mut Vec<u8>) {
    // Writing numbers, texts and lists into a growing buffer has no way to fail.
    let written = postcard::to_extend(value, std::mem::take(bytes));
    *bytes = written.unwrap_or_default();
}

pub(super) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok(_) => Err(corrupt("bytes are left over")),
        Err(error) => Err(corrupt(&error.to_string())),
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct Shape {
    block_ttl: u64,
    limits: Vec<WireLimit>,
}

#[derive(Serialize, Deserialize)]
struct WireLimit {
    name: String,
    unit: String,
    rule: WireRule,
    headroom: WireHeadroom,
    margin: u64,
}

#[derive(Serialize, Deserialize)]
enum WireRule {
    Continuous { capacity: u64, refill: u64, period: u64 },
    Interval { capacity: u64, refill: u64, period: u64 },
    Window { limit: u64, window: u64, resolution: Option<u32> },
    Calendar { limit: u64, period: WirePeriod, zone: String },
    Slots { limit: u64, ttl: u64 },
}

#[derive(Serialize, Deserialize)]
enum WirePeriod {
    Minute,
    Hour,
    Day,
    Week,
    Month,
}

#[derive(Serialize, Deserialize)]
enum WireHeadroom {
    Units(u64),
    Percent(u8),
}

impl Shape {
    pub(super) fn new(limits: &[Limit], block_ttl: Span) -> Self {
        let limits = limits.iter().map(|limit| WireLimit {
            name: limit.name().to_owned(),
            unit: limit.unit().to_owned(),
            rule: WireRule::from(limit.rule()),
            headroom: match limit.headroom_setting() {
                Headroom::Units(units) => WireHeadroom::Units(units),
                Headroom::Percent(percent) => WireHeadroom::Percent(percent),
            },
            margin: limit.margin_setting().as_micros(),
        });
        Self { block_ttl: block_ttl.as_micros(), limits: limits.collect() }
    }

    pub(super) fn into_policy(self, name: &str) -> Result<Policy, Error> {
        let limits = self.limits.into_iter().map(|limit| {
            Limit::new(limit.name, limit.unit, Rule::from(limit.rule))
                .headroom(match limit.headroom {
                    WireHeadroom::Units(units) => Headroom::Units(units),
                    WireHeadroom::Percent(percent) => Headroom::Percent(percent),
                })
                .margin(Span::from_micros(limit.margin))
        });
        Policy::builder(name).limits(limits).block_ttl(Span::from_micros(self.block_ttl)).build()
    }
}

impl From<&Rule> for WireRule {
    fn from(rule: &Rule) -> Self {
        match rule {
            Rule::TokenBucket(TokenBucket { capacity, refill, period, mode }) => {
                let (capacity, refill, period) = (*capacity, *refill, period.as_micros());
                match mode {
                    Refill::Continuous => Self::Continuous { capacity, refill, period },
                    Refill::Interval => Self::Interval { capacity, refill, period },
                }
            }
            Rule::RollingWindow(RollingWindow { limit, window, resolution }) => {
                Self::Window { limit: *limit, window: window.as_micros(), resolution: *resolution }
            }
            Rule::CalendarWindow(CalendarWindow { limit, period, zone }) => Self::Calendar {
                limit: *limit,
                period: match period {
                    Period::Minute => WirePeriod::Minute,
                    Period::Hour => WirePeriod::Hour,
                    Period::Day => WirePeriod::Day,
                    Period::Week => WirePeriod::Week,
                    Period::Month => WirePeriod::Month,
                },
                zone: zone.clone(),
            },
            Rule::Concurrency(Concurrency { limit, ttl }) => {
                Self::Slots { limit: *limit, ttl: ttl.as_micros() }
            }
        }
    }
}

impl From<WireRule> for Rule {
    fn from(rule: WireRule) -> Self {
        let bucket = |capacity, refill, period, mode| {
            Self::TokenBucket(TokenBucket {
                capacity,
                refill,
                period: Span::from_micros(period),
                mode,
            })
        };
        match rule {
            WireRule::Continuous { capacity, refill, period } => {
                bucket(capacity, refill, period, Refill::Continuous)
            }
            WireRule::Interval { capacity, refill, period } => {
                bucket(capacity, refill, period, Refill::Interval)
            }
            WireRule::Window { limit, window, resolution } => Self::RollingWindow(RollingWindow {
                limit,
                window: Span::from_micros(window),
                resolution,
            }),
            WireRule::Calendar { limit, period, zone } => {
                let period = match period {
                    WirePeriod::Minute => Period::Minute,
                    WirePeriod::Hour => Period::Hour,
                    WirePeriod::Day => Period::Day,
                    WirePeriod::Week => Period::Week,
                    WirePeriod::Month => Period::Month,
                };
                Self::CalendarWindow(CalendarWindow { limit, period, zone })
            }
            WireRule::Slots { limit, ttl } => {
                Self::Concurrency(Concurrency { limit, ttl: Span::from_micros(ttl) })
            }
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct Entry {
    at: u64,
    next_stamp: u64,
    states: Vec<WireState>,
    ids: Vec<WireId>,
    settled: Vec<(u64, u64, u64)>,
    settled_floor: u64,
    closed: Vec<(u64, u64)>,
    changed: Option<(u64, u64)>,
}

#[derive(Serialize, Deserialize)]
enum WireState {
    Bucket(u64),
    Window(Vec<(u64, u64)>),
    Calendar { end: u64, used: u64, late: u64 },
    Slots(Vec<(u64, u64, u64)>),
}

#[derive(Serialize, Deserialize)]
struct WireId {
    id: String,
    amounts: Vec<u64>,
    admitted_at: u64,
    stamp: u64,
    expires_at: u64,
}

impl From<&LiveEntry> for Entry {
    fn from(entry: &LiveEntry) -> Self {
        let units = entry.policy().units().len();
        let empty = Extra::default();
        let extra = entry.extra().unwrap_or(&empty);
        let ids = extra.ids.iter().map(|known| WireId {
            id: known.id.to_string(),
            amounts: (0..units).map(|place| known.amounts.at(place)).collect(),
            admitted_at: known.admitted_at.as_micros(),
            stamp: known.stamp,
            expires_at: known.expires_at.as_micros(),
        });
        let runs = extra.settled.runs().iter();
        let closed = extra.closed.iter();
        Self {
            at: entry.at().as_micros(),
            next_stamp: entry.next_stamp(),
            states: entry.limits().map(|(_, state)| WireState::from(state)).collect(),
            ids: ids.collect(),
            settled: runs.map(|run| (run.first, run.last, run.admitted_at.as_micros())).collect(),
            settled_floor: extra.settled.floor(),
            closed: closed.map(|(place, until)| (*place as u64, until.as_micros())).collect(),
            changed: extra.changed.map(|changed| (changed.stamp, changed.at.as_micros())),
        }
    }
}

impl Entry {
    /// The entry under `policy`, or nothing if the parts do not belong together.
    pub(super) fn into_entry(self, policy: &Policy) -> Option<LiveEntry> {
        let states: Option<Vec<State>> =
            self.states.into_iter().map(WireState::into_state).collect();
        let ids: Option<Vec<Remembered>> = self.ids.into_iter().map(WireId::into_id).collect();
        let runs = self.settled.into_iter().map(|(first, last, at)| Run {
            first,
            last,
            admitted_at: Timestamp::from_micros(at),
        });
        let extra = Extra {
            ids: Ids::from_all(ids?)?,
            settled: Settled::from_runs(runs.collect(), self.settled_floor)?,
            closed: self
                .closed
                .into_iter()
                .map(|(place, until)| {
                    Some((usize::try_from(place).ok()?, Timestamp::from_micros(until)))
                })
                .collect::<Option<_>>()?,
            changed: self
                .changed
                .map(|(stamp, at)| Changed { stamp, at: Timestamp::from_micros(at) }),
        };
        let at = Timestamp::from_micros(self.at);
        LiveEntry::from_parts(policy, at, self.next_stamp.clamp(1, NUMBER_MAX), states?, extra)
    }
}

impl From<View<'_>> for WireState {
    fn from(state: View<'_>) -> Self {
        match state {
            View::Bucket(used) => Self::Bucket(used),
            View::Window(log) => Self::Window(
                log.entries().map(|entry| (entry.at.as_micros(), entry.amount)).collect(),
            ),
            View::Calendar(page) => {
                Self::Calendar { end: page.end.as_micros(), used: page.used, late: page.late }
            }
            View::Slots(held) => {
                let slots = held.iter();
                Self::Slots(
                    slots
                        .map(|slot| (slot.stamp, slot.expires_at.as_micros(), slot.places))
                        .collect(),
                )
            }
        }
    }
}

impl WireState {
    fn into_state(self) -> Option<State> {
        Some(match self {
            Self::Bucket(used) => State::Bucket(used.min(NUMBER_MAX)),
            Self::Window(entries) => {
                let entries = entries
                    .into_iter()
                    .map(|(at, amount)| Logged { at: Timestamp::from_micros(at), amount });
                State::Window(Box::new(Log::from_entries(entries.collect())?))
            }
            Self::Calendar { end, used, late } => State::Calendar(Page {
                end: Timestamp::from_micros(end),
                used: used.min(NUMBER_MAX),
                late: late.min(NUMBER_MAX),
            }),
            Self::Slots(held) => {
                let slots = held.into_iter().map(|(stamp, expires_at, places)| Slot {
                    stamp,
                    expires_at: Timestamp::from_micros(expires_at),
                    places: places.min(NUMBER_MAX / 2 / crate::bounds::SLOTS_MAX),
                });
                let slots: Vec<Slot> = slots.collect();
                let few = slots.len() <= usize::try_from(crate::bounds::SLOTS_MAX).ok()?;
                let rising = slots.windows(2).all(|pair| pair[0].expires_at <= pair[1].expires_at);
                if !few || !rising {
                    return None;
                }
                State::Slots(slots)
            }
        })
    }
}

impl WireId {
    fn into_id(self) -> Option<Remembered> {
        if UNITS_MAX < self.amounts.len() {
            return None;
        }
        let mut amounts = Amounts::default();
        for (place, amount) in self.amounts.into_iter().enumerate() {
            amounts.set(place, amount);
        }
        Some(Remembered {
            id: self.id.into(),
            amounts,
            admitted_at: Timestamp::from_micros(self.admitted_at),
            stamp: self.stamp,
            expires_at: Timestamp::from_micros(self.expires_at),
        })
    }
}
