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
        self.only().at()
    }

    /// Returns the number in the data of the status.
    pub(crate) fn number(&self) -> Option<u64> {
        first_word(self.extra()).map(|(number, _)| number)
    }

    fn body(&self) -> &[u8] {
        self.bytes.get(self.body..).unwrap_or_default()
    }

    /// Returns the only charge of the reply.
    fn only(&self) -> ChargeReply<'_> {
        ChargeReply { was_charged: self.is_charge(), entry: self.body() }
    }

    /// Returns the entry after a charge, and the charge.
    pub(crate) fn charged(&self, policy: &Policy) -> Result<(Entry, ChargeRecord), Error> {
        self.only().charged(policy)
    }

    /// Returns the entry; a fresh one if there is none.
    pub(crate) fn entry(&self, policy: &Policy) -> Result<Entry, Error> {
        self.only().entry(policy, self.now)
    }

    /// Returns the record of the ask's id, if the script stopped there.
    pub(crate) fn known(&self) -> Result<Known, Error> {
        known(self.extra())
    }

    /// Returns the charges in the reply of the joint script.
    pub(crate) fn charges(&self) -> Result<Vec<ChargeReply<'_>>, Error> {
        let mut rest = self.body();
        let mut charges = Vec::new();
        while let Some((was_charged, sized)) = rest.split_first() {
            let cut = sized.split_first_chunk().and_then(|(length, sized)| {
                sized.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)
            });
            let (entry, after) = cut.ok_or_else(|| corrupt("a charge in a reply is cut"))?;
            charges.push(ChargeReply { was_charged: *was_charged == 1, entry });
            rest = after;
        }
        Ok(charges)
    }

    /// Returns the index of the charge that ended the joint script early.
    pub(crate) fn index(&self) -> Result<usize, Error> {
        let index = self.body().first().ok_or_else(|| corrupt("a reply names no charge"))?;
        Ok(usize::from(*index))
    }

    /// Returns the fields of the stored entry.
    pub(crate) fn fields(&self) -> Result<Fields, Error> {
        Fields::parse(self.extra())
    }
}

/// One charge in a reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChargeReply<'a> {
    /// Whether the entry is charged.
    pub(crate) was_charged: bool,
    entry: &'a [u8],
}

impl ChargeReply<'_> {
    /// Returns the time of the entry, if there is one.
    pub(crate) fn at(&self) -> Option<Timestamp> {
        let (at, _) = first_word(self.entry.get(1..)?)?;
        Some(Timestamp::from_micros(at))
    }

    /// Returns the entry after the charge, and the charge, whose stamp is the one before the next.
    pub(crate) fn charged(&self, policy: &Policy) -> Result<(Entry, ChargeRecord), Error> {
        let parts = entry::parts(policy, self.entry)?;
        let charge = ChargeRecord { at: parts.at, stamp: parts.next_stamp.saturating_sub(1) };
        Ok((parts.into_entry(policy)?, charge))
    }

    /// Returns the entry; one that is fresh at `now` if there is none.
    pub(crate) fn entry(&self, policy: &Policy, now: Timestamp) -> Result<Entry, Error> {
        if self.entry.is_empty() {
            return Ok(Entry::fresh(policy, now));
        }
        Ok(entry::parts(policy, self.entry)?.into_entry(policy)?)
    }
}
