//! The number of jobs, and the error after a timeout.

use std::fmt;

use serde_json::{Value, json};
use tollgate::Span;

/// The number of jobs in comparison with the quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThrottleStatus {
    /// Jobs that are not completed.
    pub current_jobs: u64,
    /// How many there may be.
    pub max_jobs: u64,
    /// How many more there may be.
    pub available_slots: u64,
    /// Whether a new job would wait.
    pub throttling_active: bool,
    /// Whether the service would refuse a new job.
    pub at_capacity: bool,
    /// How long the caller waited, if it did.
    pub wait_time: Option<Span>,
}

impl ThrottleStatus {
    /// Returns the status as JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut json = json!({
            "currentJobs": self.current_jobs,
            "maxJobs": self.max_jobs,
            "availableSlots": self.available_slots,
            "throttlingActive": self.throttling_active,
            "atCapacity": self.at_capacity,
        });
        if let Some(waited) = self.wait_time {
            json["waitTime"] = json!(waited.as_secs_ceil());
        }
        json
    }
}

/// No job slot became free in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobCapacityTimeout {
    /// Jobs that were not completed at the last count.
    pub current_jobs: u64,
    /// Jobs that others were about to start then.
    pub starting: u64,
    /// How many jobs there may be.
    pub max_jobs: u64,
    /// The quota by which the service refused last, if it did.
    pub quota: Option<&'static str>,
    /// How long the caller waited.
    pub waited: Span,
}

impl fmt::Display for JobCapacityTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { current_jobs, starting, max_jobs, quota, waited } = self;
        let waited = waited.as_secs_ceil();
        write!(
            f,
            "Timeout waiting for job capacity after {waited}s. Current jobs: {current_jobs}/{max_jobs}"
        )?;
        if 0 < *starting {
            write!(f, ", {starting} more about to start")?;
        }
        match quota {
            Some(quota) => write!(f, ", and the service refused by quota {quota}"),
            None => Ok(()),
        }
    }
}

/// A response of an HTTP API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpResponse {
    /// The status of HTTP.
    pub status: u16,
    /// The body.
    pub body: Value,
}

impl JobCapacityTimeout {
    /// Returns a response with status 429 and the error `JOB_CAPACITY_TIMEOUT`.
    #[must_use]
    pub fn to_http_response(&self) -> HttpResponse {
        let body = json!({
            "error": "JOB_CAPACITY_TIMEOUT",
            "message": self.to_string(),
            "currentJobs": self.current_jobs,
            "maxJobs": self.max_jobs,
            "waitTime": self.waited.as_secs_ceil(),
        });
        HttpResponse { status: 429, body }
    }
}
