//! What a script answers, and the entry it decided on.

use tollgate::core::Entry;
use tollgate::{Error, Policy, Timestamp};

use crate::entry::{Fields, Header, corrupt, remembered};
use crate::msgpack::{Value, read};

/// What a script answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: Status,
    /// The time on the deciding clock.
    pub(crate) now: Timestamp,
    pub(crate) extra: Value,
    pub(crate) header: Value,
    pub(crate) logs: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Done,
    Same,
    OtherShape,
    OtherWindow,
    Expired,
    Contended,
    Version,
}

impl Answer {
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Error> {
        let unreadable = || corrupt("the answer of a script is unreadable");
        let Some(Value::List(values)) = read(bytes) else { return Err(unreadable()) };
        let Ok([status, now, extra, header, logs]) = <[Value; 5]>::try_from(values) else {
            return Err(unreadable());
        };
        let status = match status.number() {
            Some(1) => Status::Done,
            Some(2) => Status::Same,
            Some(3) => Status::OtherShape,
            Some(4) => Status::OtherWindow,
            Some(5) => Status::Expired,
            Some(6) => Status::Contended,
            Some(7) => Status::Version,
            _ => return Err(unreadable()),
        };
        let now = now.number().map(Timestamp::from_micros).ok_or_else(unreadable)?;
        Ok(Self { status, now, extra, header, logs })
    }

    /// The entry that was decided on, with what is remembered of `id`.
    pub(crate) fn entry(&self, policy: &Policy, id: &str) -> Result<Entry, Error> {
        let header = self.header.numbers().ok_or_else(|| corrupt("an answer has no header"))?;
        let record = self.extra.numbers().filter(|_| !id.is_empty());
        let known = record.map(|record| remembered(id, &record, policy)).transpose()?;
        // A script that answers with an id found a slot of its permit, if it took any; whose the others are is not said.
        let stamp = known.as_ref().map_or(0, |known| known.stamp);
        let log = |place, width| self.log(place, width, stamp);
        let mut parts = Header::new(header)?.parts(log)?;
        parts.ids.extend(known);
        Ok(parts.into_entry(policy)?)
    }

    /// The entry that was read whole, in the numbers it was written with; a fresh one if there is none.
    pub(crate) fn stored(&self, policy: &Policy) -> Result<Entry, Error> {
        let stored = Fields::of(&self.extra)?.entry(policy)?;
        Ok(stored.unwrap_or_else(|| Entry::fresh(policy, self.now)))
    }

    /// The log of the limit at `place`, shortened by the script to what an answer needs. Slots come without their
    /// stamps and get `stamp`.
    fn log(&self, place: usize, width: usize, stamp: u64) -> Result<Vec<u64>, Error> {
        let unreadable = || corrupt("an answer has no log");
        for log in self.logs.list().ok_or_else(unreadable)? {
            let [number, entries] = log.list().ok_or_else(unreadable)? else {
                return Err(unreadable());
            };
            if number.number() == Some(place as u64 + 1) {
                let pairs = entries.numbers().ok_or_else(unreadable)?;
                let (pairs, _) = pairs.as_chunks();
                let full = |[at, amount]: &[u64; 2]| match width {
                    3 => vec![*at, stamp, *amount],
                    _ => vec![*at, *amount],
                };
                return Ok(pairs.iter().flat_map(full).collect());
            }
        }
        Err(unreadable())
    }
}
