#![doc = include_str!("../README.md")]

mod bucket;
mod buckets;
mod error;
mod guard;
mod rate;

pub use bucket::{Bucket, CLOSED_MAX, Key};
pub use buckets::{BUCKETS_MAX, Buckets, ServiceBuckets};
pub use error::{Error, RateLimitTimeout};
pub use guard::{RETRY_AFTER_MAX, SdkGuard, WAIT_DEFAULT, WAIT_MAX, is_throttling, operation_name};
pub use rate::{Adapt, Rate, Rates};
#[cfg(feature = "https")]
pub use tollgate_telemetry::sinks::aws::https;
