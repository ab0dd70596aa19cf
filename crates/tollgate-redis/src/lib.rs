#![doc = include_str!("../README.md")]

mod answer;
mod args;
mod entry;
mod fault;
mod gate;
mod link;
mod msgpack;
mod node;
mod older;
mod options;
mod overrides;
mod repair;
mod script;
mod server;
mod verbs;

pub use gate::Redis;
pub use options::{
    ATTEMPT_TIMEOUT, ATTEMPTS_MAX, CARRIES_MAX, CONNECT_TIMEOUT, FORMATS, OLDER_TRIES_MAX,
    OWN_ID_ATTEMPTS, Options, RENEW_PAUSE, REPLICA_SHARE, WINDOW_TRIES_MAX, check_url,
};
pub use server::Kept;
