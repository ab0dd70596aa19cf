#![doc = include_str!("../README.md")]

mod call;
mod client;
mod convert;
mod grpc;
mod http;

pub use call::{ANSWER_BYTES_MAX, DEADLINE_DEFAULT};
pub use client::{Client, GRPC_AWAY, Settings};
pub use grpc::GrpcGate;
pub use http::HttpGate;
