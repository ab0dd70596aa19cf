//! One bucket: whoever calls takes a token first, in the order of arrival.
//!
//! The turn is a fair semaphore of one: only the first in line sleeps, and it asks again with the numbers of that moment,
//! so a rate that falls while callers wait is kept by those who wait already. Then comes the gate that is shared with
//! other processes, if there is one, so that what it admits goes out at once.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};
use tollgate::{
    Ask, Atomic, Clock, Decision, Gate, Memory, Policy, Queue, Span, Timestamp, Verdict, Wait,
};

use crate::error::{Error, RateLimitTimeout};
use crate::rate::{LIMIT, Rate};

/// Whose bucket it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The account; any text that tells accounts apart.
    pub account: Arc<str>,
    /// The region.
    pub region: Arc<str>,
    /// The service, or the service and an operation: `drs`, `drs.StartRecovery`.
    pub class: Arc<str>,
}

/// The longest that a refusal of the service closes a bucket.
pub const CLOSED_MAX: Span = Span::from_mins(1);

/// A bucket of tokens for calls.
#[derive(Debug)]
pub struct Bucket {
    key: Key,
    rate: Rate,
    clock: Arc<dyn Clock>,
    /// By percent, from the floor to 100.
    policies: Vec<Policy>,
    percent: AtomicU8,
    steps: Mutex<Steps>,
    subject: String,
    own: Atomic<Memory>,
    turn: Semaphore,
    shared: Option<Queue<Arc<dyn Gate>>>,
}

/// When the rate last fell and rose.
#[derive(Debug, Default)]
struct Steps {
    down_at: Option<Timestamp>,
    up_at: Option<Timestamp>,
}

impl Bucket {
    /// A full bucket; tokens come from `shared` too, if there is one.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a number is out of bounds or the class is no name.
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
        // Processes that share a gate do not all ask at the same instant.
        let shared =
            shared.map(|gate| Queue::new(gate, Arc::clone(&clock)).jitter(Span::from_millis(5)));
        Ok(Self {
            own: Atomic::new(Memory::with(Arc::clone(&clock), 1)),
            percent: AtomicU8::new(100),
            steps: Mutex::default(),
            turn: Semaphore::new(1),
            key,
            rate,
            clock,
            policies,
            subject,
            shared,
        })
    }

    /// Whose it is.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// Its rate, as configured.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// How fast it is now, in percent of its rate.
    #[must_use]
    pub fn percent(&self) -> u8 {
        self.percent.load(Relaxed)
    }

    /// How many whole tokens there are in this process now.
    #[must_use]
    pub fn available(&self) -> u64 {
        let standings = self.own.store().standing(self.policy(), &self.subject);
        standings.ok().and_then(|limits| limits.first().map(|limit| limit.remaining)).unwrap_or(0)
    }

    /// The gate it shares with other processes, to tell whether two are the same.
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
    /// [`Error::RateLimitTimeout`] if none comes in time; [`Error::Gate`] if a shared gate could not decide. Neither may
    /// be followed by the call.
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
        let _turn = self.turn(deadline, wait_max).await?;
        loop {
            let ask = Ask::new(self.policy(), self.subject.as_str());
            let refusal = match self.own.store().try_acquire(&ask)? {
                Verdict::Admitted(_) | Verdict::Repeated(_) => return Ok(()),
                Verdict::Denied(refusal) => refusal,
            };
            match refusal.wait {
                Wait::Until(at) if at <= deadline => self.clock.sleep_until(at).await,
                _ => return Err(self.timeout(wait_max)),
            }
        }
    }

    async fn turn(
        &self,
        deadline: Timestamp,
        wait_max: Span,
    ) -> Result<SemaphorePermit<'_>, Error> {
        if let Ok(turn) = self.turn.try_acquire() {
            return Ok(turn);
        }
        tokio::select! {
            biased;
            turn = self.turn.acquire() => turn.map_err(|_| self.timeout(wait_max)),
            () = self.clock.sleep_until(deadline) => Err(self.timeout(wait_max)),
        }
    }

    fn timeout(&self, wait_max: Span) -> Error {
        let Key { account, region, class } = self.key.clone();
        Error::RateLimitTimeout(RateLimitTimeout { account, region, class, wait_max })
    }

    /// The policy at the present percent.
    fn policy(&self) -> &Policy {
        let below = usize::from(100 - self.percent().min(100));
        let last = self.policies.len() - 1;
        &self.policies[last - below.min(last)]
    }

    /// The policy as configured.
    fn full(&self) -> &Policy {
        &self.policies[self.policies.len() - 1]
    }

    /// The service refused for the rate of calls: slower from now on, and nothing before `retry_after` has passed.
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
        let told = match &self.shared {
            Some(shared) => {
                let ask = Ask::new(self.full(), self.subject.as_str());
                shared.close_until(&ask, LIMIT, until).await
            }
            None => Ok(false),
        };
        if let Err(error) = closed.and(told) {
            tracing::warn!(class = &*self.key.class, region = &*self.key.region, %error, "a bucket was not closed");
        }
    }

    /// The service answered: a little faster from now on, up to the rate.
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
