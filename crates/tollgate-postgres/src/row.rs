//! A row of the table as an entry of the core, and back.
//!
//! The functions in the database compute on plain numbers; the core reads and writes entries as bytes. Both are the same
//! parts in the same order, so the bytes of version 1 are the bridge: every number goes through the checks of the core's
//! own decoder, and what does not fit together is `Corrupt`, not a wrong decision.

use serde::{Deserialize, Serialize};
use tollgate::core::{Entry, bounds, codec, standings};
use tollgate::{Error, ErrorKind, Policy, Timestamp};

use crate::quote;

/// The columns of a row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stored {
    pub(crate) revision: i64,
    pub(crate) shape: Vec<u8>,
    pub(crate) at: i64,
    pub(crate) next_stamp: i64,
    pub(crate) states: Vec<i64>,
    pub(crate) ids: Vec<String>,
    pub(crate) id_numbers: Vec<i64>,
    pub(crate) settled: Vec<i64>,
    pub(crate) settled_floor: i64,
    pub(crate) closed: Vec<i64>,
    pub(crate) changed: Vec<i64>,
    pub(crate) absent_at: i64,
}

/// The entry as the core writes it, version 1.
#[derive(Serialize, Deserialize)]
struct Wire {
    at: u64,
    next_stamp: u64,
    states: Vec<State>,
    ids: Vec<Id>,
    settled: Vec<(u64, u64, u64)>,
    settled_floor: u64,
    closed: Vec<(u64, u64)>,
    changed: Option<(u64, u64)>,
}

#[derive(Serialize, Deserialize)]
enum State {
    Bucket(u64),
    Window(Vec<(u64, u64)>),
    Calendar { end: u64, used: u64, late: u64 },
    Slots(Vec<(u64, u64, u64)>),
}

#[derive(Serialize, Deserialize)]
struct Id {
    id: String,
    amounts: Vec<u64>,
    admitted_at: u64,
    stamp: u64,
    expires_at: u64,
}

const _: () = assert!(codec::VERSION == 1, "the core writes entries another way now");

impl Stored {
    /// The entry of `policy`, in the numbers it was written with.
    pub(crate) fn to_entry(&self, policy: &Policy) -> Result<Entry, Error> {
        // An answer of `spend` has the shape of the policy that was asked for.
        let shape = if self.shape.is_empty() { policy.shape_bytes() } else { &self.shape };
        let wire = Wire {
            at: natural(self.at),
            next_stamp: natural(self.next_stamp),
            states: states_of(&self.states).ok_or_else(|| corrupt("its states end too early"))?,
            ids: self.ids()?,
            settled: triples(&self.settled),
            settled_floor: natural(self.settled_floor),
            closed: self
                .closed
                .chunks_exact(2)
                .map(|pair| (natural(pair[0]), natural(pair[1])))
                .collect(),
            changed: match self.changed.as_slice() {
                [] => None,
                [stamp, at] => Some((natural(*stamp), natural(*at))),
                _ => return Err(corrupt("its change of numbers is not a stamp and a time")),
            },
        };
        let length = u16::try_from(shape.len()).map_err(|_| corrupt("its shape is too long"))?;
        let mut bytes = vec![codec::VERSION];
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(shape);
        let bytes =
            postcard::to_extend(&wire, bytes).map_err(|error| corrupt(&error.to_string()))?;
        Ok(codec::decode(&bytes, policy)?)
    }

    fn ids(&self) -> Result<Vec<Id>, Error> {
        if self.ids.is_empty() {
            return Ok(Vec::new());
        }
        let width = self.id_numbers.len() / self.ids.len();
        if width < 3 || self.id_numbers.len() != width * self.ids.len() {
            return Err(corrupt("its ids and their numbers do not belong together"));
        }
        let all = self.ids.iter().zip(self.id_numbers.chunks_exact(width));
        Ok(all
            .map(|(id, numbers)| Id {
                id: quote::restore(id),
                amounts: numbers[3..].iter().copied().map(natural).collect(),
                admitted_at: natural(numbers[0]),
                stamp: natural(numbers[1]),
                expires_at: natural(numbers[2]),
            })
            .collect())
    }

