//! How a fallback behaves: by how many the limits are divided, how often a store that failed is probed, and the bounds.

use std::time::Duration;

use tollgate_core::Span;

/// How long after a failure the store is first probed, at most.
pub(super) const FIRST_PROBE: Span = Span::from_secs(1);

/// How much of its share a subject has used when an outage begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShareStart {
    /// Used, since the store may have issued everything just before. A window comes back after its length, a calendar
    /// period with the next one, a bucket at its rate.
    #[default]
    Used,
    /// Unused: the share can be spent at once. The window in which the store goes away may hold all of a limit and one
    /// share per instance that is cut off. A second outage in the same window continues the share of the first.
    Share,
}

/// How a [`Fallback`](super::Fallback) behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FallbackOptions {
    /// How many instances share the limits, counting those that are down: the divisor of every share.
    pub instances: u64,
    /// How much of its share a subject has used when an outage begins: all of it.
    pub start: ShareStart,
    /// The shortest time between two probes of a store that stays away: 5 s. The first probe comes within one
    /// second, and the pauses double until they reach this.
    pub probe_min: Duration,
    /// The longest: 30 s. Jitter between the two keeps instances from probing together.
    pub probe_max: Duration,
    /// Timeout of the probe that distinguishes a slow subject from an unavailable store: 1 s.
    pub probe_timeout: Duration,
    /// How many subjects are answered without the store, 100,000; then the answer is [`Full`](crate::ErrorKind::Full).
    pub subjects_max: usize,
    /// How many settles, releases and closings are kept for the store, 100,000; then they are
    /// [`Unavailable`](crate::ErrorKind::Unavailable).
    pub kept_max: usize,
}

impl FallbackOptions {
    /// The defaults for so many instances.
    #[must_use]
    pub const fn new(instances: u64) -> Self {
        Self {
            instances,
            start: ShareStart::Used,
            probe_min: Duration::from_secs(5),
            probe_max: Duration::from_secs(30),
            probe_timeout: Duration::from_secs(1),
            subjects_max: 100_000,
            kept_max: 100_000,
        }
    }
}
