//! Helpers that the crates of this workspace share. Not part of the public API: they may change in any release.

pub mod edge;
mod ids;
mod log_limit;
mod nearest;
mod parts;
pub(crate) mod sharded;
pub mod steps;
mod timeout;

pub use ids::Ids;
pub use log_limit::{LOG_EVERY, LogLimit};
pub use nearest::nearest;
pub use parts::run_parts;
pub use sharded::{LockedShards, Sharded};
pub use timeout::{timeout, timeout_at};

pub use crate::queue::holding::{
    HOLDING_POLICIES_MAX, HOLDING_SUBJECTS_MAX, HOLDING_TIMES_MAX, SLOT_POLL_MAX, SLOT_POLL_MIN,
};
#[cfg(feature = "spec")]
pub use crate::spec::fault::{Fault, Step, reword_serde_error};
