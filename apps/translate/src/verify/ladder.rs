//! The escalation for segments that are open after an answer: request them again, split the chunk down to single segments, give up.

use super::Fault;

/// How often several segments are requested without a result before they are split.
pub const ATTEMPTS_SAME: u32 = 2;

/// How often a chunk is requested before its last open segment fails.
pub const ATTEMPTS_SINGLE: u32 = 3;

/// The next step with a chunk. Each new request takes a new permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NextStep {
    /// Request the open segments again.
    Retry,
    /// Request each half of the open segments.
    Split,
    /// Accept the answer, with a warning.
    Accept,
    /// Leave the source with a visible mark.
    Fail,
}

/// The attempts at a chunk so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tried {
    /// The number of requests.
    pub attempts: u32,
    /// Segments that are still open.
    pub open: usize,
    /// Segments that the last answer settled.
    pub settled: usize,
}

/// Returns the next step after an answer with `fault`.
///
/// As long as answers settle segments, the rest is requested again. An answer that was cut off in its first segment would be cut off
/// again, so the chunk is split. A source that is repeated twice is accepted.
#[must_use]
pub fn next_step(fault: &Fault, tried: Tried) -> NextStep {
    let Tried { attempts, open, settled } = tried;
    let several = 1 < open;
    let most = if several { ATTEMPTS_SAME } else { ATTEMPTS_SINGLE };
    match fault {
        _ if several && 0 < settled => NextStep::Retry,
        Fault::Truncated if several => NextStep::Split,
        _ if attempts < most => NextStep::Retry,
        Fault::Echoed => NextStep::Accept,
        _ if several => NextStep::Split,
        _ => NextStep::Fail,
    }
}
