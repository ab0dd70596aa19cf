#![doc = include_str!("../README.md")]

#[cfg(feature = "http")]
pub mod http;
pub mod tls;
