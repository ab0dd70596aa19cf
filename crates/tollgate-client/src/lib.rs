#![doc = include_str!("../README.md")]

mod api;
mod client;
mod convert;
mod grpc;
mod http;
mod options;
mod resp;
mod target;

pub use api::{ApiClient, ApiError, ApiResponse, percent_encode};
pub use client::{AWAY, Client};
pub use grpc::GrpcGate;
pub use http::HttpGate;
pub use hyper::Method;
pub use options::ClientOptions;
pub use resp::{CONNECTIONS_MAX, RespGate};
pub use target::{DEADLINE_DEFAULT, RESPONSE_BYTES_MAX};
