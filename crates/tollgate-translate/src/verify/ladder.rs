//! What to do about a fault: try again, split the chunk, down to single paragraphs, and only then give up.

use super::Fault;

/// How often a chunk of several segments is tried before it is split.
pub const ATTEMPTS_SAME: u32 = 2;

/// How often a single segment is tried before it counts as failed.
pub const ATTEMPTS_SINGLE: u32 = 3;

/// The next step with a chunk. Each one that asks again takes new permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Ask the same again.
    Retry,
    /// Ask for each half of it: [`Chunk::halves`](crate::Chunk::halves).
    Split,
    /// Take the answer, with a warning.
    Accept,
    /// Leave the source with a visible mark.
    Fail,
}

/// The next step after `attempts` tries of a chunk of `segments` segments, of which the last had `fault`.
///
/// What was cut off would be cut off again, so it is split at once. A number that is missing can be one that is written in words,
/// so in the end it is only warned of.
#[must_use]
pub fn next_step(fault: &Fault, attempts: u32, segments: usize) -> Step {
    let several = 1 < segments;
    let tries = if several { ATTEMPTS_SAME } else { ATTEMPTS_SINGLE };
    match fault {
        Fault::Truncated if several => Step::Split,
        _ if attempts < tries => Step::Retry,
        _ if several => Step::Split,
        Fault::Number { .. } => Step::Accept,
        _ => Step::Fail,
    }
}
