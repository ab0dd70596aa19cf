//! What a function in the database answers: what it did, when, and the row that decided.

use tokio_postgres::Row;
use tollgate::core::{Entry, Known, Remembered};
use tollgate::{Charge, Error, Policy, Timestamp};

use crate::row::{Stored, corrupt, natural, time};
use crate::version_3::Ids;

/// What a function answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) did: Did,
    pub(crate) now: Timestamp,
    /// The stamp of what was charged, or the new expiry of what was renewed.
    pub(crate) stamp: u64,
    /// The row, if there is one.
    pub(crate) stored: Option<Stored>,
    /// What the database knows of the id of the operation. In a schema of version 3, the row's own ids know it.
    pub(crate) known: Known,
    /// The ids in the row, if the schema is of version 3.
    pub(crate) ids: Option<Ids>,
}

/// What a function did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Did {
    /// Nothing but reading.
    Read,
    /// What it was asked to do.
    Wrote,
    /// Lost every race that it is allowed to lose.
    Contended,
    /// Nothing: the whole row has to be looked at.
    Unsure,
    /// Nothing: too many permits wait to be settled.
    Full,
}

impl Answer {
    /// Reads the row that a function answered with.
    pub(crate) fn read(row: &Row) -> Result<Self, Error> {
        let wrong = |error: tokio_postgres::Error| corrupt("a column is missing").caused_by(error);
        let did: &str = row.try_get("did").map_err(wrong)?;
        let did = match did {
            "read" => Did::Read,
            "settled" | "renewed" | "closed" | "reset" => Did::Wrote,
            "contended" => Did::Contended,
            other => return Err(corrupt(&format!("{other:?} was done"))),
        };
        let now = time(row.try_get("now_us").map_err(wrong)?);
        let stamp: Option<i64> = row.try_get("stamp").map_err(wrong)?;
        let at: Option<i64> = row.try_get("at_us").map_err(wrong)?;
        let numbers = |column: &str| -> Result<Vec<i64>, Error> {
            Ok(row.try_get::<_, Option<Vec<i64>>>(column).map_err(wrong)?.unwrap_or_default())
        };
        let number = |column: &str| -> Result<i64, Error> {
            Ok(row.try_get::<_, Option<i64>>(column).map_err(wrong)?.unwrap_or_default())
        };
        let stored = match at {
            None => None,
            Some(at) => Some(Stored {
                revision: number("revision")?,
                shape: row
                    .try_get::<_, Option<Vec<u8>>>("shape")
                    .map_err(wrong)?
                    .unwrap_or_default(),
                at,
                next_stamp: number("next_stamp")?,
                states: numbers("states")?,
                settled: numbers("settled")?,
                settled_floor: number("settled_floor")?,
                closed: numbers("closed")?,
                changed: numbers("changed")?,
                absent_at: 0,
            }),
        };
        let has = |name: &str| row.columns().iter().any(|column| column.name() == name);
        let (known, ids) = if has("id_numbers") {
            let names = row.try_get::<_, Option<Vec<String>>>("ids").map_err(wrong)?;
            let ids = Ids::read(names.unwrap_or_default(), &numbers("id_numbers")?)?;
            (Known::New, Some(ids))
        } else {
            (known(&numbers("given")?)?, None)
        };
        Ok(Self { did, now, stamp: natural(stamp.unwrap_or(0)), stored, known, ids })
    }

    /// Reads the array that `spend` answers with.
    pub(crate) fn of_spend(numbers: &[i64]) -> Result<Self, Error> {
        let short = || corrupt("an answer ends too early");
        let (did, rest) = numbers.split_first().ok_or_else(short)?;
        let did = match did {
            0 => Did::Read,
            1 => Did::Wrote,
            2 => Did::Contended,
            4 => Did::Full,
            _ => Did::Unsure,
        };
        let now = time(*rest.first().ok_or_else(short)?);
        let nothing = Self { did, now, stamp: 0, stored: None, known: Known::New, ids: None };
        let [_, stamp, at, next_stamp, rest @ ..] = rest else { return Ok(nothing) };
        if did == Did::Unsure {
            return Ok(nothing);
        }
        let (closed, rest) = counted(rest).ok_or_else(short)?;
        let (given, states) = counted(rest).ok_or_else(short)?;
        let stored = (0 <= *at).then(|| Stored {
            at: *at,
            next_stamp: *next_stamp,
            states: states.to_vec(),
            closed: closed.to_vec(),
            ..Stored::default()
        });
        Ok(Self { did, now, stamp: natural(*stamp), stored, known: known(given)?, ids: None })
    }

    /// The entry, or a fresh one where there is no row.
    pub(crate) fn entry(&self, policy: &Policy) -> Result<Entry, Error> {
        let policy = if self.ids.is_some() { policy.with_exact_logs() } else { policy };
        match &self.stored {
            Some(stored) => stored.to_entry(policy),
            None => Ok(Entry::fresh(policy, self.now)),
        }
    }
}

/// What the numbers of an id say: admitted at, stamp, digest, expires at; without any, the id is new.
fn known(given: &[i64]) -> Result<Known, Error> {
    match given {
        [] => Ok(Known::New),
        [at, stamp, digest, expires_at] => Ok(Known::Before(Remembered {
            charge: Charge { at: time(*at), stamp: natural(*stamp) },
            digest: natural(*digest),
            expires_at: time(*expires_at),
        })),
        _ => Err(corrupt("an id has other than four numbers")),
    }
}

/// Splits off as many numbers as the first one says.
fn counted(numbers: &[i64]) -> Option<(&[i64], &[i64])> {
    let (count, rest) = numbers.split_first()?;
    rest.split_at_checked(usize::try_from(*count).ok()?)
}
