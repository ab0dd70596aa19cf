//! Replies of the functions in the database.

use tokio_postgres::Row;
use tollgate::core::{ChargeRecord, Entry, Known, Remembered};
use tollgate::{Error, Policy, Timestamp};

use crate::row::{Stored, corrupt, natural, time};
use crate::version_3::Ids;

/// The reply of a function.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) effect: Effect,
    pub(crate) now: Timestamp,
    /// The stamp of the charge, or the new expiry of renewed slots.
    pub(crate) stamp: u64,
    /// The row, if there is one.
    pub(crate) stored: Option<Stored>,
    /// The record of the operation's id; in a schema of version 3 it is in `ids`.
    pub(crate) known: Known,
    /// What the charges after the first got under that id.
    pub(crate) others: Vec<ChargeRecord>,
    /// The ids in the row, in a schema of version 3.
    pub(crate) ids: Option<Ids>,
}

/// The effect of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Read only.
    Read,
    /// Carried out.
    Wrote,
    /// Too many concurrent changes.
    Contended,
    /// None: the decision needs the whole row.
    Unsure,
    /// None: too many permits are not settled.
    Full,
}

impl Reply {
    /// Parses the row of a function.
    pub(crate) fn read(row: &Row) -> Result<Self, Error> {
        let wrong = |error: tokio_postgres::Error| corrupt("a column is missing").caused_by(error);
        let effect: &str = row.try_get("did").map_err(wrong)?;
        let effect = match effect {
            "read" => Effect::Read,
            "settled" | "renewed" | "closed" | "reset" => Effect::Wrote,
            "contended" => Effect::Contended,
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
        let ((known, others), ids) = if has("id_numbers") {
            let names = row.try_get::<_, Option<Vec<String>>>("ids").map_err(wrong)?;
            let ids = Ids::read(names.unwrap_or_default(), &numbers("id_numbers")?)?;
            ((Known::New, Vec::new()), Some(ids))
        } else {
            (known(&numbers("given")?)?, None)
        };
        Ok(Self { effect, now, stamp: natural(stamp.unwrap_or(0)), stored, known, others, ids })
    }

    /// Parses the array of `spend`.
    pub(crate) fn from_spend(numbers: &[i64]) -> Result<Self, Error> {
        let short = || corrupt("a reply is too short");
        let (effect, rest) = numbers.split_first().ok_or_else(short)?;
        let effect = match effect {
            0 => Effect::Read,
            1 => Effect::Wrote,
            2 => Effect::Contended,
            4 => Effect::Full,
            _ => Effect::Unsure,
        };
        let now = time(*rest.first().ok_or_else(short)?);
        let (known_now, others) = (Known::New, Vec::new());
        let nothing =
            Self { effect, now, stamp: 0, stored: None, known: known_now, others, ids: None };
        let [_, stamp, at, next_stamp, rest @ ..] = rest else { return Ok(nothing) };
        if effect == Effect::Unsure {
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
        let (known, _) = known(given)?;
        Ok(Self { stamp: natural(*stamp), stored, known, ..nothing })
    }

    /// Returns the entry; a fresh one without a row.
    pub(crate) fn entry(&self, policy: &Policy) -> Result<Entry, Error> {
        let policy = if self.ids.is_some() { policy.with_exact_logs() } else { policy };
        match &self.stored {
            Some(stored) => stored.to_entry(policy),
            None => Ok(Entry::fresh(policy, self.now)),
        }
    }
}

/// Parses the record of an id: charged at, stamp, digest, expires at; empty if it is new. The charges after the first follow
/// by charged at and stamp.
fn known(given: &[i64]) -> Result<(Known, Vec<ChargeRecord>), Error> {
    let record = |at: i64, stamp: i64| ChargeRecord { at: time(at), stamp: natural(stamp) };
    match given {
        [] => Ok((Known::New, Vec::new())),
        [at, stamp, digest, expires_at, others @ ..] if others.len() % 2 == 0 => {
            let known = Known::Before(Remembered {
                charge: record(*at, *stamp),
                digest: natural(*digest),
                expires_at: time(*expires_at),
            });
            let others = others.as_chunks().0.iter().map(|[at, stamp]| record(*at, *stamp));
            Ok((known, others.collect()))
        }
        _ => Err(corrupt("the record of an id has a wrong length")),
    }
}

/// Splits off a length-prefixed part.
fn counted(numbers: &[i64]) -> Option<(&[i64], &[i64])> {
    let (count, rest) = numbers.split_first()?;
    rest.split_at_checked(usize::try_from(*count).ok()?)
}
