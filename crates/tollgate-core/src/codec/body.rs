//! The stored form of an entry's states: plain structures apart from the ones that decide, so that either can change alone.
//! What does not hang together is not made into an entry.
//!
//! Version 2 keeps the lows of buckets, and settled runs as differences, which take a byte or two each. Version 1 kept ask
//! ids in the entry; they are read past.

use serde::{Deserialize, Serialize};

use crate::bounds::{NUMBER_MAX, SLOTS_MAX};
use crate::entry::{Changed, Entry, Extra, Run, Settled, bucket};
use crate::policy::Policy;
use crate::rule::{CalendarState, Log, Logged, Low, Slot, State, View};
use crate::time::Timestamp;

#[derive(Serialize, Deserialize)]
pub(super) struct Body {
    at: u64,
    next_stamp: u64,
    states: Vec<WireState>,
    /// For each run the stamps since the run before, its length less one, and the age of its youngest permit.
    settled: Vec<(u64, u64, u64)>,
    settled_floor: u64,
    closed: Vec<(u64, u64)>,
    changed: Option<(u64, u64)>,
}

/// The same as of version 1.
#[derive(Deserialize)]
pub(super) struct Body1 {
    at: u64,
    next_stamp: u64,
    states: Vec<WireState>,
    #[expect(dead_code, reason = "ids were here, and are not read")]
    ids: Vec<(String, Vec<u64>, u64, u64, u64)>,
    /// For each run its first and last stamp, and when its youngest permit was admitted.
    settled: Vec<(u64, u64, u64)>,
    settled_floor: u64,
    closed: Vec<(u64, u64)>,
    changed: Option<(u64, u64)>,
}

/// Variants go by their place, so a new one comes last.
#[derive(Serialize, Deserialize)]
enum WireState {
    Bucket(u64),
    Window(Vec<(u64, u64)>),
    Calendar {
        end: u64,
        used: u64,
        late: u64,
    },
    Slots(Vec<(u64, u64, u64)>),
    /// A bucket with lows: stamps as their distance from the entry's next one, and what was used.
    Refundable(u64, Vec<(u64, u64)>),
}

impl From<&Entry> for Body {
    fn from(entry: &Entry) -> Self {
        let empty = Extra::default();
        let extra = entry.extra().unwrap_or(&empty);
        let mut after = 0;
        let runs = extra.settled.runs().map(|run| {
            let before = std::mem::replace(&mut after, run.last);
            let age = entry.at().as_micros().wrapping_sub(run.admitted_at.as_micros());
            (run.first - before, run.last - run.first, age)
        });
        let closed = extra.closed.iter();
        Self {
            at: entry.at().as_micros(),
            next_stamp: entry.next_stamp(),
            states: entry.limits().map(|(_, state)| WireState::new(state, entry)).collect(),
            settled: runs.collect(),
            settled_floor: extra.settled.floor(),
            closed: closed.map(|(index, until)| (*index as u64, until.as_micros())).collect(),
            changed: extra.changed.map(|changed| (changed.stamp, changed.at.as_micros())),
        }
    }
}

impl Body {
    /// The entry under `policy`, or nothing if the parts do not belong together.
    pub(super) fn into_entry(self, policy: &Policy) -> Option<Entry> {
        let states = self.states.into_iter().map(|state| state.into_state(self.next_stamp));
        let states: Option<Vec<State>> = states.collect();
        let mut after: u64 = 0;
        let runs = self.settled.into_iter().map(|(distance, length, age)| {
            let first = after.checked_add(distance)?;
            after = first.checked_add(length)?;
            let admitted_at = Timestamp::from_micros(self.at.wrapping_sub(age));
            Some(Run { first, last: after, admitted_at })
        });
        let runs: Option<Vec<Run>> = runs.collect();
        let extra = Extra {
            settled: Settled::from_runs(runs?, self.settled_floor)?,
            closed: self
                .closed
                .into_iter()
                .map(|(index, until)| {
                    Some((usize::try_from(index).ok()?, Timestamp::from_micros(until)))
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

impl From<Body1> for Body {
    fn from(old: Body1) -> Self {
        let mut after = 0;
        let settled = old.settled.into_iter().map(|(first, last, admitted_at)| {
            let before = std::mem::replace(&mut after, last);
            // What is out of order does not become sound by this.
            (first.wrapping_sub(before), last.wrapping_sub(first), old.at.wrapping_sub(admitted_at))
        });
        Self {
            at: old.at,
            next_stamp: old.next_stamp,
            states: old.states,
            settled: settled.collect(),
            settled_floor: old.settled_floor,
            closed: old.closed,
            changed: old.changed,
        }
    }
}

impl WireState {
    fn new(state: View<'_>, entry: &Entry) -> Self {
        match state {
            View::Bucket(used, record) => {
                let lows = record.lows();
                if lows.is_empty() {
                    return Self::Bucket(used);
                }
                let distance = |low: Low| (entry.next_stamp().wrapping_sub(low.stamp), low.used);
                Self::Refundable(used, lows.into_iter().map(distance).collect())
            }
            View::Window(log) => Self::Window(
                log.entries().map(|entry| (entry.at.as_micros(), entry.amount)).collect(),
            ),
            View::Calendar(window) => {
                Self::Calendar { end: window.end.as_micros(), used: window.used, late: window.late }
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

    fn into_state(self, next_stamp: u64) -> Option<State> {
        Some(match self {
            Self::Bucket(used) => bucket(used, Vec::new())?,
            Self::Refundable(used, lows) => {
                let lows = lows.into_iter();
                bucket(used, lows.map(|(d, low)| (next_stamp.wrapping_sub(d), low)).collect())?
            }
            Self::Window(entries) => {
                let entries = entries
                    .into_iter()
                    .map(|(at, amount)| Logged { at: Timestamp::from_micros(at), amount });
                State::Window(Box::new(Log::from_entries(entries.collect())?))
            }
            Self::Calendar { end, used, late } => State::Calendar(CalendarState {
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
