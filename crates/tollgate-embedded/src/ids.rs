//! Ask ids, in rows of their own.
//!
//! An id is recorded or removed together with a change of its entry, under the shard's lock, and the writer encodes both
//! under that lock, so that one commit has both. Until that commit is durable an id is looked up here, then in the database.
//!
//! ```text
//! key    [length of the entry's key, 4 bytes][the entry's key][id]
//! value  [CRC-32 of key and body, 4 bytes][body: time, stamp, digest and expiry, 8 bytes each]
//! ```

use std::collections::HashMap;

use tollgate::Timestamp;
use tollgate::core::{ChargeRecord, IdChange, Known, Remembered};
use tollgate::gate::Operation;

use crate::row::{Key, checksum};

/// From this many on, durable ids are dropped.
const IDS_MIN: usize = 64;

/// The ids of one entry that may not be durable yet.
#[derive(Debug, Default)]
pub(crate) struct RecentIds(HashMap<Box<str>, Recent>);

#[derive(Debug)]
struct Recent {
    /// The record of the id; `None` if it is removed.
    given: Option<Remembered>,
    /// The batch of the write, once it is known.
    batch: Option<u64>,
}

impl RecentIds {
    /// Looks up `id` among the recent changes.
    pub(crate) fn known(&self, id: &str) -> Option<Known> {
        let recent = self.0.get(id)?;
        Some(recent.given.map_or(Known::New, Known::Before))
    }

    /// Records the change of the operation's id; batches up to `durable` are in the database.
    pub(crate) fn change(&mut self, operation: &Operation<'_>, change: IdChange, durable: u64) {
        let given = match change {
            IdChange::Nothing => return,
            IdChange::Remember(given) => Some(given),
            IdChange::Forget => None,
        };
        if IDS_MIN <= self.0.len() {
            self.0.retain(|_, recent| recent.batch.is_none_or(|batch| durable < batch));
        }
        if let Some(id) = operation.id() {
            self.0.insert(id.into(), Recent { given, batch: None });
        }
    }

    /// Takes the changes that no batch has written, for `batch`.
    pub(crate) fn take_unwritten(
        &mut self,
        batch: u64,
    ) -> impl Iterator<Item = (&str, Option<Remembered>)> {
        let unwritten = self.0.iter_mut().filter(|(_, recent)| recent.batch.is_none());
        unwritten.map(move |(id, recent)| {
            recent.batch = Some(batch);
            (&**id, recent.given)
        })
    }
}

/// Returns the key of the row of `id`.
pub(crate) fn key(entry: &Key, id: &str) -> Vec<u8> {
    let length = u32::try_from(entry.bytes().len()).unwrap_or(u32::MAX);
    [&length.to_le_bytes(), entry.bytes(), id.as_bytes()].concat()
}

/// Encodes the value of the row under `key`.
pub(crate) fn encode(key: &[u8], given: &Remembered) -> Vec<u8> {
    let ChargeRecord { at, stamp } = given.charge;
    let numbers = [at.as_micros(), stamp, given.digest, given.expires_at.as_micros()];
    let body = numbers.map(u64::to_le_bytes).concat();
    [&checksum(key, &body).to_le_bytes(), body.as_slice()].concat()
}

/// Decodes the row under `key`; `None` if it is damaged.
pub(crate) fn decode(key: &[u8], value: &[u8]) -> Option<Remembered> {
    let (sum, body) = value.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*sum) != checksum(key, body) {
        return None;
    }
    let (numbers, []) = body.as_chunks::<8>() else { return None };
    let [at, stamp, digest, expires_at] =
        <[[u8; 8]; 4]>::try_from(numbers).ok()?.map(u64::from_le_bytes);
    Some(Remembered {
        charge: ChargeRecord { at: Timestamp::from_micros(at), stamp },
        digest,
        expires_at: Timestamp::from_micros(expires_at),
    })
}