    /// The columns of `entry`; the revision is left to the caller.
    pub(crate) fn of(entry: &Entry) -> Result<Self, Error> {
        let mut bytes = Vec::new();
        codec::encode(entry, &mut bytes);
        let shape = entry.policy().shape_bytes();
        let body = bytes.get(3 + shape.len()..).ok_or_else(|| corrupt("it is too short"))?;
        let wire: Wire = postcard::from_bytes(body).map_err(|error| corrupt(&error.to_string()))?;
        let absent_at = absent_at(entry, &wire);
        Ok(Self {
            revision: 0,
            shape: shape.to_vec(),
            at: integer(wire.at),
            next_stamp: integer(wire.next_stamp),
            states: wire.states.iter().flat_map(State::numbers).collect(),
            ids: wire.ids.iter().map(|id| quote::store(&id.id)).collect(),
            id_numbers: wire.ids.iter().flat_map(Id::numbers).collect(),
            settled: wire
                .settled
                .iter()
                .flat_map(|run| [run.0, run.1, run.2])
                .map(integer)
                .collect(),
            settled_floor: integer(wire.settled_floor),
            closed: wire.closed.iter().flat_map(|one| [one.0, one.1]).map(integer).collect(),
            changed: wire.changed.into_iter().flat_map(|one| [one.0, one.1]).map(integer).collect(),
            absent_at: integer(absent_at.as_micros()),
        })
    }
}

/// From when on the entry says what an absent one says.
fn absent_at(entry: &Entry, wire: &Wire) -> Timestamp {
    let full = standings(entry, entry.at()).into_iter().filter_map(|standing| standing.full_at);
    let ids = wire.ids.iter().map(|id| id.expires_at);
    let closed = wire.closed.iter().map(|(_, until)| *until);
    let times = ids.chain(closed).chain([wire.at, wire.next_stamp]).map(Timestamp::from_micros);
    // Permits can be settled until they are too old: those that were, and those that give nothing back.
    let permits = wire.settled.iter().map(|run| run.2).chain(wire.changed.map(|(_, at)| at));
    let too_old = permits.map(|at| Timestamp::from_micros(at) + bounds::PERMIT_TTL);
    full.chain(times).chain(too_old).max().unwrap_or(Timestamp::MAX)
}

impl State {
    fn numbers(&self) -> Vec<i64> {
        let (kind, numbers): (i64, Vec<u64>) = match self {
            Self::Bucket(used) => (0, vec![*used]),
            Self::Window(log) => {
                let sum = log.iter().map(|(_, amount)| *amount).sum();
                let pairs = log.iter().flat_map(|(at, amount)| [*at, *amount]);
                (1, std::iter::once(sum).chain(pairs).collect())
            }
            Self::Calendar { end, used, late } => (2, vec![*end, *used, *late]),
            Self::Slots(held) => {
                (3, held.iter().flat_map(|slot| [slot.0, slot.1, slot.2]).collect())
            }
        };
        let length = i64::try_from(numbers.len()).unwrap_or(i64::MAX);
        [kind, length].into_iter().chain(numbers.into_iter().map(integer)).collect()
    }
}

impl Id {
    fn numbers(&self) -> impl Iterator<Item = i64> + '_ {
        let fixed = [self.admitted_at, self.stamp, self.expires_at];
        fixed.into_iter().chain(self.amounts.iter().copied()).map(integer)
    }
}

fn states_of(mut flat: &[i64]) -> Option<Vec<State>> {
    let mut states = Vec::new();
    while let [kind, length, rest @ ..] = flat {
        let (numbers, rest) = rest.split_at_checked(usize::try_from(*length).ok()?)?;
        states.push(match (kind, numbers) {
            (0, [used]) => State::Bucket(natural(*used)),
            (1, [_, log @ ..]) => State::Window(
                log.chunks_exact(2).map(|pair| (natural(pair[0]), natural(pair[1]))).collect(),
            ),
            (2, [end, used, late]) => {
                State::Calendar { end: natural(*end), used: natural(*used), late: natural(*late) }
            }
            (3, held) => State::Slots(triples(held)),
            _ => return None,
        });
        flat = rest;
    }
    flat.is_empty().then_some(states)
}

fn triples(numbers: &[i64]) -> Vec<(u64, u64, u64)> {
    let all = numbers.chunks_exact(3);
    all.map(|three| (natural(three[0]), natural(three[1]), natural(three[2]))).collect()
}

/// A number of ours as PostgreSQL keeps it; all are below 2^53.
pub(crate) fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn natural(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

pub(crate) fn corrupt(why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("a row of the table entries does not decode: {why}"))
}
