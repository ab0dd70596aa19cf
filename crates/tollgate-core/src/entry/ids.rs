//! Ask ids within their horizon: a repeat is recognised and charged once.

use std::collections::VecDeque;

use crate::bounds::IDS_MAX;
use crate::costs::Amounts;
use crate::time::Timestamp;

/// What an ask with this id was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remembered {
    pub(crate) id: Box<str>,
    pub(crate) amounts: Amounts,
    pub(crate) admitted_at: Timestamp,
    pub(crate) stamp: u64,
    pub(crate) expires_at: Timestamp,
}

/// The ids of one entry, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Ids(VecDeque<Remembered>);

impl Ids {
    /// The ids as they were stored, or nothing if there are too many.
    pub(crate) fn from_all(all: Vec<Remembered>) -> Option<Self> {
        (all.len() <= IDS_MAX).then(|| Self(all.into()))
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &Remembered> {
        self.0.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Remembered> {
        self.0.iter_mut()
    }

    pub(crate) fn find(&self, id: &str, now: Timestamp) -> Option<&Remembered> {
        self.0.iter().find(|known| &*known.id == id && now < known.expires_at)
    }

    pub(crate) fn live(&self, now: Timestamp) -> usize {
        self.0.iter().filter(|known| now < known.expires_at).count()
    }

    pub(crate) fn forget_expired(&mut self, now: Timestamp) {
        self.0.retain(|known| now < known.expires_at);
    }

    pub(crate) fn remember(&mut self, id: Remembered) {
        self.0.retain(|known| known.id != id.id);
        self.0.push_back(id);
    }

    /// Forgets the id of the charge with this stamp.
    pub(crate) fn forget(&mut self, stamp: u64) {
        self.0.retain(|known| known.stamp != stamp);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
