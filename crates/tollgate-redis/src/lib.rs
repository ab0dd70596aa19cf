#![doc = include_str!("../README.md")]

mod answer;
mod args;
mod entry;
mod fault;
mod gate;
mod link;
mod msgpack;
mod options;
mod overrides;
mod repair;
mod script;
mod verbs;

pub use gate::Redis;
pub use options::{
    ATTEMPT_TIMEOUT, ATTEMPTS_MAX, CARRIES_MAX, CONNECT_TIMEOUT, OWN_ID_ATTEMPTS, Options,
    REPLICA_SHARE, WINDOW_TRIES_MAX,
};
