#![doc = include_str!("../README.md")]

pub mod campaign;
pub mod client;
#[cfg(feature = "command")]
pub mod command;
mod error;
pub mod escalation;
mod failure;
pub mod journal;
pub mod metrics;
pub mod monitor;
mod retry;
pub mod throttle;

pub use aws_sdk_drs as sdk;
pub use client::{DrsClient, JobFilter, Recovery, Role};
pub use error::{Ambiguous, Context, Error, Refused, RetryExhausted};
pub use escalation::{Escalate, SnsEscalation};
pub use failure::{CONNECTION_LOST, Failure, JOB_QUOTAS, NO_CREDENTIALS, TIMED_OUT};
pub use retry::{RETRYABLE_ERRORS, RetryOptions};
pub use throttle::{JobCapacityTimeout, JobThrottler, ThrottleStatus};
