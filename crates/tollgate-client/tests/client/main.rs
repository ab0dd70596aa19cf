//! The client against brokers in this process, on a clock that the tests move.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test fails by panicking")]

mod broker;
mod secure;
mod suite;
mod transport;
