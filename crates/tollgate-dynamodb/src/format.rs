//! The formats of items.
//!
//! Format 2 is the current one. Format 1 is that of the version before, which refuses any other; a store with this
//! [option](crate::Options::format) shares its table with such programs. It then changes items only by compare-and-swap, and
//! decides as for [older entries](apply_older). What format 1 cannot hold is lost on the strict side:
//! - No lows of buckets. A credit is what has not refilled since the charge.
//! - No default grid. Such a rolling window has its exact log, of at most 1,024 amounts.
//! - At most [`RUNS_MAX_OLD`] runs of settled permits. Beyond it the oldest permits credit nothing.
//! - [Ids](crate::format_1_ids) are in the item. An upgrade to format 2 drops them.
//!
//! An item of format 2 stays one: it proves that no older program is left.

use std::fmt;

use tollgate::core::{Applied, Entry, Known, SettledPart, apply, apply_older};
use tollgate::gate::Operation;
use tollgate::{Error, ErrorKind, Policy, Timestamp};

use crate::item::Item;
use crate::packed::Width;

/// The formats that can be written, the newest last.
pub const FORMATS: [u8; 2] = [1, 2];

/// The most runs of settled permits that a program of format 1 reads.
pub(crate) const RUNS_MAX_OLD: usize = 256;

/// A format of items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Format {
    /// Format 1.
    Old,
    /// Format 2.
    #[default]
    New,
}

impl Format {
    /// Returns the byte before the shape.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Old => FORMATS[0],
            Self::New => FORMATS[1],
        }
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        [Self::Old, Self::New].into_iter().find(|format| format.number() == number)
    }

    /// Parses the setting.
    pub(crate) fn parse(number: u8) -> Result<Self, Error> {
        Self::from_number(number).ok_or_else(|| {
            let known = FORMATS.map(|format| format.to_string()).join(", ");
            Error::new(
                ErrorKind::Invalid,
                format!("dynamodb: format {number} is not one of {known}"),
            )
        })
    }

    /// Returns the format of the next version of `seen`.
    pub(crate) fn after(self, seen: Option<&Item>) -> Self {
        seen.and_then(Item::format).map_or(self, |found| found.max(self))
    }

    /// Returns the numbers of entries of `policy`.
    pub(crate) fn numbers(self, policy: &Policy) -> &Policy {
        match self {
            Self::Old => policy.with_exact_logs(),
            Self::New => policy,
        }
    }

    /// Runs `operation` on `entry`, in the [numbers](Self::numbers) of this format, at `now`.
    pub(crate) fn apply(
        self,
        operation: &Operation<'_>,
        entry: &mut Entry,
        known: Known,
        now: Timestamp,
    ) -> Result<Applied, Error> {
        let apply = match self {
            Self::Old => apply_older,
            Self::New => apply,
        };
        Ok(apply(operation, entry, known, now)?)
    }

    /// The width of lists.
    pub(crate) const fn width(self) -> Width {
        match self {
            Self::Old => Width::Fixed,
            Self::New => Width::Packed,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number().fmt(f)
    }
}

/// Drops the oldest runs beyond the most that format 1 reads. The run of a reset stays, since it voids ids.
pub(crate) fn trim_settled_old(settled: &mut SettledPart) {
    let resets = usize::from(settled.runs.first().is_some_and(|(first, ..)| *first == 0));
    let excess = settled.runs.len().saturating_sub(RUNS_MAX_OLD);
    for (_, last, _) in settled.runs.drain(resets..resets + excess) {
        settled.floor = settled.floor.max(last);
    }
}
