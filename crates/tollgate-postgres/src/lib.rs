#![doc = include_str!("../README.md")]

mod answer;
mod audit;
mod call;
mod clean_up;
mod error;
mod gate;
mod migrate;
mod options;
mod overrides;
mod pool;
mod quote;
mod repair;
mod row;
pub mod rows;
mod statements;
mod tls;
mod together;
mod turns;
mod version;
mod version_3;

pub use audit::PostgresAudit;
pub use clean_up::{CLEAN_UP_EVERY, CLEAN_UP_ROWS};
pub use gate::{PERMIT_KEY_BYTES, Postgres, SWAPS_MAX};
pub use migrate::install_sql;
pub use options::{
    CONNECTIONS_DEFAULT, FORMATS, LOCK_TIMEOUT_DEFAULT, Options, REPLY_TIMEOUT_DEFAULT,
    SCHEMA_DEFAULT,
};
pub use together::{ASKS_TOGETHER_MAX, TOGETHER_LOCK_TIMEOUT};
