//! Converts between rows and entries of the core.
//!
//! The functions in the database compute on plain numbers. [`Parts`] checks that they are consistent, so that a damaged row is
//! `Corrupt` and not a wrong decision.

use tollgate::core::{Entry, Part, Parts, SettledPart, SlotPart, bounds, standings};
use tollgate::{Error, ErrorKind, Policy, Timestamp};

/// The columns of a row, and its settled permits.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stored {
    pub(crate) revision: i64,
    pub(crate) shape: Vec<u8>,
    pub(crate) at: i64,
    pub(crate) next_stamp: i64,
    pub(crate) states: Vec<i64>,
    pub(crate) settled: Vec<i64>,
    pub(crate) settled_floor: i64,
    pub(crate) closed: Vec<i64>,
    pub(crate) changed: Vec<i64>,
    pub(crate) absent_at: i64,
}

impl Stored {
    /// Returns the entry in the numbers it was written with.
    pub(crate) fn to_entry(&self, policy: &Policy) -> Result<Entry, Error> {
        let parts = Parts {
            at: time(self.at),
            next_stamp: natural(self.next_stamp),
            states: parts_of(&self.states).ok_or_else(|| corrupt("its states end too early"))?,
            settled: SettledPart { runs: runs(&self.settled), floor: natural(self.settled_floor) },
            closed: pairs(&self.closed)
                .map(|(place, until)| {
                    let place =
                        usize::try_from(place).map_err(|_| corrupt("a place is negative"))?;
                    Ok((place, time(until)))
                })
                .collect::<Result<_, Error>>()?,
            changed: match self.changed.as_slice() {
                [] => None,
                [stamp, at] => Some((natural(*stamp), time(*at))),
                _ => return Err(corrupt("its change of numbers is not a stamp and a time")),
            },
        };
        // A reply of `spend` has the shape of the current policy.
        if self.shape.is_empty() || self.shape == policy.shape_bytes() {
            return Ok(parts.into_entry(policy)?);
        }
        Ok(parts.into_entry(&Policy::from_shape_bytes(policy.name(), &self.shape)?)?)
    }

    /// Whether too many permits are not settled at `now` to settle another one exactly.
    pub(crate) fn is_full(&self, now: Timestamp) -> bool {
        let runs = self.settled.as_chunks::<3>().0;
        let young = |[_, _, admitted]: &[i64; 3]| now < time(*admitted) + bounds::ABANDONED_AFTER;
        bounds::SETTLED_RUNS_MAX_SHARED <= runs.len() && runs.first().is_some_and(young)
    }

    /// Returns the columns of `entry`, without the revision.
    pub(crate) fn from_entry(entry: &Entry) -> Self {
        Self::from_parts(entry, &entry.parts())
    }

    /// Returns the columns of `parts`, the stored parts of `entry`.
    pub(crate) fn from_parts(entry: &Entry, parts: &Parts) -> Self {
        let absent_at = absent_at(entry, parts);
        let runs = parts.settled.runs.iter();
        let closed = parts.closed.iter();
        Self {
            revision: 0,
            shape: entry.policy().shape_bytes().to_vec(),
            at: micros(parts.at),
            next_stamp: integer(parts.next_stamp),
            states: parts.states.iter().flat_map(numbers_of).collect(),
            settled: runs
                .flat_map(|(first, last, at)| [integer(*first), integer(*last), micros(*at)])
                .collect(),
            settled_floor: integer(parts.settled.floor),
            closed: closed
                .flat_map(|(place, until)| [integer(*place as u64), micros(*until)])
                .collect(),
            changed: parts
                .changed
                .into_iter()
                .flat_map(|(stamp, at)| [integer(stamp), micros(at)])
                .collect(),
            absent_at: micros(absent_at),
        }
    }
}

