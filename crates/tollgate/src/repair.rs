//! Finding and mending entries from the future, which a wrong clock wrote.
//!
//! An entry's time never goes back, so one that was written a year ahead refuses its subject for a year. Stores that
//! notice it mend it themselves; [`Repair`] is for an operator who wants to see and mend all of them.

use std::fmt::Debug;

use tollgate_core::{Span, Timestamp};

use crate::error::Error;
use crate::gate::BoxFuture;

/// How far an entry may be ahead of the store's time before it counts as one from the future.
pub const AHEAD_MAX_DEFAULT: Span = Span::from_mins(5);

/// The most entries that one call lists.
pub const LISTED_MAX: usize = 10_000;

/// An entry whose time is ahead of the store's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FutureEntry {
    /// The name of its policy.
    pub policy: String,
    /// For whom.
    pub subject: String,
    /// Its time.
    pub at: Timestamp,
    /// How far that is ahead.
    pub ahead: Span,
}

/// A store whose entries can be repaired.
pub trait Repair: Debug + Send + Sync + 'static {
    /// The earliest time it can be by what the store last saw, where the clock that decides is far behind that. One of the
    /// two is wrong; if it is the clock, entries that seem to be from the future are healthy.
    fn disputed_time(&self) -> Option<Timestamp> {
        None
    }

    /// Lists entries that are more than `ahead_max` ahead of the store's time, at most [`LISTED_MAX`]. Reads every
    /// entry, and changes nothing.
    fn list_future(&self, ahead_max: Span) -> BoxFuture<'_, Result<Vec<FutureEntry>, Error>>;

    /// Rewrites `entry` as used up at the store's time. False, and nothing changed, if it is no longer more than
    /// `ahead_max` ahead.
    fn mend<'a>(
        &'a self,
        entry: &'a FutureEntry,
        ahead_max: Span,
    ) -> BoxFuture<'a, Result<bool, Error>>;
}
