//! Changes while entries are written in the format before: read the entry, decide here, write it back if nobody else did.
//!
//! Programs that know no other format run their scripts on the same entries. So what is written here says what theirs would have
//! said ([`apply_older`](tollgate::core::apply_older)), and where an entry is in the newest format already, none of them is
//! left and it stays in it.

use std::hash::{BuildHasher, RandomState};

use tokio::sync::{Semaphore, SemaphorePermit};
use tollgate::core::{Operation, Outcome, SettledPart};
use tollgate::{Error, Policy, Span, SystemClock, Timestamp, within};

use crate::args::{WORD, first_word, words};
use crate::entry::{Fields, IDS_BEFORE, STAYS_AT, VERSION, VERSION_BEFORE};
use crate::gate::{Call, Redis, Unchanged};
use crate::msgpack::numbers;
use crate::options::{CARRIES_MAX, OLDER_TRIES_MAX};
use crate::script;

/// From how many ids on version 3 looks through them at first.
const IDS_LOOK_BEFORE: u16 = 32;
/// The most runs of settled permits that programs of version 3 read.
const RUNS_MAX_BEFORE: usize = 256;

/// How many entries can be changed at the same time in the format before.
const TURNS: usize = 256;

/// Lets the changes of one entry in this process take turns, so that each competes with other processes only.
#[derive(Debug)]
pub(crate) struct Turns {
    places: [Semaphore; TURNS],
    hasher: RandomState,
}

impl Default for Turns {
    fn default() -> Self {
        Self { places: std::array::from_fn(|_| Semaphore::new(1)), hasher: RandomState::new() }
    }
}

impl Turns {
    /// Waits for a turn on `key`, for `most` at the longest: a server that does not answer must not hold up everybody in turn.
    async fn take(&self, key: &str, most: Span) -> Option<SemaphorePermit<'_>> {
        let place = usize::try_from(self.hasher.hash_one(key) % TURNS as u64).unwrap_or(0);
        within(&SystemClock, most, self.places.get(place)?.acquire()).await?.ok()
    }
}

/// What becomes of the ids that programs of version 3 keep in an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdsBefore {
    Stay,
    /// Those of the charge with this stamp are forgotten.
    Forget(u64),
    ForgetAll,
}

impl Fields {
    /// Until when version 3 keeps the entry for its settled permits.
    pub(crate) fn settled_until_before(&self) -> Timestamp {
        self.word_of(VERSION_BEFORE, STAYS_AT + IDS_BEFORE)
    }

    /// What version 3 says of ids in the field `e`: they stay with the numbers that they were given under, and the entry
    /// stays until the last of them expires, or until `stays`.
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

/// The field of settled permits in version 3. Of more runs than its programs read the newest stay, and permits up to the
/// others give nothing back.
pub(crate) fn settled_before(settled: &SettledPart) -> Option<(Vec<u8>, Vec<u8>)> {
    if *settled == SettledPart::default() {
        return None;
    }
    let dropped = settled.runs.len().saturating_sub(RUNS_MAX_BEFORE);
    let (older, newest) = settled.runs.split_at(dropped);
    let floor = older.last().map_or(settled.floor, |run| run.1.max(settled.floor));
    let runs = newest.iter().flat_map(|run| [run.0, run.1, run.2.as_micros()]);
    let all: Vec<u64> = [floor].into_iter().chain(runs).collect();
    Some((b"s".to_vec(), numbers(&all)))
}

impl Redis {
    /// Whether this gate writes the format before.
    pub(crate) const fn is_older(&self) -> bool {
        self.options.format != VERSION
    }

    /// Whether the entry that takes the place of `old` is in the format before.
    pub(crate) fn writes_older(&self, old: &Fields) -> bool {
        self.version_after(old) != VERSION
    }

    /// The version of the entry that takes the place of `old`.
    pub(crate) fn version_after(&self, old: &Fields) -> u8 {
        if old.version() == Some(VERSION) { VERSION } else { self.options.format }
    }

    /// How often a change is tried again because others changed the entry meanwhile.
    pub(crate) const fn tries_max(&self) -> usize {
        if self.is_older() { OLDER_TRIES_MAX } else { CARRIES_MAX }
    }

    /// Lets the core decide `operation` on the whole entry, in its turn.
    pub(crate) async fn change_whole(&self, operation: Operation<'_>) -> Result<Outcome, Error> {
        let (policy, subject) = (operation.policy(), operation.subject());
        let _turn = self.turns.take(&self.key(policy, subject), self.options.attempt_timeout).await;
        let call = Call {
            id: operation.id(),
            unchanged: Unchanged::Reading,
            // The field of an id comes behind the list.
            list: Some(Vec::new()),
            ..Call::new(&script::WHOLE, policy, subject)
        };
        let answer = self.call(&call).await?;
        self.carried(operation, answer).await
    }
}
