#![doc = include_str!("../README.md")]

pub mod bounds;
pub mod json;
pub mod permit_token;
pub mod protobuf;
pub mod rate_limit_fields;

use tollgate::{Error, ErrorKind};

fn unexpected(text: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{text}; is the broker of another version?"))
}
