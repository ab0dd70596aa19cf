#![doc = include_str!("../README.md")]

mod audit;
mod cache;
mod commit_counter;
mod database;
mod embedded;
mod entries;
mod folder;
mod group_commit;
mod ids;
mod joint;
mod keys;
mod maintenance;
mod options;
mod overrides;
mod reopen;
mod row;
mod shared;
mod sync;
mod time;
mod writer;

pub use audit::EmbeddedAudit;
pub use cache::ENTRIES_CACHED_MAX;
pub use embedded::Embedded;
pub use group_commit::{BACKLOG_BATCHES_MAX, BATCH_ROWS_MAX, RELAXED_LOSS_MAX};
pub use keys::KEYS_MAX_DEFAULT;
pub use maintenance::IDLE_MAX;
pub use options::{Durability, Holder, LOCK_WAIT_DEFAULT, Options};
pub use overrides::EmbeddedOverrides;
pub use reopen::{REOPEN_EVERY, Reopening};
pub use shared::Stats;
pub use time::AHEAD_MAX;
