//! Which entries have so many asks that an id for each does not fit.
//!
//! An entry remembers a bounded number of ids. A subject with more asks than that within the life of an id is asked
//! without them for a while, instead of finding out again with every ask.

use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::{Ask, Timestamp};

/// How many crowded subjects are told apart; two that share a place are crowded together, which is harmless.
const PLACES: usize = 1_024;

#[derive(Debug)]
pub(super) struct Crowd {
    until: Box<[AtomicU64]>,
    hasher: foldhash::fast::RandomState,
}

impl Default for Crowd {
    fn default() -> Self {
        let until = std::iter::repeat_with(AtomicU64::default).take(PLACES).collect();
        Self { until, hasher: foldhash::fast::RandomState::default() }
    }
}

impl Crowd {
    pub(super) fn is_crowded(&self, ask: &Ask<'_>, now: Timestamp) -> bool {
        now.as_micros() < self.place(ask).load(Ordering::Relaxed)
    }

    pub(super) fn crowd_until(&self, ask: &Ask<'_>, until: Timestamp) {
        self.place(ask).fetch_max(until.as_micros(), Ordering::Relaxed);
    }

    fn place(&self, ask: &Ask<'_>) -> &AtomicU64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u64(ask.policy().name_hash());
        hasher.write(ask.subject().as_bytes());
        let place = usize::try_from(hasher.finish() >> 32).unwrap_or(0) % PLACES;
        &self.until[place]
    }
}
