#![doc = include_str!("../README.md")]

mod call;
mod error;
mod gate;
mod migrate;
mod options;
mod pool;
mod quote;
mod row;
pub mod rows;
mod tls;
mod verbs;

pub use gate::{PERMIT_KEY_BYTES, Postgres, SWAPS_MAX};
pub use options::{
    CONNECTIONS_DEFAULT, LOCK_TIMEOUT_DEFAULT, Options, REPLY_TIMEOUT_DEFAULT, SCHEMA_DEFAULT,
};
