//! Ask ids in a row of version 3.

use tollgate::core::{Amounts, ChargeRecord, Entry, IdChange, Known, Remembered};
use tollgate::gate::Operation;
use tollgate::{Ask, Error, ErrorKind, Policy, Timestamp};

use crate::call;
use crate::row::{corrupt, integer, micros, natural, time};

/// The most ids that a program of version 3 reads.
const IDS_MAX: usize = 1_024;

/// The ids of a row, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ids(Vec<Id>);

/// The record of an id.
#[derive(Clone, Debug)]
struct Id {
    /// As it is stored.
    name: String,
    at: i64,
    stamp: i64,
    expires_at: i64,
    /// The amount of each unit.
    amounts: Vec<i64>,
}

impl Ids {
    /// Reads the columns `ids` and `id_numbers`.
    pub(crate) fn read(names: Vec<String>, numbers: &[i64]) -> Result<Self, Error> {
        let wrong = || corrupt("its ids and their numbers do not belong together");
        if names.is_empty() {
            return Ok(Self::default());
        }
        let width = numbers.len() / names.len();
        if width < 3 || numbers.len() != width * names.len() {
            return Err(wrong());
        }
        let all = names.into_iter().zip(numbers.chunks_exact(width));
        let ids = all.map(|(name, numbers)| match numbers {
            [at, stamp, expires_at, amounts @ ..] => Ok(Id {
                name,
                at: *at,
                stamp: *stamp,
                expires_at: *expires_at,
                amounts: amounts.to_vec(),
            }),
            _ => Err(wrong()),
        });
        Ok(Self(ids.collect::<Result<_, Error>>()?))
    }

    /// The columns `ids` and `id_numbers`.
    pub(crate) fn columns(&self) -> (Vec<&str>, Vec<i64>) {
        let numbers = |id: &Id| {
            [id.at, id.stamp, id.expires_at].into_iter().chain(id.amounts.clone()).collect()
        };
        let names = self.0.iter().map(|id| id.name.as_str()).collect();
        (names, self.0.iter().flat_map(|id| -> Vec<i64> { numbers(id) }).collect())
    }

    /// Returns when the last id expires.
    pub(crate) fn expire_at(&self) -> i64 {
        self.0.iter().map(|id| id.expires_at).max().unwrap_or(0)
    }

    /// Returns the record of the operation's id, in a row that was written under `policy`.
    pub(crate) fn known(&self, operation: &Operation<'_>, policy: &Policy) -> Known {
        let name = operation.id().map(call::stored);
        let Some(id) = self.0.iter().rfind(|id| name.as_deref() == Some(&*id.name)) else {
            return Known::New;
        };
        let amounts = id.translated(policy, operation.policy());
        let amounts = Amounts::from_fn(|place| amounts.get(place).copied().map_or(0, natural));
        let costs = operation.policy().costs(&amounts);
        let ask = Ask::new(operation.policy(), operation.subject()).with_costs(&costs);
        // A mark of the same charge makes it the id of an ask of several charges.
        let is_joint = self.0.iter().any(|other| other.stamp == id.stamp && other.name != id.name);
        let digest = if is_joint { !ask.digest() } else { ask.digest() };
        Known::Before(Remembered { charge: id.charge(), digest, expires_at: time(id.expires_at) })
    }

    /// Returns the record of the id of a joint `operation`, which `mark` marks.
    pub(super) fn known_joint(&self, operation: &Operation<'_>, mark: &str) -> Known {
        let (Operation::Acquire(ask) | Operation::Charge(ask)) = operation else {
            return Known::New;
        };
        let name = ask.id_text().map(call::stored);
        let Some(id) = self.0.iter().rfind(|id| name.as_deref() == Some(&*id.name)) else {
            return Known::New;
        };
        let charge = id.charge();
        let is_same = self.charge(mark) == Some(charge);
        // Any other digest is a conflict.
        let digest = if is_same { ask.digest() } else { !ask.digest() };
        Known::Before(Remembered { charge, digest, expires_at: time(id.expires_at) })
    }

    /// Returns what is recorded under `name`.
    pub(super) fn charge(&self, name: &str) -> Option<ChargeRecord> {
        self.0.iter().find(|id| id.name == name).map(Id::charge)
    }

    /// Records the charge of `part` under `mark`.
    pub(super) fn with_mark(
        mut self,
        mark: &str,
        charge: ChargeRecord,
        expires_at: Timestamp,
        part: &Ask<'_>,
    ) -> Result<Self, Error> {
        self.0.retain(|id| id.name != mark);
        if IDS_MAX <= self.0.len() {
            return Err(too_many(part.subject()));
        }
        self.0.push(Id {
            name: mark.to_owned(),
            at: micros(charge.at),
            stamp: integer(charge.stamp),
            expires_at: micros(expires_at),
            amounts: call::amounts(part.policy(), part.amounts()),
        });
        Ok(self)
    }

    /// Returns the ids of `entry` after `operation`, given these under `policy`. Drops expired ids and those before a reset.
    pub(crate) fn after(
        mut self,
        policy: &Policy,
        entry: &Entry,
        operation: Option<&Operation<'_>>,
        change: IdChange,
    ) -> Result<Self, Error> {
        let runs = entry.parts().settled.runs;
        let reset = runs.first().filter(|(first, ..)| *first == 0).map(|(_, last, _)| *last);
        let released = match operation {
            Some(Operation::Release(permit)) => Some(integer(permit.grant().stamp)),
            _ => None,
        };
        self.0.retain(|id| {
            micros(entry.at()) < id.expires_at
                && reset.is_none_or(|last| last < natural(id.stamp))
                && released != Some(id.stamp)
        });
        if !policy.has_shape_of(entry.policy()) {
            for id in &mut self.0 {
                id.amounts = id.translated(policy, entry.policy());
            }
        }
        if let (Some(Operation::Acquire(ask) | Operation::Charge(ask)), IdChange::Remember(given)) =
            (operation, change)
            && let Some(id) = ask.id_text()
        {
            let name = call::stored(id).into_owned();
            self.0.retain(|id| id.name != name);
            if IDS_MAX <= self.0.len() {
                return Err(too_many(ask.subject()));
            }
            self.0.push(Id {
                name,
                at: micros(given.charge.at),
                stamp: integer(given.charge.stamp),
                expires_at: micros(given.expires_at),
                amounts: call::amounts(ask.policy(), ask.amounts()),
            });
        }
        Ok(self)
    }
}

impl Id {
    fn charge(&self) -> ChargeRecord {
        ChargeRecord { at: time(self.at), stamp: natural(self.stamp) }
    }

    /// Converts the amounts from the units of `from` to those of `to`.
    fn translated(&self, from: &Policy, to: &Policy) -> Vec<i64> {
        let amount = |unit: &str| {
            let place = from.units().position(|known| known == unit)?;
            self.amounts.get(place).copied()
        };
        to.units().map(|unit| amount(unit).unwrap_or(0)).collect()
    }
}

fn too_many(subject: &str) -> Error {
    Error::new(
        ErrorKind::Contended,
        format!(
            "postgres: with format = 3 a subject has at most {IDS_MAX} ids, and {subject:?} has that many; retry later or \
             without an id"
        ),
    )
}
