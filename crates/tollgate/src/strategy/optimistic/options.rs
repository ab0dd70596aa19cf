//! The options of an optimistic gate, and the over-issue bound of the whole fleet.

use std::time::Duration;

use tollgate_core::{Amounts, Backoff, Costs, Policy, Span, bounds::NUMBER_MAX};

use crate::memory::KEYS_MAX_DEFAULT;

/// The most that all instances together may admit over a limit in any of its windows: what each instance may hold
/// unposted, and what each crash may have lost. It is in the unit of the limit, and so is `unposted_max`.
///
/// ```
/// use tollgate::strategy::over_issue_bound;
///
/// assert_eq!(over_issue_bound(4, 0, 25), 100);
/// assert_eq!(over_issue_bound(4, 1, 25), 125); // one of them crashed within the window
/// ```
#[must_use]
pub const fn over_issue_bound(instances: u64, crashes: u64, unposted_max: u64) -> u64 {
    instances.saturating_add(crashes).saturating_mul(unposted_max)
}

/// The settings of an [`Optimistic`](crate::strategy::Optimistic) gate.
///
/// ```
/// use tollgate::strategy::OptimisticOptions;
/// use tollgate::Costs;
///
/// let options = OptimisticOptions {
///     unposted_max_of: Costs::new().with("tokens", 20_000),
///     ..OptimisticOptions::new(25)
/// };
/// assert_eq!(options.unposted_max_of("requests"), 25);
/// assert_eq!(options.unposted_max_of("tokens"), 20_000);
/// ```
#[derive(Clone, Debug)]
pub struct OptimisticOptions {
    /// How much of each unit one subject of one policy may have been admitted without the store's knowledge. An ask
    /// that would exceed it, or costs more than it, asks the store. Zero asks the store every time.
    pub unposted_max: u64,
    /// The same for units that need another number, such as tokens.
    pub unposted_max_of: Costs,
    /// How long admitted asks gather before they are posted together. Half of `unposted_max` is posted sooner.
    pub post_every: Duration,
    /// How long the store remembers the id of a post, so that it is charged once however often it is sent.
    pub resend_for: Duration,
    /// How long one try of a post may take before it counts as failed.
    pub attempt_timeout: Duration,
    /// How long to wait after a post that failed.
    pub backoff: Backoff,
    /// How long the store's denial is repeated without asking again, if its own wait is not over sooner. It bounds how
    /// late room that others gave back is noticed.
    pub recheck_after: Duration,
    /// How many subjects may be decided locally; any further one asks the store every time.
    pub subjects_max: usize,
    /// How many posts may be under way at once.
    pub posts_max: usize,
}

impl OptimisticOptions {
    /// The defaults with this `unposted_max`: posts four times a second, resent for 30 s.
    #[must_use]
    pub const fn new(unposted_max: u64) -> Self {
        Self {
            unposted_max,
            unposted_max_of: Costs::new(),
            post_every: Duration::from_millis(250),
            resend_for: Duration::from_secs(30),
            attempt_timeout: Duration::from_secs(5),
            backoff: Backoff {
                base: Span::from_millis(100),
                max: Span::from_secs(5),
                jitter_low: 500,
                jitter_high: 1_500,
                clamp: true,
            },
            recheck_after: Duration::from_millis(100),
            subjects_max: KEYS_MAX_DEFAULT,
            posts_max: 64,
        }
    }

    /// How much of `unit` one subject may have unposted.
    #[must_use]
    pub fn unposted_max_of(&self, unit: &str) -> u64 {
        self.unposted_max_of.get(unit).unwrap_or(self.unposted_max).min(NUMBER_MAX)
    }

    /// Returns how much of each unit of `policy` one subject may have unposted.
    pub(super) fn caps(&self, policy: &Policy) -> Amounts {
        let mut units = policy.units();
        Amounts::from_fn(|_| units.next().map_or(0, |unit| self.unposted_max_of(unit)))
    }
}