/// Returns from when on the entry equals an absent one.
fn absent_at(entry: &Entry, parts: &Parts) -> Timestamp {
    let full = standings(entry, entry.at()).into_iter().filter_map(|standing| standing.full_at);
    let closed = parts.closed.iter().map(|(_, until)| *until);
    let written = [parts.at, Timestamp::from_micros(parts.next_stamp)];
    // Settled permits, and permits from before a change of numbers, count until they expire.
    let settled = parts.settled.runs.iter().map(|run| run.2);
    let permits = settled.chain(parts.changed.map(|(_, at)| at));
    let too_old = permits.map(|at| at + bounds::PERMIT_TTL);
    full.chain(closed).chain(written).chain(too_old).max().unwrap_or(Timestamp::MAX)
}

/// Encodes the state of a limit: its kind, a length, and numbers.
fn numbers_of(part: &Part) -> Vec<i64> {
    let (kind, numbers): (i64, Vec<u64>) = match part {
        Part::Bucket { used, lows } => {
            let mut before = 0;
            let rises = lows.iter().flat_map(|(stamp, low)| {
                let rise = low.saturating_sub(std::mem::replace(&mut before, *low));
                [*stamp, rise]
            });
            // The bound on the rises is unknown, so the next charge scans all of them.
            let last = lows.last().into_iter().flat_map(|(_, low)| [*low, 0]);
            (0, std::iter::once(*used).chain(last).chain(rises).collect())
        }
        Part::Window(log) => {
            let sum = log.iter().map(|(_, amount)| *amount).sum();
            let logged = log.iter().flat_map(|(at, amount)| [at.as_micros(), *amount]);
            (1, std::iter::once(sum).chain(logged).collect())
        }
        Part::Calendar { end, used, late } => (2, vec![end.as_micros(), *used, *late]),
        Part::Slots(held) => {
            let slot = |slot: &SlotPart| [slot.stamp, slot.expires_at.as_micros(), slot.places];
            (3, held.iter().flat_map(slot).collect())
        }
    };
    let length = i64::try_from(numbers.len()).unwrap_or(i64::MAX);
    [kind, length].into_iter().chain(numbers.into_iter().map(integer)).collect()
}

fn parts_of(mut flat: &[i64]) -> Option<Vec<Part>> {
    let mut parts = Vec::new();
    while let [kind, length, rest @ ..] = flat {
        let (numbers, rest) = rest.split_at_checked(usize::try_from(*length).ok()?)?;
        parts.push(match (kind, numbers) {
            (0, [used]) => Part::Bucket { used: natural(*used), lows: Vec::new() },
            (0, [used, _, _, rises @ ..]) => {
                let mut low = 0;
                let lows = pairs(rises).map(|(stamp, rise)| {
                    low += rise;
                    (natural(stamp), natural(low))
                });
                Part::Bucket { used: natural(*used), lows: lows.collect() }
            }
            (1, [_, log @ ..]) => {
                Part::Window(pairs(log).map(|(at, amount)| (time(at), natural(amount))).collect())
            }
            (2, [end, used, late]) => {
                Part::Calendar { end: time(*end), used: natural(*used), late: natural(*late) }
            }
            (3, held) => {
                let held = triples(held).map(|[stamp, expires_at, places]| SlotPart {
                    stamp: natural(stamp),
                    expires_at: time(expires_at),
                    places: natural(places),
                });
                Part::Slots(held.collect())
            }
            _ => return None,
        });
        flat = rest;
    }
    flat.is_empty().then_some(parts)
}

fn runs(numbers: &[i64]) -> Vec<(u64, u64, Timestamp)> {
    triples(numbers).map(|[first, last, at]| (natural(first), natural(last), time(at))).collect()
}

fn pairs(numbers: &[i64]) -> impl Iterator<Item = (i64, i64)> + '_ {
    numbers.as_chunks().0.iter().map(|[one, other]| (*one, *other))
}

fn triples(numbers: &[i64]) -> impl Iterator<Item = [i64; 3]> + '_ {
    numbers.as_chunks().0.iter().copied()
}

/// A number of ours as PostgreSQL keeps it; all are below 2^53.
pub(crate) fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn natural(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

pub(crate) fn micros(at: Timestamp) -> i64 {
    integer(at.as_micros())
}

pub(crate) fn time(micros: i64) -> Timestamp {
    Timestamp::from_micros(natural(micros))
}

pub(crate) fn corrupt(why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("a row of the table entries does not decode: {why}"))
}
