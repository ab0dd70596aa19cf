//! An entry taken apart, for stores that keep each number under a name of its own.
//!
//! Most stores keep an entry as [bytes](crate::codec). A store whose writes are expressions over single numbers needs
//! those numbers one by one; it takes an entry apart with [`Entry::parts`] and puts one together with
//! [`Parts::into_entry`], so that everything that is answered still comes from the core.

use super::{Changed, Entry, Extra, Run, Settled};
use crate::bounds::{NUMBER_MAX, SLOTS_MAX};
use crate::error::{Error, ErrorKind};
use crate::policy::Policy;
use crate::rule::{CalendarState, Log, Logged, Low, Lows, Slot, State, View};
use crate::time::Timestamp;

/// Everything an entry remembers. The default is an entry that remembers nothing.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Parts {
    /// When the entry was last written.
    pub at: Timestamp,
    /// The number of the next charge.
    pub next_stamp: u64,
    /// The state of each limit, in the order of the policy.
    pub states: Vec<Part>,
    /// The settled permits.
    pub settled: SettledPart,
    /// The indexes of limits that are closed, and until when.
    pub closed: Vec<(usize, Timestamp)>,
    /// The last change of numbers: permits with a stamp below this one give nothing back, and the time of the last
    /// write before it.
    pub changed: Option<(u64, Timestamp)>,
}

/// The state of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A bucket.
    Bucket {
        /// The usage at the entry's time: fine units if it is continuous, tokens if it is not.
        used: u64,
        /// The record for giving back of a continuous bucket: stamps, and the usage just before the charge with that stamp,
        /// both rising. Empty if no charge can be given back.
        lows: Vec<(u64, u64)>,
    },
    /// The log of a rolling window, oldest first: from when each amount counts.
    Window(Vec<(Timestamp, u64)>),
    /// The window of a calendar window.
    Calendar {
        /// When it ends.
        end: Timestamp,
        /// The usage in it.
        used: u64,
        /// How much of that counts in the next window too.
        late: u64,
    },
    /// The slots that are held, in order of expiry.
    Slots(Vec<SlotPart>),
}

/// The places that one permit holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotPart {
    /// The stamp of the permit.
    pub stamp: u64,
    /// When they expire.
    pub expires_at: Timestamp,
    /// How many.
    pub places: u64,
}

/// Which permits are settled.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SettledPart {
    /// Runs of settled stamps, rising and apart: the first, the last, and when the youngest was admitted.
    pub runs: Vec<(u64, u64, Timestamp)>,
    /// Every stamp up to this one counts as too old.
    pub floor: u64,
}

impl Entry {
    /// Takes the entry apart.
    #[doc(hidden)]
    #[must_use]
    pub fn parts(&self) -> Parts {
        let empty = Extra::default();
        let extra = self.extra().unwrap_or(&empty);
        let runs = extra.settled.runs();
        Parts {
            at: self.at,
            next_stamp: self.next_stamp,
            states: self.limits().map(|(_, state)| Part::from_view(state)).collect(),
            settled: SettledPart {
                runs: runs.map(|run| (run.first, run.last, run.admitted_at)).collect(),
                floor: extra.settled.floor(),
            },
            closed: extra.closed.clone(),
            changed: extra.changed.map(|changed| (changed.stamp, changed.at)),
        }
    }
}

impl Parts {
    /// The entry of `policy` that these are the parts of.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if they do not belong together.
    pub fn into_entry(self, policy: &Policy) -> Result<Entry, Error> {
        self.entry(policy).ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, "stored entry does not fit together or its limits")
        })
    }

    fn entry(self, policy: &Policy) -> Option<Entry> {
        let states: Option<Vec<State>> = self.states.into_iter().map(Part::into_state).collect();
        let runs = self.settled.runs.into_iter();
        let runs = runs.map(|(first, last, admitted_at)| Run { first, last, admitted_at });
        let extra = Extra {
            settled: Settled::from_runs(runs.collect(), self.settled.floor)?,
            closed: self.closed,
            changed: self.changed.map(|(stamp, at)| Changed { stamp, at }),
        };
        let next_stamp = self.next_stamp.clamp(1, NUMBER_MAX);
        Entry::from_parts(policy, self.at, next_stamp, states?, extra)
    }
}

impl Part {
    fn from_view(state: View<'_>) -> Self {
        match state {
            View::Bucket(used, record) => {
                let lows = record.lows().into_iter().map(|low| (low.stamp, low.used)).collect();
                Self::Bucket { used, lows }
            }
            View::Window(log) => {
                Self::Window(log.entries().map(|entry| (entry.at, entry.amount)).collect())
            }
            View::Calendar(window) => {
                Self::Calendar { end: window.end, used: window.used, late: window.late }
            }
            View::Slots(held) => {
                let slot = |slot: &Slot| SlotPart {
                    stamp: slot.stamp,
                    expires_at: slot.expires_at,
                    places: slot.places,
                };
                Self::Slots(held.iter().map(slot).collect())
            }
        }
    }

    fn into_state(self) -> Option<State> {
        Some(match self {
            Self::Bucket { used, lows } => bucket(used, lows)?,
            Self::Window(log) => {
                let entries = log.into_iter().map(|(at, amount)| Logged { at, amount });
                State::Window(Box::new(Log::from_entries(entries.collect())?))
            }
            Self::Calendar { end, used, late } => State::Calendar(CalendarState {
                end,
                used: used.min(NUMBER_MAX),
                late: late.min(NUMBER_MAX),
            }),
            Self::Slots(held) => {
                let few = held.len() <= usize::try_from(SLOTS_MAX).ok()?;
                let rising = held.windows(2).all(|pair| pair[0].expires_at <= pair[1].expires_at);
                if !few || !rising {
                    return None;
                }
                let slot = |slot: SlotPart| Slot {
                    stamp: slot.stamp,
                    expires_at: slot.expires_at,
                    places: slot.places.min(NUMBER_MAX / 2 / SLOTS_MAX),
                };
                State::Slots(held.into_iter().map(slot).collect())
            }
        })
    }
}

/// The state of a bucket, or nothing if its lows are out of order.
pub(crate) fn bucket(used: u64, lows: Vec<(u64, u64)>) -> Option<State> {
    let lows: Vec<Low> = lows.into_iter().map(|(stamp, used)| Low { stamp, used }).collect();
    let lows = if lows.is_empty() { None } else { Some(Box::new(Lows::from_entries(lows)?)) };
    Some(State::Bucket(used.min(NUMBER_MAX), lows))
}
