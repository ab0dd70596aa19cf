//! The client of Elastic Disaster Recovery, on a manual clock and a fake service with injected failures.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "a helper of a test fails by panicking"
)]

mod campaign;
mod campaign_resume;
mod client;
mod escalation;
mod guard;
mod harness;
mod job_slots;
mod metrics_and_log;
mod other_callers;
mod rate;
mod retries;
mod role;
mod throttle;
