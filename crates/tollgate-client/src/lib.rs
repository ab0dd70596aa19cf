#![doc = include_str!("../README.md")]

mod call;
mod client;
mod convert;
mod grpc;
mod http;
mod resp;
mod settings;
mod tls;

pub use call::{ANSWER_BYTES_MAX, DEADLINE_DEFAULT};
pub use client::{AWAY, Client};
pub use grpc::GrpcGate;
pub use http::HttpGate;
pub use resp::{LINKS_MAX, RespGate};
pub use settings::Settings;
