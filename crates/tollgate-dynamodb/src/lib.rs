#![doc = include_str!("../README.md")]

mod change;
mod entries;
mod expression;
mod fast;
mod fault;
mod format;
mod hints;
mod id;
mod item;
mod key;
mod lanes;
mod layout;
mod old_ids;
mod options;
mod overlapping;
mod overrides;
mod packed;
mod refund;
mod run;
mod send;
mod size;
mod skew;
mod store;
mod swap;
mod table;
mod token;
mod tries;
mod write;

pub use change::{GUESSES_MAX, SWAPS_MAX, TRYING_MAX};
pub use format::FORMATS;
pub use hints::HINTS_MAX;
pub use lanes::BATCH_MAX;
pub use layout::SLOTS_PER_WINDOW_MAX;
pub use options::{
    ATTEMPT_TIMEOUT_DEFAULT, ATTEMPT_TIMEOUT_MAX, CONNECT_TIMEOUT, Options, SKEW_MAX_DEFAULT,
};
pub use send::{ATTEMPTS_MAX, CONFLICT_RETRIES_MAX, THROTTLE_RETRIES_MAX};
pub use store::DynamoDb;
pub use table::create_table;
