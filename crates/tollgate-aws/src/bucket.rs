//! A token bucket for calls, first come first served.
//!
//! The queue is a fair semaphore of one permit: only its holder sleeps, and it asks again with the current rate, so a rate
//! that falls applies to callers that wait already. The gate that other processes share comes last, so that a call goes
//! out as soon as it is admitted there.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};
use tollgate::core::{Verdict, Wait};
use tollgate::{Ask, Clock, Decision, Gate, GateExt, Memory, Policy, Queue, Span, Timestamp};

use crate::error::{Error, RateLimitTimeout};
use crate::rate::{LIMIT, Rate};

/// The owner of a bucket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The account; any text that distinguishes accounts.
    pub account: Arc<str>,
    /// The region.
    pub region: Arc<str>,
    /// The service, or the service and an operation: `drs`, `drs.StartRecovery`.
    pub class: Arc<str>,
}

/// The longest that a throttling error closes a bucket.
pub const CLOSED_MAX: Span = Span::from_mins(1);

/// A token bucket for calls.
#[derive(Debug)]
pub struct Bucket {
    key: Key,
    rate: Rate,
    clock: Arc<dyn Clock>,
    /// A policy for each percent of the rate, from the floor to 100.
    policies: Vec<Policy>,
    percent: AtomicU8,
    steps: Mutex<Steps>,
    subject: String,
    own: Memory,
    queue: Semaphore,
    shared: Option<Queue<Arc<dyn Gate>>>,
}

/// When the rate last changed.
#[derive(Debug, Default)]
struct Steps {
    down_at: Option<Timestamp>,
    up_at: Option<Timestamp>,
}

impl Bucket {
    /// Returns a full bucket, whose calls also take a token from `shared`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a number is out of bounds or the class is not a valid name.
    pub fn new(
        key: Key,
        rate: Rate,
        shared: Option<Arc<dyn Gate>>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let policies = rate.policies(&format!("aws.{}", key.class))?;
        let subject = format!("{}/{}", key.account, key.region);
        Ask::new(&policies[0], subject.as_str())
            .check()
            .map_err(|error| Error::Invalid(error.to_string()))?;
        // Jitter spreads the asks of processes that share a gate.
        let shared =
            shared.map(|gate| Queue::new(gate, Arc::clone(&clock)).jitter(Span::from_millis(5)));
        Ok(Self {
            own: Memory::with(Arc::clone(&clock), 1),
            percent: AtomicU8::new(100),
            steps: Mutex::default(),
            queue: Semaphore::new(1),
            key,
            rate,
            clock,
            policies,
            subject,
            shared,
        })
    }

    /// Returns the owner.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the configured rate.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Returns the current rate, in percent of the configured one.
    #[must_use]
    pub fn percent(&self) -> u8 {
        self.percent.load(Relaxed)
    }

    /// Returns the whole tokens that are available in this process.
    #[must_use]
    pub fn available(&self) -> u64 {
        let standings = self.own.try_standing(self.policy(), &self.subject);
        standings.ok().and_then(|limits| limits.first().map(|limit| limit.remaining)).unwrap_or(0)
    }

    /// Returns whether `other` is the gate that this bucket shares with other processes.
    pub(crate) fn shares(&self, other: Option<&Arc<dyn Gate>>) -> bool {
        match (&self.shared, other) {
            (None, None) => true,
            (Some(own), Some(other)) => Arc::ptr_eq(own.inner(), other),
            _ => false,
        }
    }

    /// Takes a token, waiting for it up to `wait_max`, first come first served.
    ///
    /// # Errors
    /// [`Error::RateLimitTimeout`] if none becomes available in time; [`Error::Gate`] if a shared gate could not decide. The call
    /// must not be made then.
    pub async fn take(&self, wait_max: Span) -> Result<(), Error> {
        let deadline = self.clock.now() + wait_max;
        self.take_own(deadline, wait_max).await?;
        let Some(shared) = &self.shared else { return Ok(()) };
        let ask = Ask::new(self.full(), self.subject.as_str());
        match shared.acquire_within(&ask, deadline).await? {
            Decision::Admitted(_) => Ok(()),
            Decision::Denied(_) => Err(self.timeout(wait_max)),
        }
    }

    async fn take_own(&self, deadline: Timestamp, wait_max: Span) -> Result<(), Error> {
        let _first = self.wait_in_queue(deadline, wait_max).await?;
        loop {
            let ask = Ask::new(self.policy(), self.subject.as_str());
            let refusal = match self.own.try_acquire(&ask)? {
                Verdict::Admitted(_) | Verdict::Repeated(_) => return Ok(()),
                Verdict::Denied(refusal) => refusal,
            };
            match refusal.wait {
                Wait::Until(at) if at <= deadline => self.clock.sleep_until(at).await,
                _ => return Err(self.timeout(wait_max)),
            }
        }
    }

    async fn wait_in_queue(
        &self,
        deadline: Timestamp,
        wait_max: Span,
    ) -> Result<SemaphorePermit<'_>, Error> {
        if let Ok(first) = self.queue.try_acquire() {
            return Ok(first);
        }
        tokio::select! {
            biased;
            first = self.queue.acquire() => first.map_err(|_| self.timeout(wait_max)),
            () = self.clock.sleep_until(deadline) => Err(self.timeout(wait_max)),
        }
    }

    fn timeout(&self, wait_max: Span) -> Error {
        let Key { account, region, class } = self.key.clone();
        Error::RateLimitTimeout(RateLimitTimeout { account, region, class, wait_max })
    }

    /// Returns the policy at the current rate.
    fn policy(&self) -> &Policy {
        let below = usize::from(100 - self.percent().min(100));
        let last = self.policies.len() - 1;
        &self.policies[last - below.min(last)]
    }

    /// Returns the policy at the configured rate.
    fn full(&self) -> &Policy {
        &self.policies[self.policies.len() - 1]
    }

    /// Lowers the rate after a throttling error, and closes the bucket for `retry_after`.
    pub async fn throttled(&self, retry_after: Option<Span>) {
        let now = self.clock.now();
        if let Some(adapt) = self.rate.adapt {
            let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
            if steps.down_at.is_none_or(|at| adapt.interval <= now.since(at)) {
                let kept = u16::from(self.percent()) * u16::from(adapt.keep) / 100;
                let percent = u8::try_from(kept).unwrap_or(100).max(adapt.floor);
                self.percent.store(percent, Relaxed);
                steps.down_at = Some(now);
            }
        }
        let Some(wait) = retry_after else { return };
        let until = now + wait.min(CLOSED_MAX);
        let ask = Ask::new(self.policy(), self.subject.as_str());
        let closed = self.own.close_until(&ask, LIMIT, until).await;
        let closed_shared = match &self.shared {
            Some(shared) => {
                let ask = Ask::new(self.full(), self.subject.as_str());
                shared.close_until(&ask, LIMIT, until).await
            }
            None => Ok(false),
        };
        if let Err(error) = closed.and(closed_shared) {
            tracing::warn!(class = &*self.key.class, region = &*self.key.region, %error, "a bucket was not closed");
        }
    }

    /// Raises the rate after a success, up to the configured rate.
    pub fn succeeded(&self) {
        let Some(adapt) = self.rate.adapt else { return };
        if self.percent() == 100 {
            return;
        }
        let now = self.clock.now();
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let last = steps.up_at.max(steps.down_at);
        if last.is_none_or(|at| adapt.interval <= now.since(at)) {
            self.percent.store(self.percent().saturating_add(adapt.raise).min(100), Relaxed);
            steps.up_at = Some(now);
        }
    }
}
