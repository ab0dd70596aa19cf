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

/// A [`Fault`], when it happens, and how often at most.
pub type Trouble = crate::fakes::trouble::Trouble<Fault>;
