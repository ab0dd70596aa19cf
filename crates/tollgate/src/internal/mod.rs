//! Helpers that the crates of this workspace share. Not part of the public API: they may change in any release.

pub mod edge;
mod ids;
mod log_limit;
mod nearest;
pub mod steps;
mod timeout;

pub use ids::Ids;
pub use log_limit::{LOG_EVERY, LogLimit};
pub use nearest::nearest;
pub use timeout::{timeout, timeout_at};
