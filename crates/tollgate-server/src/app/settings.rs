//! What a server lets its callers do, beyond what their keys say.

use tollgate::Span;

/// Bounds on what callers report, who may call, and how the server stops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The longest that a limit is closed because the holder of a permit reported a violation. A caller with the scope
    /// `administer` may close it for up to [`RETRY_AFTER_MAX`](tollgate::incident::RETRY_AFTER_MAX).
    pub violation_hint_max: Span,
    /// How far the actual cost of a call may be above its estimate, in multiples of the smallest limit of the unit. What
    /// is beyond that is not charged.
    pub settle_excess_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { violation_hint_max: Span::from_hours(1), settle_excess_max: 10 }
    }
}
