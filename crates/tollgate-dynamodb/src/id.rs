//! Ask ids: an item each, under a key of its own, written in one transaction with the charge.
//!
//! ```text
//! pk   /policy/length of subject/subject/id
//! x    when the id is forgotten, µs     d    the digest of the ask
//! s    the stamp of the charge          a    when it was charged, µs
//! ttl  when it may be deleted, s
//! m    of an ask with several charges, when the others were charged and their stamps, packed
//! ```
//!
//! An ask without an id is a single write. An ask with one is a compare-and-swap of the entry together with the item of the
//! id, which must be missing or expired: the second of two repeats fails that condition, reads the item, and returns its
//! permit. A release deletes the item in the same transaction, so that no repeat returns a released permit.

use tollgate::Error;
use tollgate::core::{ChargeRecord, Remembered, Timestamp};
use tollgate::gate::Operation;

use crate::conditional_update::PRUNE_SLACK;
use crate::expression::{Expression, to_bytes, to_number};
use crate::item::{AT, Attributes, Item, KEY, TTL, corrupt};
use crate::packed::{Packer, unpack};

const EXPIRES: &str = "x";
const STAMP: &str = "s";
const DIGEST: &str = "d";
const OTHERS: &str = "m";

/// Returns the key of the item of the operation's id. No policy has an empty name, so no entry is there.
pub(crate) fn key_of(operation: &Operation<'_>) -> Option<String> {
    let (id, subject) = (operation.id()?, operation.subject());
    Some(format!("/{}/{}/{subject}/{id}", operation.policy().name(), subject.len()))
}

/// The write of an id, in the transaction of a swap.
#[derive(Debug)]
pub(crate) struct IdWrite {
    pub(crate) key: String,
    /// The whole item without its key; `None` deletes it.
    pub(crate) item: Option<Attributes>,
    pub(crate) condition: Expression,
}

impl IdWrite {
    /// Returns the permission that the write needs.
    pub(crate) const fn action(&self) -> &'static str {
        if self.item.is_some() { "PutItem" } else { "DeleteItem" }
    }

    /// Stores `given`, if the id is still as `known` at `now`.
    pub(crate) fn remember(
        key: String,
        given: &Remembered,
        known: Option<&Remembered>,
        now: Timestamp,
    ) -> Self {
        let mut condition = Expression::default();
        match known {
            Some(known) => condition.only_if_is(STAMP, known.charge.stamp.into()),
            None => condition.only_if_at_most(EXPIRES, now.as_micros().into()),
        }
        let ttl = (given.expires_at + PRUNE_SLACK).as_micros().div_ceil(1_000_000);
        let numbers = [
            (EXPIRES, given.expires_at.as_micros()),
            (STAMP, given.charge.stamp),
            (AT, given.charge.at.as_micros()),
            (DIGEST, given.digest),
            (TTL, ttl),
        ];
        let item = numbers.map(|(name, number)| (name.to_owned(), to_number(number.into())));
        Self { key, item: Some(Attributes::from(item)), condition }
    }

    /// Stores what the charges after the first got, too. If the id was known, those of then must still be as `known`: a
    /// first charge in shadow mode has no stamp of its own.
    pub(crate) fn with_others(
        mut self,
        others: &[ChargeRecord],
        known: Option<&[ChargeRecord]>,
    ) -> Self {
        match known {
            Some([]) => self.condition.only_if_missing(OTHERS),
            Some(known) => self.condition.only_if_equal(OTHERS, to_bytes(write_others(known))),
            None => {}
        }
        if let Some(item) = &mut self.item {
            item.insert(OTHERS.to_owned(), to_bytes(write_others(others)));
        }
        self
    }

    /// Deletes the id, if it still is that of `charge`, which may be one in shadow mode.
    pub(crate) fn forget_charge(key: String, charge: ChargeRecord) -> Self {
        let mut write = Self::forget(key, charge.stamp);
        write.condition.only_if_is(AT, charge.at.as_micros().into());
        write
    }

    /// Deletes the id, if it still is that of the charge `stamp`.
    pub(crate) fn forget(key: String, stamp: u64) -> Self {
        let mut condition = Expression::default();
        condition.only_if_is(STAMP, stamp.into());
        Self { key, item: None, condition }
    }
}

/// Parses the item of an id.
pub(crate) fn remembered(item: &Item) -> Result<Remembered, Error> {
    let number = |name: &str| {
        item.small(name).ok_or_else(|| corrupt(&format!("the id {:?} has no {name:?}", key(item))))
    };
    Ok(Remembered {
        charge: ChargeRecord { at: Timestamp::from_micros(number(AT)?), stamp: number(STAMP)? },
        digest: number(DIGEST)?,
        expires_at: Timestamp::from_micros(number(EXPIRES)?),
    })
}

fn write_others(others: &[ChargeRecord]) -> Vec<u8> {
    let mut packer = Packer::default();
    for other in others {
        packer.push(other.at.as_micros());
        packer.push(other.stamp);
    }
    packer.0
}

/// Parses what the charges after the first got under an id.
pub(crate) fn others(item: &Item) -> Result<Vec<ChargeRecord>, Error> {
    let numbers = unpack(item.bytes(OTHERS).unwrap_or_default())?;
    let record =
        |[at, stamp]: &[u64; 2]| ChargeRecord { at: Timestamp::from_micros(*at), stamp: *stamp };
    Ok(numbers.as_chunks().0.iter().map(record).collect())
}

fn key(item: &Item) -> &str {
    item.attributes.get(KEY).and_then(|key| key.as_s().ok()).map_or("", String::as_str)
}
