//! The plain local token bucket: one rate, one process, three methods.

use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{Ask, Limit, Policy, TokenBucket, Verdict};

use crate::clock::Clock;
use crate::error::Error;
use crate::internal::edge::SystemClock;
use crate::memory::Memory;
use crate::queue::Queue;

const SUBJECT: &str = "local";

/// A token bucket for this process alone. Share it by [`Arc`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// use std::time::Duration;
/// use tollgate::{LocalBucket, TokenBucket};
///
/// let calls = LocalBucket::new(TokenBucket::per_second(10).burst(20))?;
/// assert!(calls.try_acquire());
/// assert!(calls.acquire(Duration::from_secs(30)).await?); // waits up to 30 s
/// assert_eq!(calls.available(), 18);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct LocalBucket {
    gate: Queue<Memory>,
    policy: Policy,
    clock: Arc<dyn Clock>,
}

impl LocalBucket {
    /// A full bucket on the machine's clock.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if a number is out of bounds.
    pub fn new(rule: TokenBucket) -> Result<Self, Error> {
        Self::with_clock(rule, Arc::new(SystemClock))
    }

    /// A full bucket on `clock`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_clock(rule: TokenBucket, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let policy = Policy::new("local", [Limit::new("bucket", "requests", rule)])?;
        let gate = Queue::new(Memory::with(Arc::clone(&clock), 1), Arc::clone(&clock));
        Ok(Self { gate, policy, clock })
    }

    /// Takes a token if there is one that no queued caller waits for.
    #[must_use]
    pub fn try_acquire(&self) -> bool {
        let ask = Ask::new(&self.policy, SUBJECT);
        let in_front = self.gate.in_front_of(&ask);
        let ask = if in_front.is_empty() { ask } else { ask.behind(in_front) };
        matches!(self.gate.inner().try_acquire(&ask), Ok(Verdict::Admitted(_)))
    }

    /// Takes a token, waiting for it up to `timeout`, first come first served. False means that none came in time.
    ///
    /// # Errors
    /// [`Contended`](crate::ErrorKind::Contended) if too many wait already.
    pub async fn acquire(&self, timeout: Duration) -> Result<bool, Error> {
        let ask = Ask::new(&self.policy, SUBJECT);
        let deadline = self.clock.now() + timeout;
        Ok(self.gate.acquire_within(&ask, deadline).await?.is_admitted())
    }

    /// How many whole tokens there are now.
    #[must_use]
    pub fn available(&self) -> u64 {
        let standings = self.gate.inner().try_standing(&self.policy, SUBJECT);
        standings.ok().and_then(|limits| limits.first().map(|limit| limit.remaining)).unwrap_or(0)
    }
}
