//! What to do about segments that are still open after an answer: ask again, split the chunk, down to single segments, and only then give
//! up.

use super::Fault;

/// How often several segments are asked for without any use before they are split.
pub const ATTEMPTS_SAME: u32 = 2;

/// How often a chunk is asked for before its last open segment counts as failed.
pub const ATTEMPTS_SINGLE: u32 = 3;

/// The next step with a chunk. Each one that asks again takes new permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Ask again for what is open.
    Retry,
    /// Ask for each half of what is open.
    Split,
    /// Take the answer, with a warning.
    Accept,
    /// Leave the source with a visible mark.
    Fail,
}

/// What became of a chunk so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tried {
    /// How often it was asked for.
    pub attempts: u32,
    /// Segments that are still open.
    pub open: usize,
    /// Segments that the last answer settled.
    pub settled: usize,
}

/// The next step after an answer that had `fault`.
///
/// As long as answers settle something, the rest is asked for again. What was cut off before its first end would be cut off again, so it is
/// split at once. A source that is repeated twice is taken to be what the model makes of it.
#[must_use]
pub fn next_step(fault: &Fault, tried: Tried) -> Step {
    let Tried { attempts, open, settled } = tried;
    let several = 1 < open;
    let most = if several { ATTEMPTS_SAME } else { ATTEMPTS_SINGLE };
    match fault {
        _ if several && 0 < settled => Step::Retry,
        Fault::Truncated if several => Step::Split,
        _ if attempts < most => Step::Retry,
        Fault::Echoed => Step::Accept,
        _ if several => Step::Split,
        _ => Step::Fail,
    }
}
