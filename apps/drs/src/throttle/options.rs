//! The settings of the throttle, and their environment variables.

use tollgate::Span;
use tollgate::internal::edge;

use super::ThrottleStatus;
use crate::error::Error;

/// The quota on concurrent jobs.
pub const MAX_JOBS: u64 = 20;

/// The environment variables: a number of jobs, and two times in seconds.
pub const VARIABLES: [&str; 3] =
    ["JOB_THROTTLE_THRESHOLD", "JOB_POLL_INTERVAL", "JOB_THROTTLE_TIMEOUT"];

/// The threshold, the polling interval and the timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThrottleOptions {
    /// From this many jobs on, a new one waits (18).
    pub threshold: u64,
    /// The quota ([`MAX_JOBS`]).
    pub max_jobs: u64,
    /// The polling interval (30 s).
    pub poll_interval: Span,
    /// The timeout of a wait (600 s).
    pub timeout: Span,
    /// How long a slot outlives a holder that crashed (15 min). Starting a job must take less.
    pub slot_ttl: Span,
}

impl Default for ThrottleOptions {
    fn default() -> Self {
        Self {
            threshold: 18,
            max_jobs: MAX_JOBS,
            poll_interval: Span::from_secs(30),
            timeout: Span::from_secs(600),
            slot_ttl: Span::from_mins(15),
        }
    }
}

impl ThrottleOptions {
    /// Reads [`VARIABLES`], with defaults.
    ///
    /// # Errors
    /// [`Error::Invalid`], naming the variable, if a value is not a number or out of bounds.
    pub fn from_environment() -> Result<Self, Error> {
        Self::from_variables(edge::environment)
    }

    /// Reads [`VARIABLES`] from another source than the environment.
    ///
    /// # Errors
    /// As [`from_environment`](Self::from_environment).
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let number = |name: &str, or: u64| match variable(name) {
            None => Ok(or),
            Some(text) => text.trim().parse::<u64>().map_err(|_| {
                Error::Invalid(format!(
                    "{name}={text} is not a non-negative integer; leave it out for {or}"
                ))
            }),
        };
        let defaults = Self::default();
        let [threshold, poll, timeout] = VARIABLES;
        let settings = Self {
            threshold: number(threshold, defaults.threshold)?,
            poll_interval: Span::from_secs(number(poll, defaults.poll_interval.as_secs_ceil())?),
            timeout: Span::from_secs(number(timeout, defaults.timeout.as_secs_ceil())?),
            ..defaults
        };
        settings.check().map(|()| settings)
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        if self.threshold == 0 || self.max_jobs < self.threshold {
            return Err(Error::Invalid(format!(
                "the threshold of jobs ({}) must be 1 to {}, the quota",
                VARIABLES[0], self.max_jobs
            )));
        }
        if self.poll_interval.is_zero() {
            return Err(Error::Invalid(format!(
                "the polling interval ({}) must be at least a second",
                VARIABLES[1]
            )));
        }
        Ok(())
    }

    pub(super) const fn status(
        &self,
        current_jobs: u64,
        wait_time: Option<Span>,
    ) -> ThrottleStatus {
        ThrottleStatus {
            current_jobs,
            max_jobs: self.max_jobs,
            available_slots: self.max_jobs.saturating_sub(current_jobs),
            throttling_active: self.threshold <= current_jobs,
            at_capacity: self.max_jobs <= current_jobs,
            wait_time,
        }
    }
}
