//! What tollgate-aws promises, on a clock that is moved by hand and a service that fails on command.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "a helper of a test fails by panicking"
)]

mod bucket;
mod campaign;
mod drs;
mod escalation;
mod guard;
mod others;
mod race;
mod resumed;
mod retries;
mod role;
mod throttle;
mod told;
mod world;
