#![doc = include_str!("../README.md")]
#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    reason = "helpers of tests, whose names say what they do"
)]

pub mod fakes;
pub mod redis_cell;
pub mod servers;
