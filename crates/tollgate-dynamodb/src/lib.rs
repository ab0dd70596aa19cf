#![doc = include_str!("../README.md")]

mod attempts;
mod change;
mod client;
mod clock;
mod conditional_update;
mod entries;
mod error;
mod expression;
mod format;
mod format_1_counters;
mod format_1_ids;
mod hints;
mod id;
mod item;
mod joint;
mod layout;
mod options;
mod overrides;
mod packed;
mod permit_key;
mod refund;
mod run;
mod size;
mod store;
mod swap;
mod swap_queue;
mod table;
mod write;
mod write_token;

pub use change::{GUESSES_MAX, SWAPS_MAX, TRYING_MAX};
pub use client::{ATTEMPTS_MAX, CONFLICT_RETRIES_MAX, THROTTLE_RETRIES_MAX};
pub use format::FORMATS;
pub use hints::HINTS_MAX;
pub use layout::SLOTS_PER_WINDOW_MAX;
pub use options::{
    ATTEMPT_TIMEOUT_DEFAULT, ATTEMPT_TIMEOUT_MAX, CONNECT_TIMEOUT, Options, SKEW_MAX_DEFAULT,
};
pub use store::DynamoDb;
pub use swap_queue::BATCH_MAX;
pub use table::create_table;
