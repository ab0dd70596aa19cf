//! Injected faults.

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// 503, the model is overloaded.
    Overloaded,
    /// 500, internal error.
    Internal,
    /// 504, it took too long.
    Deadline,
    /// 429 for requests per minute, though there is room.
    MinuteQuota,
    /// 429 for tokens per minute, in an array as the streaming endpoint wraps it.
    TokenQuota,
    /// 429 for the day, with a misleading retry delay of 38 seconds.
    DailyQuota,
    /// 429 without any details.
    BareQuota,
    /// 429 with a limit of 0: the model is not in the tier.
    NotInTier,
    /// 404, the model was taken away.
    Gone,
    /// 400, the request is wrong.
    BadRequest,
    /// 400, the location is not supported.
    Location,
    Slow,
    /// 403, the key is wrong.
    BadKey,
    /// The prompt is blocked: no candidates.
    BlockedPrompt,
    /// The answer is blocked: a candidate without text.
    Blocked,
    /// The answer ends in the middle, for `MAX_TOKENS`.
    Truncated,
    /// A 200 whose JSON breaks off.
    Garbage,
    /// A 200 with HTML, as from a captive portal.
    Page,
    Dropped,
    Doubled,
    Reordered,
    /// The first two segments come as one.
    Merged,
    Untranslated,
    /// Every segment comes without a text.
    Emptied,
    Unmarked,
}

/// When a [`Fault`] happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum When {
    /// At every n-th call.
    Every(u64),
    /// At the n-th call, from 1.
    Call(u64),
    /// If the text to translate contains this.
    Contains(String),
    /// If the text to translate has more than so many segments.
    LongerThan(usize),
}

/// A fault, when it happens, and how often at most.
#[derive(Clone, Debug)]
pub struct Trouble {
    pub fault: Fault,
    pub when: When,
    pub times: u64,
}

impl Trouble {
    /// A fault without a bound on its count.
    pub const fn new(fault: Fault, when: When) -> Self {
        Self { fault, when, times: u64::MAX }
    }

    /// Bounds how often the fault happens.
    pub const fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }

    /// Returns whether the fault happens to this call, and counts it.
    pub(super) fn happens(&mut self, number: u64, text: &str, segments: usize) -> bool {
        let is_time = match &self.when {
            When::Every(n) => number.is_multiple_of(*n),
            When::Call(n) => number == *n,
            When::Contains(part) => text.contains(part),
            When::LongerThan(most) => *most < segments,
        };
        if !is_time || self.times == 0 {
            return false;
        }
        self.times -= 1;
        true
    }
}
