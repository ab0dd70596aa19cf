//! Replies of scripts.

use tollgate::core::{ChargeRecord, Entry, Known};
use tollgate::{Error, Policy, Timestamp};

use crate::args::{WORD, first_word};
use crate::entry::{self, Fields, VERSION, corrupt, known};

/// The reply of a script.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: Status,
    /// The time of the decision.
    pub(crate) now: Timestamp,
    bytes: Vec<u8>,
    /// The offset of the entry, after the data of the status.
    body: usize,
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

/// A status, the time, and the length of what follows.
const HEAD: usize = 1 + WORD + 4;

impl Reply {
    pub(crate) fn read(bytes: Vec<u8>) -> Result<Self, Error> {
        let unreadable = || corrupt("the reply of a script is unreadable");
        let (status, rest) = bytes.split_first().ok_or_else(unreadable)?;
        // The time of an entry has the same offset as that of a reply.
        let (now, rest) = first_word(rest).ok_or_else(unreadable)?;
        let now = Timestamp::from_micros(now);
        let status = match *status {
            VERSION => return Ok(Self { status: Status::Done, now, bytes, body: 0 }),
            101 => Status::Done,
            102 => Status::Same,
            103 => Status::OtherShape,
            104 => Status::OtherWindow,
            105 => Status::Expired,
            106 => Status::Contended,
            107 => Status::Version,
            _ => return Err(unreadable()),
        };
        let (length, rest) = rest.split_first_chunk().ok_or_else(unreadable)?;
        let length = u32::from_le_bytes(*length) as usize;
        if rest.len() < length {
            return Err(unreadable());
        }
        Ok(Self { status, now, bytes, body: HEAD + length })
    }

    /// Returns the data of the status.
    pub(crate) fn extra(&self) -> &[u8] {
        self.bytes.get(HEAD..self.body).unwrap_or_default()
    }

    /// Whether a charge was made. The time is then that of the entry, which is never before the server's.
    pub(crate) fn is_charge(&self) -> bool {
        self.body == 0
    }

    /// Returns the time of the entry, if there is one.
    pub(crate) fn entry_at(&self) -> Option<Timestamp> {
        let (at, _) = first_word(self.body().get(1..)?)?;
        Some(Timestamp::from_micros(at))
    }

    /// Returns the number in the data of the status.
    pub(crate) fn number(&self) -> Option<u64> {
        first_word(self.extra()).map(|(number, _)| number)
    }

    fn body(&self) -> &[u8] {
        self.bytes.get(self.body..).unwrap_or_default()
    }

    /// Returns the entry after a charge, and the charge, whose stamp is the one before the next.
    pub(crate) fn charged(&self, policy: &Policy) -> Result<(Entry, ChargeRecord), Error> {
        let parts = entry::parts(policy, self.body())?;
        let charge = ChargeRecord { at: parts.at, stamp: parts.next_stamp.saturating_sub(1) };
        Ok((parts.into_entry(policy)?, charge))
    }

    /// Returns the entry; a fresh one if there is none.
    pub(crate) fn entry(&self, policy: &Policy) -> Result<Entry, Error> {
        if self.body().is_empty() {
            return Ok(Entry::fresh(policy, self.now));
        }
        Ok(entry::parts(policy, self.body())?.into_entry(policy)?)
    }

    /// Returns the record of the ask's id, if the script stopped there.
    pub(crate) fn known(&self) -> Result<Known, Error> {
        known(self.extra())
    }

    /// Returns the fields of the stored entry.
    pub(crate) fn fields(&self) -> Result<Fields, Error> {
        Fields::parse(self.extra())
    }
}
