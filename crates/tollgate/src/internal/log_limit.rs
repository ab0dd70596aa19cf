//! A bound on log lines that every request could write.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::{Span, Timestamp};

/// The time in which one line of a kind is logged.
pub const LOG_EVERY: Span = Span::from_secs(10);

/// Lets one log line through every [`LOG_EVERY`] and counts the others.
///
/// ```
/// use tollgate::internal::{LOG_EVERY, LogLimit};
/// use tollgate::Timestamp;
///
/// let (limit, now) = (LogLimit::new(), Timestamp::from_micros(1));
/// assert_eq!(limit.pass(now), Some(0));
/// assert_eq!(limit.pass(now), None);
/// assert_eq!(limit.pass(now + LOG_EVERY), Some(1), "one line was suppressed");
/// ```
#[derive(Debug, Default)]
pub struct LogLimit {
    next: AtomicU64,
    suppressed: AtomicU64,
}

impl LogLimit {
    /// A limit that lets the next line through.
    #[must_use]
    pub const fn new() -> Self {
        Self { next: AtomicU64::new(0), suppressed: AtomicU64::new(0) }
    }

    /// Whether to log a line at `now`, and how many were suppressed since the last one.
    pub fn pass(&self, now: Timestamp) -> Option<u64> {
        let (now, next) = (now.as_micros(), self.next.load(Ordering::Relaxed));
        let every = LOG_EVERY.as_micros();
        // Further away than that is a clock that was set back.
        let is_due = next <= now || now.saturating_add(every) < next;
        let is_ours = is_due
            && self
                .next
                .compare_exchange(
                    next,
                    now.saturating_add(every),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                )
                .is_ok();
        if is_ours {
            return Some(self.suppressed.swap(0, Ordering::Relaxed));
        }
        self.suppressed.fetch_add(1, Ordering::Relaxed);
        None
    }
}
