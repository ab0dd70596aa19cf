#![doc = include_str!("../README.md")]

mod bucket;
mod buckets;
pub mod campaign;
pub mod drs;
mod error;
pub mod escalation;
mod failure;
mod guard;
pub mod journal;
pub mod metrics;
pub mod monitor;
mod rate;
mod retry;
pub mod throttle;

pub use aws_sdk_drs as sdk;
pub use bucket::{Bucket, CLOSED_MAX, Key};
pub use buckets::{BUCKETS_MAX, Buckets};
pub use drs::{DrsClient, JobFilter, Recovery, Role};
pub use error::{Ambiguous, Context, Error, RateLimitTimeout, Refused, RetryExhausted};
pub use escalation::{Escalate, SnsEscalation};
pub use failure::{
    CONNECTION_LOST, Failure, JOB_QUOTAS, NO_CREDENTIALS, RETRY_AFTER_MAX, TIMED_OUT,
};
pub use guard::{SdkGuard, WAIT_DEFAULT, WAIT_MAX, operation_of};
pub use rate::{Adapt, Rate, Rates};
pub use retry::{RETRYABLE_ERRORS, RetryConfig};
pub use throttle::{JobCapacityTimeout, JobThrottler, ThrottleStatus};
pub use tollgate_telemetry::sinks::aws::https;
