//! Changes in the format before: read, decide here, compare-and-swap.
//!
//! Programs of the version before run their scripts on the same entries, so decisions follow their rules
//! ([`apply_older`](tollgate::core::apply_older)). An entry in the newest format stays in it.

use std::hash::{BuildHasher, RandomState};

use tokio::sync::{Semaphore, SemaphorePermit};
use tollgate::clock::SystemClock;
use tollgate::core::{Operation, Outcome, SettledPart};
use tollgate::internal::timeout;
use tollgate::{Error, Policy, Span, Timestamp};

use crate::args::{WORD, first_word, words};
use crate::entry::{Fields, IDS_BEFORE, STAYS_AT, VERSION, VERSION_BEFORE, pack_numbers};
use crate::gate::{Call, Redis, Unchanged};
use crate::options::{CARRIES_MAX, OLDER_TRIES_MAX};
use crate::script;

/// The number of ids from which on version 3 scans them at first.
const IDS_LOOK_BEFORE: u16 = 32;
/// The most runs of settled permits that programs of version 3 read.
const RUNS_MAX_BEFORE: usize = 256;

/// Semaphores for concurrent changes in the format before.
const LOCKS: usize = 256;

/// Serialises the changes of one entry in this process, so that they only compete with other processes.
#[derive(Debug)]
pub(crate) struct EntryLocks {
    places: [Semaphore; LOCKS],
    hasher: RandomState,
}

impl Default for EntryLocks {
    fn default() -> Self {
        Self { places: std::array::from_fn(|_| Semaphore::new(1)), hasher: RandomState::new() }
    }
}

impl EntryLocks {
    /// Waits for `key` for at most `most`, so that a server without replies does not block all callers in sequence.
    pub(crate) async fn take(&self, key: &str, most: Span) -> Option<SemaphorePermit<'_>> {
        let place = usize::try_from(self.hasher.hash_one(key) % LOCKS as u64).unwrap_or(0);
        timeout(&SystemClock, most, self.places.get(place)?.acquire()).await?.ok()
    }
}

/// What happens to the ids that version 3 has in an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdsBefore {
    Stay,
    /// Removes those of the charge with this stamp.
    Forget(u64),
    ForgetAll,
}

impl Fields {
    /// Returns until when version 3 keeps the entry for its settled permits.
    pub(crate) fn settled_until_before(&self) -> Timestamp {
        self.word_of(VERSION_BEFORE, STAYS_AT + IDS_BEFORE)
    }

    /// Encodes the ids of version 3 in the field `e`. They stay only under the same numbers, and the entry stays until the
    /// last of them expires, or until `stays`.
    pub(crate) fn ids_before(&self, policy: &Policy, ids: IdsBefore, stays: Timestamp) -> Vec<u8> {
        let stay = ids != IdsBefore::ForgetAll
            && self.version() == Some(VERSION_BEFORE)
            && self.get("p") == Some(policy.shape_bytes());
        let ids = self.hot().get(STAYS_AT..STAYS_AT + IDS_BEFORE).filter(|_| stay);
        let (first, until) = match ids.and_then(|ids| ids.split_last_chunk::<WORD>()) {
            Some((first, until)) => (first.to_vec(), first_word(until).map_or(0, |word| word.0)),
            None => ([&[0; 2], &IDS_LOOK_BEFORE.to_le_bytes(), &words([0])[..]].concat(), 0),
        };
        [first, words([until.max(stays.as_micros())])].concat()
    }
}

/// Encodes the settled permits of version 3. Beyond the most runs that it reads, the newest stay, and permits of the others
/// credit nothing.
pub(crate) fn settled_before(settled: &SettledPart) -> Option<(Vec<u8>, Vec<u8>)> {
    if *settled == SettledPart::default() {
        return None;
    }
    let dropped = settled.runs.len().saturating_sub(RUNS_MAX_BEFORE);
    let (older, newest) = settled.runs.split_at(dropped);
    let floor = older.last().map_or(settled.floor, |run| run.1.max(settled.floor));
    let runs = newest.iter().flat_map(|run| [run.0, run.1, run.2.as_micros()]);
    let all: Vec<u64> = [floor].into_iter().chain(runs).collect();
    Some((b"s".to_vec(), pack_numbers(&all)))
}

impl Redis {
    /// Whether this gate writes the format before.
    pub(crate) const fn is_older(&self) -> bool {
        self.options.format != VERSION
    }

    /// Whether the entry that replaces `old` is in the format before.
    pub(crate) fn writes_older(&self, old: &Fields) -> bool {
        self.version_after(old) != VERSION
    }

    /// Returns the version of the entry that replaces `old`.
    pub(crate) fn version_after(&self, old: &Fields) -> u8 {
        if old.version() == Some(VERSION) { VERSION } else { self.options.format }
    }

    /// Returns the most compare-and-swap attempts.
    pub(crate) const fn tries_max(&self) -> usize {
        if self.is_older() { OLDER_TRIES_MAX } else { CARRIES_MAX }
    }

    /// Decides `operation` in the core on the whole entry.
    pub(crate) async fn change_whole(&self, operation: Operation<'_>) -> Result<Outcome, Error> {
        let (policy, subject) = (operation.policy(), operation.subject());
        let _lock = self.locks.take(&self.key(policy, subject), self.options.attempt_timeout).await;
        let call = Call {
            id: operation.id(),
            unchanged: Unchanged::Reading,
            // The field of an id follows the list.
            list: Some(Vec::new()),
            ..Call::new(&script::WHOLE, policy, subject)
        };
        let reply = self.call(&call).await?;
        self.carried(operation, reply).await
    }
}
