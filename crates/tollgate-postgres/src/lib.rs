#![doc = include_str!("../README.md")]

mod audit;
mod batcher;
mod call;
mod clean_up;
mod entries;
mod error;
mod gate;
mod joint;
mod migrate;
mod options;
mod overrides;
mod pool;
mod quote;
mod reply;
mod row;
mod row_limiter;
pub mod rows;
mod statements;
mod tls;
mod version;
mod version_3;

pub use audit::PostgresAudit;
pub use batcher::{BATCH_ASKS_MAX, BATCH_CHARGES_MAX, BATCH_LOCK_TIMEOUT};
pub use clean_up::{CLEAN_UP_EVERY, CLEAN_UP_ROWS};
pub use gate::{PERMIT_KEY_BYTES, Postgres, SWAPS_MAX};
pub use migrate::install_sql;
pub use options::{
    CONNECTIONS_DEFAULT, FORMATS, LOCK_TIMEOUT_DEFAULT, Options, REPLY_TIMEOUT_DEFAULT,
    SCHEMA_DEFAULT,
};
