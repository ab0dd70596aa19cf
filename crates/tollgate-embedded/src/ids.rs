//! Ask ids, in rows of their own.
//!
//! An id is recorded or removed together with a change of its entry, under the shard's lock, and the writer encodes both
//! under that lock, so that one commit has both. Until that commit is durable an id is looked up here, then in the database.
//!
//! ```text
//! key    [length of the entry's key, 4 bytes][the entry's key][id]
//! value  [CRC-32 of key and body, 4 bytes][body: time, stamp, digest and expiry, 8 bytes each]
//! ```
//! The body of an ask with several charges goes on with time and stamp of each charge after the first.

use std::collections::HashMap;

use tollgate::Timestamp;
use tollgate::core::{ChargeRecord, IdChange, Remembered};
use tollgate::gate::Operation;

use crate::row::{Key, checksum};

/// From this many on, durable ids are dropped.
const IDS_MIN: usize = 64;

/// The ids of one entry that may not be durable yet.
#[derive(Debug, Default)]
pub(crate) struct RecentIds(HashMap<Box<str>, Recent>);

/// What is stored of an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdRecord {
    pub(crate) given: Remembered,
    /// What the charges after the first got.
    pub(crate) others: Box<[ChargeRecord]>,
}

#[derive(Debug)]
struct Recent {
    /// The record of the id; `None` if it is removed.
    record: Option<IdRecord>,
    /// The batch of the write, once it is known.
    batch: Option<u64>,
}

impl RecentIds {
    /// Looks up `id` among the recent changes: the inner `None` is a removed id.
    pub(crate) fn find(&self, id: &str) -> Option<Option<&IdRecord>> {
        self.0.get(id).map(|recent| recent.record.as_ref())
    }

    /// Records the change of the operation's id; batches up to `durable` are in the database.
    pub(crate) fn change(&mut self, operation: &Operation<'_>, change: IdChange, durable: u64) {
        self.change_joint(operation, change, Vec::new(), durable);
    }

    /// Does the same for an ask with several charges, of which those after the first got `others`.
    pub(crate) fn change_joint(
        &mut self,
        operation: &Operation<'_>,
        change: IdChange,
        others: Vec<ChargeRecord>,
        durable: u64,
    ) {
        let record = match change {
            IdChange::Nothing => return,
            IdChange::Remember(given) => {
                Some(IdRecord { given, others: others.into_boxed_slice() })
            }
            IdChange::Forget => None,
        };
        if IDS_MIN <= self.0.len() {
            self.0.retain(|_, recent| recent.batch.is_none_or(|batch| durable < batch));
        }
        if let Some(id) = operation.id() {
            self.0.insert(id.into(), Recent { record, batch: None });
        }
    }

    /// Takes the changes that no batch has written, for `batch`.
    pub(crate) fn take_unwritten(
        &mut self,
        batch: u64,
    ) -> impl Iterator<Item = (&str, Option<&IdRecord>)> {
        let unwritten = self.0.iter_mut().filter(|(_, recent)| recent.batch.is_none());
        unwritten.map(move |(id, recent)| {
            recent.batch = Some(batch);
            (&**id, recent.record.as_ref())
        })
    }
}

/// Returns the key of the row of `id`.
pub(crate) fn key(entry: &Key, id: &str) -> Vec<u8> {
    let length = u32::try_from(entry.bytes().len()).unwrap_or(u32::MAX);
    [&length.to_le_bytes(), entry.bytes(), id.as_bytes()].concat()
}

/// Encodes the value of the row under `key`.
pub(crate) fn encode(key: &[u8], record: &IdRecord) -> Vec<u8> {
    let IdRecord { given, others } = record;
    let ChargeRecord { at, stamp } = given.charge;
    let first = [at.as_micros(), stamp, given.digest, given.expires_at.as_micros()];
    let others = others.iter().flat_map(|other| [other.at.as_micros(), other.stamp]);
    let body: Vec<u8> = first.into_iter().chain(others).flat_map(u64::to_le_bytes).collect();
    [&checksum(key, &body).to_le_bytes(), body.as_slice()].concat()
}

/// Decodes the row under `key`; `None` if it is damaged.
pub(crate) fn decode(key: &[u8], value: &[u8]) -> Option<IdRecord> {
    let (sum, body) = value.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*sum) != checksum(key, body) {
        return None;
    }
    let (numbers, []) = body.as_chunks::<8>() else { return None };
    let numbers: Vec<u64> = numbers.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
    let ([at, stamp, digest, expires_at], others) = numbers.split_first_chunk()?;
    let (others, []) = others.as_chunks() else { return None };
    let charge = |at, stamp| ChargeRecord { at: Timestamp::from_micros(at), stamp };
    Some(IdRecord {
        given: Remembered {
            charge: charge(*at, *stamp),
            digest: *digest,
            expires_at: Timestamp::from_micros(*expires_at),
        },
        others: others.iter().map(|[at, stamp]| charge(*at, *stamp)).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_every_number_of_charges_come_back() {
        let charge =
            |number| ChargeRecord { at: Timestamp::from_micros(100 + number), stamp: number };
        for others in 0..8 {
            let given =
                Remembered { charge: charge(0), digest: 7, expires_at: Timestamp::from_micros(9) };
            let record = IdRecord { given, others: (1..=others).map(charge).collect() };
            let value = encode(b"key", &record);
            assert_eq!(decode(b"key", &value), Some(record));
            assert_eq!(decode(b"other", &value), None);
            let cut = &value[4..value.len() - 8];
            let cut = [&checksum(b"key", cut).to_le_bytes(), cut].concat();
            assert_eq!(decode(b"key", &cut), None, "a number is missing");
        }
    }
}
