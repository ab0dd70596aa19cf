//! Injected faults.

use tollgate::Span;

/// How a call fails. Counts of chunks are those of a stream; an answer without a stream counts as one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// An error with this status in the shape of the dialect, and a hint when to retry.
    Refuse { status: u16, retry_after: Option<Span> },
    /// 429 as `OpenAI` sends it to an account without credit; the other dialects send 403.
    NoCredit,
    /// Waits before the first byte.
    Slow(Span),
    /// Waits before every chunk.
    SlowStream(Span),
    /// Sends this many chunks, then nothing more on an open connection.
    Stall { after: usize },
    /// Sends this many chunks, then ends the response as if it was complete.
    Truncate { after: usize },
    /// Sends this many chunks, then closes the connection.
    Disconnect { after: usize },
    /// An error event after this many chunks of a stream.
    ErrorEvent { after: usize },
    /// Sends the usage this much later than the text.
    UsageLate(Span),
    /// Never sends a usage.
    UsageNever,
    /// A 200 whose JSON breaks off, or a stream with lines that are not JSON.
    Garbage,
    /// HTML with this status, as from a proxy or a captive portal.
    Html { status: u16 },
    /// A 200 with an empty body.
    Empty,
    /// Closes the connection without a response.
    Hangup,
}

impl Fault {
    /// A refusal without a hint.
    pub const fn status(status: u16) -> Self {
        Self::Refuse { status, retry_after: None }
    }
}

/// A [`Fault`], when it happens, and how often at most.
pub type Trouble = crate::fakes::trouble::Trouble<Fault>;
