#![doc = include_str!("../README.md")]

mod audit;
mod cache;
mod database;
mod embedded;
mod entries;
mod folder;
mod ids;
mod keeper;
mod options;
mod overrides;
mod pipeline;
mod reopen;
mod row;
mod shared;
mod sync;
mod tally;
mod time;
mod writer;

pub use audit::EmbeddedAudit;
pub use cache::ENTRIES_CACHED_MAX;
pub use embedded::Embedded;
pub use keeper::IDLE_MAX;
pub use options::{Durability, Holder, LOCK_WAIT_DEFAULT, Options};
pub use overrides::EmbeddedOverrides;
pub use pipeline::{BACKLOG_BATCHES_MAX, BATCH_ROWS_MAX, RELAXED_LOSS_MAX};
pub use reopen::{REOPEN_EVERY, Reopening};
pub use shared::Stats;
pub use time::AHEAD_MAX;
