//! The in-process store: sharded, bounded, and without allocation on its synchronous path.
//!
//! A decision takes one shard's lock for some tens of nanoseconds and runs the pure core on the entry in place. The
//! number of keys is bounded. When a shard is full, entries that say what an absent one says are forgotten first; an
//! entry that holds something back is never forgotten, and if all of them do, the answer is
//! [`Full`](crate::ErrorKind::Full). So it is for a policy that has as many keys as it may have.

mod joint;
mod policy_keys;
mod shard;

use std::sync::Arc;

use tollgate_core::bounds::IDS_MAX;
use tollgate_core::{
    Ask, JoinedOutcome, Operation, Outcome, Policy, Span, Standing, Timestamp, Verdict,
    check_subject,
};

use crate::clock::Clock;
use crate::error::{Error, ErrorKind};
use crate::gate::{BoxFuture, Gate};
use crate::internal::edge::SystemClock;
use crate::internal::sharded::{self, Sharded};
use crate::sync::{Mutex, lock};

use policy_keys::PolicyKeys;
use shard::Shard;

/// The default number of keys.
pub const KEYS_MAX_DEFAULT: usize = 1_000_000;

/// With [`Memory::share_per_policy`], one policy has at most one in so many keys.
const POLICY_SHARE: usize = 2;

/// The pause between two walks over all shards for entries to forget.
const SWEEP_PAUSE: Span = Span::from_secs(1);

/// A shard is worth its lock from this many keys on.
const SHARD_KEYS_MIN: usize = 1_024;

/// A gate that keeps its entries in memory. They end with the process.
///
/// [`Memory::try_acquire`] neither waits nor allocates:
///
/// ```
/// use tollgate::core::Verdict;
/// use tollgate::{Ask, Limit, Memory, Policy, TokenBucket};
///
/// let policy = Policy::new("api", [Limit::new("burst", "requests", TokenBucket::per_second(10).burst(20))])?;
/// let memory = Memory::new();
/// let verdict = memory.try_acquire(&Ask::new(&policy, "alice"))?;
/// assert!(matches!(verdict, Verdict::Admitted(_)));
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Debug)]
pub struct Memory {
    shards: Sharded<Shard>,
    clock: Arc<dyn Clock>,
    policies: Arc<PolicyKeys>,
    keys_max: usize,
    swept_at: Mutex<Option<Timestamp>>,
}

