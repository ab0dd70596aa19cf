//! Finds and repairs entries from the future, which a wrong clock wrote.
//!
//! An entry's time never goes back, so one that was written a year ahead refuses its subject for a year. Stores that
//! notice it repair it themselves; [`list_future`] and [`repair_entry`] are for an operator who wants to list and repair all of them.

use std::ops::ControlFlow;

use tollgate_core::{Entry, Span, Timestamp};

use crate::entries::EntryStore;
use crate::error::Error;

/// How far an entry may be ahead of the store's time before it counts as one from the future.
pub const AHEAD_MAX_DEFAULT: Span = Span::from_mins(5);

/// The most entries that one call lists.
pub const LISTED_MAX: usize = 10_000;

/// An entry whose time is ahead of the store's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FutureEntry {
    /// The name of its policy.
    pub policy: String,
    /// The subject.
    pub subject: String,
    /// Its time.
    pub at: Timestamp,
    /// How far its time is ahead.
    pub ahead: Span,
}

/// Lists entries of `store` that are more than `ahead_max` ahead of its time, at most [`LISTED_MAX`], by policy and subject.
/// Reads every entry, and changes nothing.
///
/// # Errors
/// Whatever keeps the store from being read.
pub async fn list_future(
    store: &dyn EntryStore,
    ahead_max: impl Into<Span>,
) -> Result<Vec<FutureEntry>, Error> {
    let mut found: Vec<FutureEntry> = Vec::new();
    let mut list = |visited: crate::entries::Visited| {
        let at = visited.entry?.at();
        let (policy, subject) = (visited.policy, visited.subject);
        found.push(FutureEntry { policy, subject, at, ahead: at.since(visited.now) });
        let is_full = LISTED_MAX <= found.len();
        Ok(if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    };
    store.visit(Some(ahead_max.into()), &mut list).await?;
    found.sort_by(|one, other| (&one.policy, &one.subject).cmp(&(&other.policy, &other.subject)));
    // A store may show an entry twice.
    found.dedup_by(|one, other| (&one.policy, &one.subject) == (&other.policy, &other.subject));
    Ok(found)
}

/// Rewrites `entry` as used up at the store's time. Returns false, and changes nothing, if it is no longer more than
/// `ahead_max` ahead.
///
/// # Errors
/// Whatever keeps the store from being written.
pub async fn repair_entry(
    store: &dyn EntryStore,
    entry: &FutureEntry,
    ahead_max: impl Into<Span>,
) -> Result<bool, Error> {
    let ahead_max = ahead_max.into();
    store
        .rewrite(&entry.policy, &entry.subject, &|found, now| repaired(found, now, ahead_max))
        .await
}

/// Returns the replacement of `entry` if it is more than `ahead_max` ahead of `now`.
#[must_use]
pub fn repaired(entry: Option<&Entry>, now: Timestamp, ahead_max: Span) -> Option<Entry> {
    entry.filter(|entry| ahead_max < entry.at().since(now)).map(|entry| entry.repaired(now))
}
