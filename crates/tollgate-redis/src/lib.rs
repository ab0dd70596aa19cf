#![doc = include_str!("../README.md")]

mod args;
mod entries;
mod entry;
mod error;
mod gate;
mod joint;
mod link;
mod node;
mod operations;
mod options;
mod overrides;
mod previous_format;
mod reply;
mod script;
mod server;

pub use gate::Redis;
pub use options::{
    ATTEMPT_TIMEOUT, ATTEMPTS_MAX, CARRIES_MAX, CONNECT_TIMEOUT, FORMATS, OLDER_TRIES_MAX,
    OWN_ID_ATTEMPTS, Options, PARTS_TRIES_MAX, RENEW_PAUSE, REPLICA_SHARE, SLOT_TAG_BYTES_MAX,
    WINDOW_TRIES_MAX, check_slot_tag, check_url,
};
pub use server::DataCheck;
