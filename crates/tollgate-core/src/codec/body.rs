//! The stored form of an entry's states, version 1: plain structures apart from the ones that decide, so that either can
//! change alone. What does not hang together is not made into an entry.

use serde::{Deserialize, Serialize};

use crate::bounds::{NUMBER_MAX, SLOTS_MAX, UNITS_MAX};
use crate::costs::Amounts;
use crate::entry::{Changed, Entry, Extra, Ids, Remembered, Run, Settled};
use crate::policy::Policy;
use crate::rule::{Log, Logged, Page, Slot, State, View};
use crate::time::Timestamp;

#[derive(Serialize, Deserialize)]
pub(super) struct Body {
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

impl From<&Entry> for Body {
    fn from(entry: &Entry) -> Self {
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

impl Body {
    /// The entry under `policy`, or nothing if the parts do not belong together.
    pub(super) fn into_entry(self, policy: &Policy) -> Option<Entry> {
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
        Entry::from_parts(policy, at, self.next_stamp.clamp(1, NUMBER_MAX), states?, extra)
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
                    places: places.min(NUMBER_MAX / 2 / SLOTS_MAX),
                });
                let slots: Vec<Slot> = slots.collect();
                let few = slots.len() <= usize::try_from(SLOTS_MAX).ok()?;
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