impl Memory {
    /// A store of up to [`KEYS_MAX_DEFAULT`] keys on the machine's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with(Arc::new(SystemClock), KEYS_MAX_DEFAULT)
    }

    /// A store of up to `keys_max` keys, at least one, on `clock`.
    #[must_use]
    pub fn with(clock: Arc<dyn Clock>, keys_max: usize) -> Self {
        Self::with_bounds(clock, keys_max, IDS_MAX)
    }

    /// A store of up to `keys_max` keys, at least one, and about `ids_max` ask ids, on `clock`. Ids are spread over the
    /// shards like keys.
    #[must_use]
    pub fn with_bounds(clock: Arc<dyn Clock>, keys_max: usize, ids_max: usize) -> Self {
        let shards = sharded::shards((keys_max / SHARD_KEYS_MIN).max(1));
        let shard_max = u32::try_from(keys_max.div_ceil(shards).max(1)).unwrap_or(u32::MAX);
        let policies = Arc::new(PolicyKeys::default());
        let shard = || Shard::new(shard_max, ids_max.div_ceil(shards), Arc::clone(&policies));
        Self {
            shards: Sharded::new(shards, shard),
            keys_max,
            swept_at: Mutex::new(None),
            policies: Arc::clone(&policies),
            clock,
        }
    }

    /// Bounds every policy without a [`subjects_max`](Policy::subjects_max) to half of the keys, so that callers of one policy
    /// cannot take the room of the others.
    #[must_use]
    pub fn share_per_policy(self) -> Self {
        self.policies.bound((self.keys_max / POLICY_SHARE).max(1));
        self
    }

    /// Decides `ask`, and charges it if it is admitted, without waiting and without allocating (a new key and the log
    /// of a rolling window aside). A verdict is no permit: the charge counts as one [without
    /// refund](Ask::without_refund). What shadow mode would let through is answered as denied here, for the caller to
    /// ignore.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for a wrong ask, [`Conflict`](crate::ErrorKind::Conflict) and
    /// [`Contended`](crate::ErrorKind::Contended) for its id, [`Full`](crate::ErrorKind::Full) if there is no room for
    /// a new key.
    #[inline]
    pub fn try_acquire(&self, ask: &Ask<'_>) -> Result<Verdict, Error> {
        let now = self.clock.now();
        if ask.has_several_charges() {
            return self.try_acquire_joint(ask, now);
        }
        let acquire = || {
            let hash = self.shards.hash(ask.policy(), ask.subject());
            self.shards.lock(hash).acquire(hash, now, ask, self.rehash())
        };
        self.retry_if_full(now, acquire)
    }

    /// Returns the standing of `subject` on every limit of `policy`, without waiting and consuming nothing.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for a subject that is empty or too long.
    pub fn try_standing(&self, policy: &Policy, subject: &str) -> Result<Vec<Standing>, Error> {
        check_subject(subject)?;
        let policy = policy.for_subject(subject);
        match self.run_now(&Operation::Standing { policy, subject }, self.clock.now())? {
            Outcome::Standings(standings) => Ok(standings),
            _ => Ok(Vec::new()),
        }
    }

    /// How many keys there are now.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.shards.iter().map(|shard| shard.len()).sum()
    }

    /// Forgets every entry that says what an absent one says, and returns how many there were. The store does this by
    /// itself where it needs the room; call it to give memory back sooner.
    pub fn sweep(&self) -> usize {
        self.sweep_at(self.clock.now())
    }

    fn sweep_at(&self, now: Timestamp) -> usize {
        self.shards.iter().map(|mut shard| shard.sweep(now, self.rehash())).sum()
    }

    #[inline]
    fn rehash(&self) -> impl Fn(&Policy, &str) -> u64 {
        |policy, subject| self.shards.hash(policy, subject)
    }

    fn run_now(&self, operation: &Operation<'_>, now: Timestamp) -> Result<Outcome, Error> {
        self.retry_if_full(now, || self.run_once(operation, now))
    }

    fn run_once(&self, operation: &Operation<'_>, now: Timestamp) -> Result<Outcome, Error> {
        match operation {
            Operation::Acquire(ask) | Operation::Charge(ask) if ask.has_several_charges() => {
                self.run_joint(operation, ask, now)
            }
            joint if joint.is_joint() => {
                let mut outcome = JoinedOutcome::default();
                for part in joint.parts()? {
                    outcome.add(self.run_now(&part.operation(), now));
                }
                outcome.finish()
            }
            single => {
                let hash = self.shards.hash(single.policy(), single.subject());
                self.shards.lock(hash).run(hash, now, single, self.rehash())
            }
        }
    }

    /// Runs `run`, and again if there was no room for a new key and sweeping made some.
    #[inline]
    fn retry_if_full<T>(
        &self,
        now: Timestamp,
        run: impl Fn() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let done = run();
        // An outcome is large, so it is inspected where it is.
        if done.as_ref().is_err_and(|error| error.kind() == ErrorKind::Full) {
            return self.swept(now, done, run);
        }
        done
    }

    /// Repeats what failed with `full` after forgetting what can be forgotten in all shards, at most once per
    /// [`SWEEP_PAUSE`]: the keys of a policy are spread over them.
    #[cold]
    fn swept<T>(
        &self,
        now: Timestamp,
        full: Result<T, Error>,
        again: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut swept_at = lock(&self.swept_at);
        if swept_at.is_some_and(|at| at <= now && now < at + SWEEP_PAUSE) {
            return full;
        }
        *swept_at = Some(now);
        drop(swept_at);
        if self.sweep_at(now) == 0 { full } else { again() }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Gate for Memory {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(async move { self.run_now(&operation, self.clock.now()) })
    }

    fn try_run(&self, operation: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        Some(self.run_now(operation, self.clock.now()))
    }
}
